"""Names, keys and tags that people choose: what is allowed, and what to do when it is not.

Every function takes whatever came in and gives back the value that may be stored, or raises
`InvalidInput` naming the field and the remedy. Limits count UTF-8 bytes. No text with a NUL or
a lone surrogate passes anywhere: not every store could keep it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flowfabric.core import exact
from flowfabric.core.ids import Lane, Namespace, TaskName, WorkerName
from flowfabric.errors import InvalidInput, PayloadTooLarge

LANE_BYTES_MAX = 64
NAMESPACE_BYTES_MAX = 64
TASK_BYTES_MAX = 256
WORKER_BYTES_MAX = 256
REQUEST_BYTES_MAX = 64
TOKEN_BYTES_MAX = 256
NOTE_BYTES_MAX = 256
IDEMPOTENCY_KEY_BYTES_MAX = 512
KIND_BYTES_MAX = 64
DOCUMENT_BYTES_MAX = 256
TAG_KEY_BYTES_MAX = 128
TOPIC_BYTES_MAX = 64
ENTRY_KEY_BYTES_MAX = 512
TAG_VALUE_BYTES_MAX = 256
TAGS_MAX = 64
PRIORITY_MIN = 0
PRIORITY_MAX = 9000
BODY_BYTES_MAX = 1 << 20

_TAG_KEY = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*")
_SHOWN_MAX = 60


def lane_name(text: object, field: str = "lane") -> Lane:
    """1 to 64 printable ASCII characters; a space is one of them."""
    name = exact.text(text, field, "use the name of a lane, such as 'default'")
    if 0 < len(name) <= LANE_BYTES_MAX and name.isascii() and name.isprintable():
        return Lane(name)
    raise _bad_lane(name, field)


def namespace_name(text: object, field: str = "namespace") -> Namespace:
    """1 to 64 bytes of printable text in any script."""
    name = _sized(text, field, NAMESPACE_BYTES_MAX)
    if not name.isprintable():
        raise _refusal(
            field,
            f"{_shown(name)} has unprintable characters",
            "use letters, digits, punctuation and plain spaces",
        )
    return Namespace(name)


def task_name(text: object, field: str = "task") -> TaskName:
    """1 to 256 bytes without whitespace or control characters."""
    return TaskName(_word(text, field, TASK_BYTES_MAX))


def member_name(text: object, field: str = "name") -> str:
    """What a graph calls a member: 1 to 256 bytes without whitespace or control characters."""
    return _word(text, field, TAG_VALUE_BYTES_MAX)


def worker_name(text: object, field: str = "worker") -> WorkerName:
    """1 to 256 bytes without whitespace or control characters."""
    return WorkerName(_word(text, field, WORKER_BYTES_MAX))


def idempotency_key(value: object, field: str = "idempotency_key") -> str | None:
    """Up to 512 bytes of any text but NUL; None and the empty text both mean "no key"."""
    if value is None or value == "":
        return None
    return _sized(value, field, IDEMPOTENCY_KEY_BYTES_MAX)


def tag_key(text: object, field: str = "tags") -> str:
    """A dotted lower-case name; keys without a dot are reserved for the engine."""
    hint = "write it as 'group.name' with lower-case letters, digits and underscores"
    key = exact.text(text, field, hint)
    if _TAG_KEY.fullmatch(key) is None:
        raise _refusal(field, f"{_shown(key)} is not a tag key", hint, code="invalid_tag_key")
    if len(key) > TAG_KEY_BYTES_MAX:
        raise _too_long(field, f"the tag key {_shown(key)}", len(key), TAG_KEY_BYTES_MAX)
    return key


def tags(mapping: object, field: str = "tags") -> dict[str, str]:
    """A checked copy of up to 64 tags."""
    if not isinstance(mapping, Mapping):
        raise _refusal(
            field, f"expected a mapping, got {exact.kind(mapping)}", "pass {'demo.tenant': 'acme'}"
        )
    if len(mapping) > TAGS_MAX:
        raise _refusal(field, f"got {len(mapping)} tags", f"use at most {TAGS_MAX} of them")
    return {
        tag_key(key, field): _tag_value(value, f"{field}[{key}]") for key, value in mapping.items()
    }


def priority(value: object, field: str = "priority") -> int:
    """Higher goes first; values outside 0..9000 become the nearest bound."""
    if type(value) is int and PRIORITY_MIN <= value <= PRIORITY_MAX:
        return value
    number = exact.integer(value, field, f"use {PRIORITY_MIN} (last) to {PRIORITY_MAX} (first)")
    return min(max(number, PRIORITY_MIN), PRIORITY_MAX)


def lease_token(text: object, field: str = "token") -> str:
    """1 to 256 bytes without whitespace or control characters; the caller's, and random."""
    return _word(text, field, TOKEN_BYTES_MAX)


