"""What is kept of the exception that ended an attempt, so that the caller sees it like a local one.

Plain data with bounds: an exception of any size becomes at most a few dozen kilobytes.
"""

from __future__ import annotations

import msgspec

# In place of a type that nobody knows any more.
UNREADABLE = "unreadable"
TYPE_CHARS = 200
MESSAGE_CHARS = 4_000
TRACEBACK_CHARS = 32_000
NOTES = 20
NOTE_CHARS = 1_000
MEMBERS = 50
MEMBERS_DEEP = 4


class FailureReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception. `members` are those of an exception group; the traceback shows all of it."""

    type: str
    message: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()
    members: tuple[FailureReport, ...] = ()
    left_out: int = 0

    @property
    def headline(self) -> str:
        """As the last line of a traceback: `KeyError: 'b'`."""
        return f"{self.type}: {self.message}" if self.message else self.type


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FailureReport).decode


def encode_report(report: FailureReport) -> bytes:
    return _encode(report)


def decode_report(body: bytes, problem: str = "") -> FailureReport:
    """The report; of one that cannot be read (`problem`: why, if that is known), that it cannot."""
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        return FailureReport(UNREADABLE, f"the exception cannot be read: {problem or error}")


def shortened(text: str, limit: int) -> str:
    """The beginning and the end of a text that is too long, as text that every store can keep."""
    if len(text) > limit:
        head = limit // 2
        tail = limit - head
        gap = f"\n… {len(text) - limit} characters left out …\n"
        text = f"{text[:head]}{gap}{text[-tail:]}"
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
