"""Named statements filled for one schema and one shape of change, ready for the driver.

Texts are made of parts by name; arguments are named too (`:now_ms`) and become numbers here. A
statement's text depends on column names only, never on values, so that few are ever prepared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS, MEMBER_COLUMNS
from flowfabric.store.postgres.address import quoted
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.flow_rows import LINE
from flowfabric.store.postgres.rows import Cell, sql_type
from flowfabric.store.queries import bare, migration_names, statements

SQL = statements("postgres")
HEADS = ", ".join(f"e.{name}" for name in COLUMNS)
NOW = "coalesce(:clock_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)"

# What a guard compares with the row.
HELD = {"held_epoch": "bigint", "held_token": "text", "held_reasons": "text"}
SEEN = {"seen_rev": "bigint"}
# An execution that entries are appended to: its guard, and which of the entries are its own.
APPEND = {"given_id": "text", **HELD, "first": "bigint", "last": "bigint"}

_ARGUMENT = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")

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


def apart(columns: Mapping[str, str], part: str = "") -> str:
    """Arrays taken apart, as columns of rows. In a list of results, not as a table of functions:
    that would write down every array by itself first."""
    return ", ".join(f"unnest(:{part}{name}::{kind}[]) AS {name}" for name, kind in columns.items())


class Shape(NamedTuple):
    """What the changes of one statement have in common.

    `alike`: every row gets the same values. `lines`, `attempts`, `outbox`, `entries`: some rows
    have one.
    """

    held: bool
    columns: tuple[str, ...]
    alike: bool
    lines: bool
    attempts: bool
    outbox: bool = False
    entries: bool = False


class Statements:
    """All statements of one schema. Those of a shape are made when it is first seen."""

    def __init__(self, schema: str) -> None:
        self.schema = quoted(schema)
        self.shaped = lru_cache(maxsize=512)(self._shaped)
        self.named = lru_cache(maxsize=128)(self._named)
        self.claim = lru_cache(maxsize=8)(self._claim)
        self.due = lru_cache(maxsize=1)(self._due)
        self.insert = lru_cache(maxsize=4)(self._insert)
        self.append = lru_cache(maxsize=1)(self._append)

    def fill(self, name: str, **parts: str) -> str:
        return bare(SQL[name]).format(schema=self.schema, now=NOW, heads=HEADS, **parts)

    def clock(self) -> str:
        text = self.fill("clock").replace(":skew_ms", str(SKEW_LIMIT_MS))
        return text.replace(":known_version", str(len(migration_names("postgres"))))

    def _named(self, name: str, way: str = "ASC") -> Statement:
        columns = ", ".join(f"x.{column}" for column in ATTEMPT_COLUMNS)
        nothing = ", ".join(f"NULL::{sql_type(c)} AS {c}" for c in ATTEMPT_COLUMNS)
        return numbered(
            self.fill(
                name,
                clock=self.clock(),
                life=self.fill("log_life"),
                emptied=self.fill("purge_entries"),
                way=way,
                attempts=", ".join(f"a.{column}" for column in ATTEMPT_COLUMNS),
                of_attempt=columns,
                no_attempt=nothing,
                notify=self._notify("written"),
            )
        )

    def _notify(self, written: str) -> str:
        return self.fill("notify", written=written)

    def _insert(self, *, keyed: bool, tags: bool, members: bool) -> Statement:
        names = MEMBER_COLUMNS if members else INSERT_COLUMNS
        beside = self.fill("insert_beside") + (self.fill("insert_tags") if tags else "")
        text = self.fill(
            "execution_insert_keyed" if keyed else "execution_insert",
            clock=self.clock(),
            columns=", ".join(names),
            given=", ".join(f"t.{column}" for column in names),
            arrays=apart({column: sql_type(column) for column in names}),
            beside=beside,
            notify=self._notify("created"),
        )
        return numbered(text)

    def entries(self, index: str) -> str:
        return self.fill("entries", index=index).strip()

    def _due(self) -> Statement:
        return numbered(self.fill("execution_due", entries=self.entries("execution_due")))

    def _claim(self, picked: str, *, start: bool, above: bool) -> Statement:
        peeked = "peeked_routes" if picked == "picked_routes" else "peeked_nothing"
        if above:
            peeked = "peeked_above"
        text = self.fill(
            "execution_claim",
            clock=self.clock(),
            entries=self.entries("execution_ready"),
            peeked=self.fill(peeked),
            picked=self.fill(picked),
            begun=self.fill("claim_begun" if start else "claim_granted"),
        )
        return numbered(text)

    def _append(self) -> Statement:
        text = self.fill(
            "entry_append",
            clock=self.clock(),
            guard=self.fill("guard_held"),
            asked=apart(APPEND),
        )
        return numbered(text)

    def kept_attempts(self, applied: str) -> str:
        """The part that keeps the attempts of what was applied by the part of this name."""
        values = ", ".join(f"kept_{c}" for c in ATTEMPT_COLUMNS)
        names = ", ".join(ATTEMPT_COLUMNS)
        return self.fill(
            "apply_attempts", applied=applied, attempt_columns=names, attempt_values=values
        )

    def _shaped(self, shape: Shape) -> Statement:
        guard = HELD if shape.held else SEEN
        given = {} if shape.alike else {f"given_{c}": sql_type(c) for c in shape.columns}
        beside = dict(given)
        if shape.lines:
            beside |= {"line_kind": "text", "line_detail": "text"}
        if shape.attempts:
            beside |= {f"kept_{c}": sql_type(c) for c in ATTEMPT_COLUMNS}
        if shape.outbox:
            beside |= {f"out_{name}": kind for name, kind in LINE.items()}
        if shape.entries:
            beside["entries"] = "text"
        every = {**guard, **beside}
        parts = self.fill("apply_lines") if shape.lines else ""
        if shape.attempts:
            parts += self.kept_attempts("applied")
        if shape.outbox:
            values = ", ".join(f"out_{name}" for name in LINE)
            parts += self.fill("apply_outbox", line_columns=", ".join(LINE), line_values=values)
        if shape.entries:
            parts += self.fill("apply_entries", applied="applied")
        value = ":to_{0}::{1}" if shape.alike else "g.given_{0}"
        text = self.fill(
            "execution_apply",
            clock=self.clock(),
            arrays=apart(every),
            more_t="".join(f", t.{name}" for name in beside),
            more_l="".join(f", l.{name}" for name in beside),
            more_g=told_of(beside),
            guard=self.fill("guard_held" if shape.held else "guard_seen"),
            patch="".join(f"{c} = {value.format(c, sql_type(c))}, " for c in shape.columns),
            beside=parts,
            notify=self._notify("applied"),
        )
        return numbered(text)


def told_of(beside: Collection[str]) -> str:
    """What a change tells of the rows it wrote, for what is written beside them."""
    names = "".join(f", g.{name}" for name in beside)
    return f"{names}, e.generation" if "entries" in beside else names
