"""Statements about flows, made of the parts that one call needs and kept for the next like it.

A commit is one statement however many changesets and kinds of records are in it, and so is a look
at parts of flows: one trip, and one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from flowfabric.core.flow.changes import WRITABLE as FLOW_WRITABLE
from flowfabric.store.columns import ATTEMPT_COLUMNS
from flowfabric.store.postgres.flow_rows import (
    DONE,
    EDGE,
    FLOW,
    GROUP,
    LINE,
    MEMBER,
    RESOLUTION,
    listed,
)
from flowfabric.store.postgres.rows import sql_type
from flowfabric.store.postgres.statements import (
    HELD,
    SEEN,
    Statement,
    Statements,
    apart,
    numbered,
    told_of,
)

KEPT = {f"kept_{name}": sql_type(name) for name in ATTEMPT_COLUMNS}

LOGGED = {"line_kind": "text", "line_detail": "text"}

# What a commit can hold beside changes of executions, in the order of its parts; each row says of
# which changeset it is.
PARTS: Mapping[str, Mapping[str, str]] = {
    "new_flows": FLOW,
    "flows": {"id": "text", "rev": "bigint", "patch": "text"},
    "present": {"id": "text"},
    "members": MEMBER,
    "edges": EDGE,
    "resolved": RESOLUTION,
    "groups": GROUP,
    "lines": LINE,
    "done": DONE,
    "notes": {"execution": "text", "kind": "text", "detail": "text"},
}
_REFUSE = {
    "new_flows": ("new_flows_refuse", ("id",)),
    "flows": ("flows_refuse", ("id", "rev")),
    "present": ("present_refuse", ("id",)),
    "members": ("members_refuse", ("id",)),
}
_WRITE = {
    "new_flows": "new_flows_write",
    "flows": "flows_write",
    "members": "members_write",
    "edges": "edges_write",
    "resolved": "resolved_write",
    "groups": "groups_write",
    "lines": "lines_write",
    "done": "done_write",
}
_EDGES = {"leaving": "edges_leaving", "entering": "edges_entering", "whole": "edges_whole"}
_ASKED = {"pages": "graph_pages", "lines": "graph_lines", "tally": "graph_tally"}
# What needs no look for what is there already when all of it is of new flows.
_WRITE_NEW = {"edges": "new_edges_write", "groups": "new_groups_write"}
_IN_ORDER = ("notes",)
_KEEP = "t.which NOT IN (SELECT which FROM refused)"

_FLOW_COLUMNS = [name for name in FLOW if name in FLOW_WRITABLE]


def _patch(names: Iterable[str], kinds: Mapping[str, str]) -> str:
    """A column that a patch does not name is written as it was; followed by a comma."""
    return "".join(
        f"{name} = CASE WHEN g.given ? '{name}' THEN (g.given ->> '{name}')::{kinds[name]}"
        f" ELSE e.{name} END, "
        for name in names
    )


class Moves(NamedTuple):
    """Changes of executions that are guarded alike and name the same columns; `attempts`, `tags`,
    `entries`: some of them have such."""

    held: bool
    columns: tuple[str, ...]
    attempts: bool
    tags: bool
    entries: bool = False

    @property
    def guard(self) -> Mapping[str, str]:
        """What is compared."""
        return {"given_id": "text", **(HELD if self.held else SEEN)}

    @property
    def beside(self) -> Mapping[str, str]:
        """What is written to other tables, of some of them."""
        texts = {"tags": self.tags, "entries": self.entries}
        kept = KEPT if self.attempts else {}
        return {**kept, **{name: "text" for name, is_there in texts.items() if is_there}}

    @property
    def written(self) -> Mapping[str, str]:
        values = {f"to_{name}": sql_type(name) for name in self.columns}
        return {"position": "bigint", **LOGGED, **values, **self.beside}

    @property
    def given(self) -> Mapping[str, str]:
        """All of that, in this order, comes with the number of the changeset in front."""
        return {**self.guard, **self.written}


class Shape(NamedTuple):
    """What a commit is made of: parts by name (also `own`: notes about what is changed, too; and
    `founding`: all of it is of new flows), its changes of executions, and the columns that its
    patches of flows name."""

    parts: frozenset[str]
    moves: tuple[Moves, ...]
    raised: frozenset[str]

    @property
    def numbered(self) -> Mapping[str, Moves]:
        """Changes of executions, by the name of their part."""
        return {f"moves_{number}": moves for number, moves in enumerate(self.moves)}


def _given(part: str, columns: Mapping[str, str]) -> str:
    """The rows of a part. An array may be shorter than there are rows: then one value stands for
    all that follow."""
    cells = apart({"which": "bigint", **columns}, f"{part}_")
    values = ", ".join(
        f"coalesce(u.{name}, :{part}_{name}_same::{kind}) AS {name}"
        for name, kind in columns.items()
    )
    if part in _IN_ORDER:
        cells += f", generate_subscripts(:{part}_which::bigint[], 1) AS position"
        values += ", u.position"
    return f"(SELECT u.which, {values} FROM (SELECT {cells}) AS u) AS t"  # noqa: S608 - our names


class FlowStatements(Statements):
    """All statements of one schema, also those about flows."""

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        self.commit = lru_cache(maxsize=256)(self._commit)
        self.take = lru_cache(maxsize=3)(self._take)
        self.graph = lru_cache(maxsize=256)(self._graph)
        self.departing = lru_cache(maxsize=1)(self._departing)
        self.find = lru_cache(maxsize=2)(self._find)

    def _commit(self, shape: Shape) -> Statement:
        parts = shape.parts
        writes = [self._move(part, moves) for part, moves in shape.numbered.items()]
        writes += [self._write(part, shape) for part in _WRITE if part in parts]
        told = self._told(shape)
        if told:
            writes.append(self.fill("commit_log", told=" UNION ALL ".join(told)))
        refusals = [self.fill("moves_refuse")] if shape.moves else []
        refusals += [self._refuse(part) for part in _REFUSE if part in parts]
        text = self.fill(
            "flow_commit",
            clock=self.clock(),
            locks=self._lock(shape) if shape.moves else "",
            refusals="\n".join(refusals),
            writes="".join(writes),
        )
        return numbered(text)

    def _lock(self, shape: Shape) -> str:
        asked = (
            self.fill(
                "moves_asked",
                given=_given(part, moves.guard),
                compared=_or_null({**HELD, **SEEN}, moves.guard),
            )
            for part, moves in shape.numbered.items()
        )
        return self.fill(
            "moves_lock",
            asked=" UNION ALL ".join(asked),
            held=self.fill("guard_held"),
            seen=self.fill("guard_seen"),
        )

    def _refuse(self, part: str) -> str:
        name, compared = _REFUSE[part]
        columns = {column: PARTS[part][column] for column in compared}
        return self.fill(name, given=_given(part, columns))

    def _move(self, part: str, moves: Moves) -> str:
        beside = self.kept_attempts(part) if moves.attempts else ""
        if moves.entries:
            beside += self.fill("apply_entries", applied=part)
        return self.fill(
            "moves_write",
            part=part,
            given=_given(part, {"given_id": "text", **moves.written}),
            kept=_KEEP,
            patch="".join(f"{name} = g.to_{name}, " for name in moves.columns),
            more_g=told_of(moves.beside),
            beside=beside + (self.fill("moves_tags", part=part) if moves.tags else ""),
        )

    def _write(self, part: str, shape: Shape) -> str:
        columns = PARTS[part]
        names = _WRITE | _WRITE_NEW if "founding" in shape.parts else _WRITE
        return self.fill(
            names[part],
            given=_given(part, columns),
            columns=", ".join(columns),
            values=listed(columns, "t"),
            kept=_KEEP,
            patch=_patch([n for n in _FLOW_COLUMNS if n in shape.raised], FLOW),
        )

    def _told(self, shape: Shape) -> list[str]:
        """What a commit appends to the log."""
        told = [self.fill("members_log")] if "members" in shape.parts else []
        told += [self.fill("moves_log", part=part) for part in shape.numbered]
        if "notes" in shape.parts:
            changed = (f"SELECT id, state, attempt, epoch FROM {part}" for part in shape.numbered)  # noqa: S608 - our names
            name = "notes_log_after" if "own" in shape.parts else "notes_log"
            given = _given("notes", PARTS["notes"])
            told.append(
                self.fill(name, given=given, kept=_KEEP, changed=" UNION ALL ".join(changed))
            )
        return told

    def _take(self, look: str) -> Statement:
        """`look`: the part that finds flows."""
        text = self.fill(
            "flow_take",
            clock=self.clock(),
            entries=f"({self.entries('line_pkey')} + {self.entries('flow_due')})",
            peeked=self.fill("peeked_lines" if look == "flow_recent" else "peeked_nothing"),
            candidates=self.fill(look, of_owner=self.fill("of_owner")),
            flow_columns=listed(FLOW, "e"),
            line_columns=listed(LINE, "l"),
        )
        return numbered(text)

    def _departing(self) -> Statement:
        return numbered(self.fill("departing", flow_columns=listed(FLOW, "e")))

    def _find(self, *, unsettled: bool) -> Statement:
        text = self.fill(
            "flow_find",
            flow_columns=listed(FLOW, "e"),
            unsettled=" AND NOT f.settled" if unsettled else "",
        )
        return numbered(text)

    def _graph(self, parts: frozenset[str]) -> Statement:
        """`leaving`, `entering`, `whole`: which edges. `pages`, `groups`, `heads`, `lines`: what
        else is asked for by name."""
        edges = [name for part, name in _EDGES.items() if part in parts]
        kinds = ["graph_edges"] if edges else []
        if "groups" in parts or "leaving" in parts or "entering" in parts:
            kinds.append("graph_groups")
        if parts & {"heads", "pages", "leaving", "entering"}:
            kinds.append("graph_heads")
        kinds += [name for part, name in _ASKED.items() if part in parts]
        columns = {
            "edge_columns": listed(EDGE, "e"),
            "group_columns": listed(GROUP, "e"),
            "line_columns": listed(LINE, "l"),
        }
        found = [self.fill(name, **columns) for name in edges or ["edges_none"]]
        text = self.fill(
            "flow_graph",
            edges=" UNION ALL ".join(found),
            pages=self.fill("pages_found" if "pages" in parts else "pages_none"),
            flow_columns=listed(FLOW, "e"),
            kinds="\n".join(self.fill(kind, **columns) for kind in kinds),
        )
        return numbered(text)


def _or_null(columns: Mapping[str, str], known: Collection[str]) -> str:
    return ", ".join(
        f"t.{name}" if name in known else f"NULL::{kind} AS {name}"
        for name, kind in columns.items()
    )
