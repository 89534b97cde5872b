"""What the server's refusals mean: try again at once, try again soon, or tell the caller.

A refusal is certain: the server did nothing. That is why some of them may be repeated here, while
a lost connection may not.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from flowfabric.errors import StoreUnavailable
from flowfabric.store.valkey.link import ReplyError


class Remedy(Enum):
    """What to do about a refusal before asking again; NONE: it is the caller's to hear."""

    ROUTE = auto()  # the slot lives elsewhere
    WAIT = auto()  # the slot is on its way, or the server is not ready
    LOAD = auto()  # the server does not have our functions
    NONE = auto()


_REMEDIES = {
    "MOVED": Remedy.ROUTE,
    "READONLY": Remedy.ROUTE,
    # Followed, a call would see half of a partition: the other half is still where it was.
    "ASK": Remedy.WAIT,
    "TRYAGAIN": Remedy.WAIT,
    "CLUSTERDOWN": Remedy.WAIT,
    "MASTERDOWN": Remedy.WAIT,
    "LOADING": Remedy.WAIT,
}

_HINTS = {
    "OOM": "the server's maxmemory is reached: raise it or remove data",
    "MISCONF": "the server cannot write to its disk: free space, or check its log",
    "READONLY": "this is a replica: connect to the primary",
    "NOREPLICAS": "fewer replicas are connected than min-replicas-to-write requires",
    "CLUSTERDOWN": "the cluster does not serve all slots: check CLUSTER INFO",
    "LOADING": "the server is reading its data from disk; try again soon",
    "BUSY": "another script has been running for too long: SCRIPT KILL or FUNCTION KILL",
    "WRONGPASS": "check the user and the password",
    "NOAUTH": "the server requires a password: valkey://:password@host",
    "NOPERM": "the user needs{missing} ~<prefix>:* &<prefix>:* and the rights in the guide",
    "ASK": "slots are being moved between nodes; try again soon",
}
_CODES = {
    **dict.fromkeys(("WRONGPASS", "NOAUTH", "NOPERM"), "auth"),
    **dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"), "cluster"),
    **dict.fromkeys(("READONLY", "OOM", "MISCONF", "NOREPLICAS", "BUSY"), "transport"),
    "LOADING": "busy_loading",
    "NOSCRIPT": "script_not_loaded",
}
# How a server tells of a right that is missing inside a function: without the word NOPERM.
_INSIDE = "ACL failure in script"
_COMMAND = re.compile(r"to run the '([^']+)' command")


def remedy(error: ReplyError) -> Remedy:
    text = str(error)
    if "Function not found" in text:
        return Remedy.LOAD
    if "non local key" in text:
        return Remedy.WAIT
    return _REMEDIES.get(_code(text), Remedy.NONE)


def is_passing(error: StoreUnavailable) -> bool:
    """Whether what can be repeated is worth repeating: the connection was cut, or a server refused
    for a reason that goes away by itself. One that cannot be reached at all is not waited for."""
    cause = error.__cause__
    if isinstance(cause, ReplyError):
        return remedy(cause) in (Remedy.ROUTE, Remedy.WAIT)
    return isinstance(cause, ConnectionError) and not isinstance(cause, ConnectionRefusedError)


def unavailable(error: ReplyError, where: object) -> StoreUnavailable:
    """The refusal as its caller hears it."""
    text = str(error)
    code = _code(text)
    if "non local key" in text:
        code = "ASK"
    if "Function not found" in text:
        code = "NOSCRIPT"
    told = StoreUnavailable(
        f"{where} refused: {text}",
        hint=_hint(code, text),
        code=_CODES.get(code, "other"),
    )
    told.__cause__ = error
    return told


def _hint(code: str, text: str) -> str:
    named = _COMMAND.search(text)
    return _HINTS.get(code, "").format(missing=f" +{named[1]}," if named else "")


def _code(text: str) -> str:
    """Errors of a function are wrapped; the word inside says what it was."""
    first = text.partition(" ")[0]
    if _INSIDE in text:
        return "NOPERM"
    if first != "ERR":
        return first
    inner = text.removeprefix("ERR ").partition(" ")[0].lstrip("-")
    return inner if inner in _HINTS or inner in _REMEDIES else first
