"""How stores of each kind are laid out, as lines that can be compared: what their records can hold,
and how a saved store is built. No test lives here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from typing import Any, get_args, get_type_hints

import msgspec

from flowfabric.core.documents import Document
from flowfabric.core.entries import Kept
from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.model import Attempt, Execution, Lane, Shift

RECORDS = (Execution, Attempt, Flow, Edge, Group, Line, Lane, Shift, Document, Kept)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FRONT = re.compile(r"CELLS = '(.*)'")


def records_of_today() -> list[str]:
    """The columns of every record in their order, and the words that a column can hold."""
    return [
        f"{record.__name__}.{field.name} {_words(get_type_hints(record)[field.name])}".rstrip()
        for record in RECORDS
        for field in msgspec.structs.fields(record)
    ]


def _words(kind: object) -> str:
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, StrEnum):
            return "|".join(sorted(word.value for word in each))
    return ""


def sqlite_layout(text: str) -> list[str]:
    """What makes the tables and indexes of a dump."""
    statements = re.findall(
        r"^(?:CREATE|PRAGMA (?:application_id|user_version)) .*?;$", text, re.MULTILINE | re.DOTALL
    )
    return sorted(" ".join(statement.split()) for statement in statements)


def postgres_layout(text: str) -> list[str]:
    """The migrations that were run, and what they said."""
    rows = [json.loads(line) for line in json.loads(text)["migration"]]
    return [f"{row['name']} {row['checksum']}" for row in rows]


def front_of_today() -> str:
    """The fixed shape that the functions of Valkey read."""
    found = _FRONT.search(files("flowfabric.store.lua").joinpath("record.lua").read_text("utf-8"))
    assert found is not None
    return found[1]


def valkey_layout(text: str) -> list[str]:
    """Every kind of key with what it holds."""
    return sorted({line for saved in text.splitlines() for line in _key(*json.loads(saved))})


def _key(kind: str, key: str, held: list[Any]) -> Iterator[str]:
    name = f"{kind} {_general(key)}"
    match kind:
        case "hash":
            yield from (
                f"{name} {_general(field)} = {_shape(value)}"
                for field, value in zip(held[::2], held[1::2], strict=True)
            )
        case "zset":
            yield from (f"{name} {_general(member)}" for member in held[::2])
        case "stream":
            yield from (
                f"{name} {field} = {_shape(value)}"
                for _, cells in held
                for field, value in zip(cells[::2], cells[1::2], strict=True)
            )
        case _:
            yield from (f"{name} = {_shape(value)}" for value in held)


def _general(name: str) -> str:
    return re.sub(r"\d+", "N", _UUID.sub("U", name))


def _shape(value: str) -> str:
    if not value.replace("\t", "").isprintable():
        return "bytes"
    if "\t" in value:
        return " tab ".join(map(_shape, value.split("\t")))
    if value.startswith("{") and value.endswith("}"):
        return "object"
    if re.fullmatch(r"-?\d+", value):
        return "number"
    return "text"
