"""Named statements filled for one schema and one shape of change, ready for the driver.

Texts are made of parts by name; arguments are named too (`:now_ms`) and become numbers here. A
statement's text depends on column names only, never on values, so that few are ever prepared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.postgres.address import quoted
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.rows import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS, Cell, sql_type
from flowfabric.store.queries import statements

SQL = statements("postgres")
HEADS = ", ".join(f"e.{name}" for name in COLUMNS)
NOW = "coalesce(:clock_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)"

_ARGUMENT = re.compile(r"(?<!:):([a-z_]+)")

Argument = Cell | Sequence[Cell]
Arguments = Mapping[str, Argument]


class Statement(NamedTuple):
    """A text with numbered marks, and which argument each number takes."""

    text: str
    names: tuple[str, ...]

    async def fetch(self, connection: Connection, arguments: Arguments) -> list[Record]:
        return await connection.ask(self.text, *[arguments[name] for name in self.names])


def numbered(text: str) -> Statement:
    names: dict[str, int] = {}

    def mark(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    return Statement(_ARGUMENT.sub(mark, text), tuple(names))


class Shape(NamedTuple):
    """What the changes of one statement have in common.

    `alike`: every row gets the same values. `lines`, `attempts`: some rows have one.
    """

    held: bool
    columns: tuple[str, ...]
    alike: bool
    lines: bool
    attempts: bool


class Statements:
    """All statements of one schema. Those of a shape are made when it is first seen."""

    def __init__(self, schema: str) -> None:
        self.schema = quoted(schema)
        self.shaped = lru_cache(maxsize=512)(self._shaped)
        self.named = lru_cache(maxsize=128)(self._named)
        self.claim = lru_cache(maxsize=8)(self._claim)
        self.insert = lru_cache(maxsize=4)(self._insert)

    def _fill(self, name: str, **parts: str) -> str:
        return _bare(SQL[name]).format(schema=self.schema, now=NOW, heads=HEADS, **parts)

    def _clock(self) -> str:
        return self._fill("clock").replace(":skew_ms", str(SKEW_LIMIT_MS))

    def _named(self, name: str, way: str = "ASC") -> Statement:
        columns = ", ".join(f"x.{column}" for column in ATTEMPT_COLUMNS)
        nothing = ", ".join(f"NULL::{sql_type(c)} AS {c}" for c in ATTEMPT_COLUMNS)
        return numbered(
            self._fill(
                name,
                clock=self._clock(),
                life=self._fill("log_life"),
                way=way,
                attempts=", ".join(f"a.{column}" for column in ATTEMPT_COLUMNS),
                of_attempt=columns,
                no_attempt=nothing,
            )
        )

    def _notify(self, written: str) -> str:
        return self._fill("notify", written=written)

    def _insert(self, *, keyed: bool, tags: bool) -> Statement:
        beside = self._fill("insert_beside") + (self._fill("insert_tags") if tags else "")
        text = self._fill(
            "execution_insert_keyed" if keyed else "execution_insert",
            clock=self._clock(),
            columns=", ".join(INSERT_COLUMNS),
            given=", ".join(f"t.{column}" for column in INSERT_COLUMNS),
            arrays=", ".join(f":{column}::{sql_type(column)}[]" for column in INSERT_COLUMNS),
            beside=beside,
            notify=self._notify("created"),
        )
        return numbered(text)

    def _claim(self, picked: str, *, start: bool) -> Statement:
        peeked = "peeked_lanes" if picked == "picked_lanes" else "peeked_nothing"
        text = self._fill(
            "execution_claim",
            clock=self._clock(),
            peeked=self._fill(peeked),
            picked=self._fill(picked),
            begun=self._fill("claim_begun" if start else "claim_granted"),
        )
        return numbered(text)

    def _shaped(self, shape: Shape) -> Statement:
        guard = _HELD if shape.held else _SEEN
        given = {} if shape.alike else {f"given_{c}": sql_type(c) for c in shape.columns}
        beside = dict(given)
        if shape.lines:
            beside |= {"line_kind": "text", "line_detail": "text"}
        if shape.attempts:
            beside |= {f"kept_{c}": sql_type(c) for c in ATTEMPT_COLUMNS}
        every = {**guard, **beside}
        parts = self._fill("apply_lines") if shape.lines else ""
        if shape.attempts:
            kept = ", ".join(f"kept_{c}" for c in ATTEMPT_COLUMNS)
            names = ", ".join(ATTEMPT_COLUMNS)
            parts += self._fill("apply_attempts", attempt_columns=names, attempt_values=kept)
        value = ":to_{0}::{1}" if shape.alike else "g.given_{0}"
        text = self._fill(
            "execution_apply",
            clock=self._clock(),
            arrays=", ".join(
                [":ids::text[]", *(f":{name}::{kind}[]" for name, kind in every.items())]
            ),
            names="".join(f", {name}" for name in every),
            more_t="".join(f", t.{name}" for name in beside),
            more_l="".join(f", l.{name}" for name in beside),
            more_g="".join(f", g.{name}" for name in beside),
            guard=self._fill("guard_held" if shape.held else "guard_seen"),
            patch="".join(f"{c} = {value.format(c, sql_type(c))}, " for c in shape.columns),
            beside=parts,
            notify=self._notify("applied"),
        )
        return numbered(text)


_HELD = {"held_epoch": "bigint", "held_token": "text", "held_started": "boolean"}
_SEEN = {"seen_rev": "bigint"}


def _bare(text: str) -> str:
    """Without the sentences for people."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))