def request_token(text: object, field: str = "request") -> str:
    """1 to 64 bytes without whitespace or control characters; the caller's, one per request."""
    return _word(text, field, REQUEST_BYTES_MAX)


def topic_name(text: object, field: str = "topic") -> str:
    """1 to 64 bytes without whitespace or control characters."""
    return _word(text, field, TOPIC_BYTES_MAX)


def entry_key(text: object, field: str = "key") -> str:
    """Within its topic: 1 to 512 bytes of any text but NUL."""
    return _sized(text, field, ENTRY_KEY_BYTES_MAX)


def note(text: object, field: str) -> str:
    """Up to 256 bytes of any text but NUL; may be empty."""
    return _storable(exact.text(text, field), field, NOTE_BYTES_MAX)


def group_name(text: object, field: str = "group") -> str:
    """What a member waits for is called so: 1 to 256 bytes of any text but NUL."""
    return _sized(text, field, NOTE_BYTES_MAX)


def kind_name(text: object, field: str = "kind") -> str:
    """The name of a kind of documents: 1 to 64 bytes without whitespace or control characters."""
    return _word(text, field, KIND_BYTES_MAX)


def document_name(text: object, field: str = "name") -> str:
    """1 to 256 bytes of any text but NUL."""
    return _sized(text, field, DOCUMENT_BYTES_MAX)


def index_word(text: object, field: str = "words") -> str:
    """By which documents are found: 1 to 256 bytes of any text but NUL."""
    return _sized(text, field, DOCUMENT_BYTES_MAX)


def argument_path(text: object, field: str = "argument") -> str:
    """Where a result goes among the arguments; may be empty."""
    return _storable(exact.text(text, field), field, BODY_BYTES_MAX)


def body(data: object, field: str) -> bytes:
    """An input or a result: at most one mebibyte."""
    if not isinstance(data, bytes):
        raise _refusal(field, f"expected bytes, got {exact.kind(data)}", "encode it first")
    if len(data) > BODY_BYTES_MAX:
        raise PayloadTooLarge(
            f"{len(data)} bytes are over the limit of {BODY_BYTES_MAX}", field=field
        )
    return data if type(data) is bytes else bytes(data)


def _tag_value(value: object, field: str) -> str:
    return _storable(
        exact.text(value, field, "write the value as text"), field, TAG_VALUE_BYTES_MAX
    )


def _word(text: object, field: str, limit_bytes: int) -> str:
    word = _sized(text, field, limit_bytes)
    if word.isprintable() and " " not in word:
        # Nothing that can be printed is a control, or white but for the plain space.
        return word
    for position, character in enumerate(word):
        if character.isspace() or _is_control(character):
            raise _refusal(
                field,
                f"whitespace or a control character at position {position} of {_shown(word)}",
                "join the parts with '-', '_' or '.'",
            )
    return word


def _sized(text: object, field: str, limit_bytes: int) -> str:
    name = exact.text(text, field, f"use 1 to {limit_bytes} bytes of text")
    if not name:
        raise _refusal(field, "must not be empty", f"use 1 to {limit_bytes} bytes of text")
    return _storable(name, field, limit_bytes)


def _storable(text: str, field: str, limit_bytes: int) -> str:
    """Text that every store can keep as it is: real UTF-8, no NUL, not too long."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise _refusal(
            field, f"{_shown(text)} is not valid Unicode", "remove the lone surrogates"
        ) from None
    if length > limit_bytes:
        raise _too_long(field, _shown(text), length, limit_bytes)
    if "\0" in text:
        raise _refusal(field, f"{_shown(text)} contains a NUL character", "remove it")
    return text


def _bad_lane(name: str, field: str) -> InvalidInput:
    """Says which rule broke; a lone surrogate counts as the three bytes it would take."""
    raw = name.encode("utf-8", "surrogatepass")
    hint = f"use 1 to {LANE_BYTES_MAX} printable ASCII characters"
    if not raw:
        return _refusal(field, "a lane needs a name", hint, code="lane_empty")
    if len(raw) > LANE_BYTES_MAX:
        message = f"the name is {len(raw)} bytes long"
        return _refusal(field, message, hint, code="lane_too_long", length_bytes=len(raw))
    index = next(index for index, byte in enumerate(raw) if not 0x20 <= byte <= 0x7E)
    message = f"byte {index} of {_shown(name)} is not printable ASCII"
    return _refusal(field, message, hint, code="lane_not_printable", byte_index=index)


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")


def _too_long(field: str, what: str, length_bytes: int, limit_bytes: int) -> InvalidInput:
    message = f"{what} is {length_bytes} bytes long"
    return _refusal(field, message, f"use at most {limit_bytes} bytes", length_bytes=length_bytes)


def _refusal(
    field: str, message: str, hint: str, *, code: str = "invalid_input", **details: object
) -> InvalidInput:
    return InvalidInput(message, field=field, hint=hint, code=code, details=details)
