"""The functions that run inside the server: one library, named by the protocol it speaks.

Old and new programs share a server: each calls the library of its own protocol, and any change
of what is stored gets a new number. Whoever raises the floor of a store deletes the library of the
older protocol: programs that call it then look at the floor and stop. A store of an older protocol
is brought to this one when it is opened (`upgrading`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from flowfabric.errors import StoreMismatch
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.valkey.link import Link, ReplyError, pack
from flowfabric.store.valkey.trouble import unavailable

PROTOCOL = 3
# What a store of an earlier protocol holds is laid out in a way that this program does not know:
# under the first one there were several layouts that nothing tells apart.
OLDEST = 2
# Parts whose names later parts use.
OPEN = ("record", "lib", "plan", "entry", "insert", "apply", "read", "flow", "purge")
# Parts whose names no other part uses, or only those beside them: a function can have only so many.
CLOSED = (
    *(("queue", "hint", "claim"), ("find",), ("graph",), ("verify",), ("document",), ("upgrade",)),
    ("shared",),
)


def library_name(protocol: int = PROTOCOL) -> str:
    return f"flowfabric_{protocol}"


def refuse_newer(found: Mapping[str, str], prefix: str) -> int:
    """The protocol that a store was made with; refuses one that is not ours or that is too new."""
    made, floor = found.get("protocol", ""), found.get("floor", "")
    if not (made.isdecimal() and floor.isdecimal()):
        raise StoreMismatch(
            f"the keys with the prefix {prefix!r} belong to another program",
            hint="choose another ?prefix=",
        )
    if int(floor) > PROTOCOL:
        raise StoreMismatch(
            f"the store needs protocol {floor}, but this program supports {PROTOCOL}",
            hint="upgrade FlowFabric on this machine",
        )
    return int(made)


def refuse_protocol(found: Mapping[str, str], prefix: str) -> None:
    """Refuse a store, by how it was set up, that this program could only harm."""
    made = refuse_newer(found, prefix)
    if made < OLDEST:
        raise StoreMismatch(
            f"the store was made with protocol {made}, but this program needs {OLDEST} or newer",
            hint="let the FlowFabric that made it finish its work, use another ?prefix=, or "
            "remove it with `ff db drop`",
        )


@cache
def library_source(protocol: int = PROTOCOL) -> str:
    header = f"#!lua name={library_name(protocol)}\n"
    closed = [f"do\n{_parts(names)}end\n" for names in CLOSED]
    text = "\n".join((_parts(OPEN), *closed)).replace("@SKEW_LIMIT_MS@", str(SKEW_LIMIT_MS))
    return header + text.replace("@PROTOCOL@", str(protocol))


def _parts(names: Sequence[str]) -> str:
    folder = files("flowfabric.store.lua")
    return "\n".join(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)


async def is_loaded(link: Link, place: object, protocol: int = PROTOCOL) -> bool:
    """Whether the server has this very text: another one of the same name is not ours."""
    request = pack("FUNCTION", "LIST", "LIBRARYNAME", library_name(protocol), "WITHCODE")
    (reply,) = await link.ask([request])
    if isinstance(reply, ReplyError):
        raise unavailable(reply, place)
    found = reply[0] if isinstance(reply, list) and reply else None
    code = library_source(protocol).encode()
    return isinstance(found, list) and any(cell == code for cell in found)


async def forget_library(link: Link, place: object, protocol: int) -> None:
    """Make the server forget an older library; programs that call it look at the floor then."""
    (known,) = await link.ask([pack("FUNCTION", "LIST", "LIBRARYNAME", library_name(protocol))])
    if known == []:
        return
    (reply,) = await link.ask([pack("FUNCTION", "DELETE", library_name(protocol))])
    if isinstance(reply, ReplyError) and "not found" not in str(reply):
        raise unavailable(reply, place)


async def load_library(link: Link, place: object, protocol: int = PROTOCOL) -> None:
    """Make the server have our functions; repeating it changes nothing."""
    if await is_loaded(link, place, protocol):
        return
    (reply,) = await link.ask([pack("FUNCTION", "LOAD", "REPLACE", library_source(protocol))])
    if not isinstance(reply, ReplyError):
        return
    if "Error compiling" in str(reply) or "already exists" in str(reply):
        raise StoreMismatch(
            f"{place} refused the function library: {reply}",
            hint="another library uses the same names, or the server is not Valkey or Redis",
        ) from reply
    raise unavailable(reply, place)
