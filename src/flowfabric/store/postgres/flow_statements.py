"""Statements about flows, made of the parts that one call needs and kept for the next like it.

A commit is one statement however many changesets and kinds of records are in it, and so is a look
at parts of flows: one trip, and one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from flowfabric.core.flow.changes import WRITABLE as FLOW_WRITABLE
from flowfabric.core.model import WRITABLE
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS
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
from flowfabric.store.postgres.statements import Statement, Statements, numbered

GUARD = {
    "given_id": "text",
    "seen_rev": "bigint",
    "held_epoch": "bigint",
    "held_token": "text",
    "held_started": "boolean",
}
MOVE = {
    "given_id": "text",
    "named": "bigint",
    "tags": "text",
    "line_kind": "text",
    "line_detail": "text",
}
KEPT = {f"kept_{name}": sql_type(name) for name in ATTEMPT_COLUMNS}

# What a commit can hold, in the order of its parts; each row says of which changeset it is.
PARTS: Mapping[str, Mapping[str, str]] = {
    "moves": GUARD | MOVE,
    "new_flows": FLOW,
    "flows": {"id": "text", "rev": "bigint", "patch": "text"},
    "members": MEMBER,
    "edges": EDGE,
    "resolved": RESOLUTION,
    "groups": GROUP,
    "lines": LINE,
    "done": DONE,
    "notes": {"execution": "text", "kind": "text", "detail": "text"},
}
_REFUSE = {
    "moves": ("moves_refuse", ("given_id",)),
    "new_flows": ("new_flows_refuse", ("id",)),
    "flows": ("flows_refuse", ("id", "rev")),
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
_LOG = {"members": "members_log", "moves": "moves_log", "notes": "notes_log"}
_EDGES = {"leaving": "edges_leaving", "entering": "edges_entering", "whole": "edges_whole"}
_ASKED = {"pages": "graph_pages", "lines": "graph_lines", "tally": "graph_tally"}
_COUNTED = {"new_flows": "founded", "members": "created"}
_IN_ORDER = ("moves", "notes")
_KEEP = "t.which NOT IN (SELECT which FROM refused)"

_HEAD_COLUMNS = [name for name in COLUMNS if any(name in names for names in WRITABLE.values())]
_FLOW_COLUMNS = [name for name in FLOW if name in FLOW_WRITABLE]


def _patch(names: Iterable[str], kinds: Mapping[str, str]) -> str:
    """A column that a patch does not name is written as it was; followed by a comma."""
    return "".join(
        f"{name} = CASE WHEN g.given ? '{name}' THEN (g.given ->> '{name}')::{kinds[name]}"
        f" ELSE e.{name} END, "
        for name in names
    )


# Which columns a patch of an execution names is told by bits.
BITS = {name: 1 << place for place, name in enumerate(_HEAD_COLUMNS)}


def moved_columns(moved: Collection[str]) -> dict[str, str]:
    """Where the values of these columns are given, one for each execution."""
    return {f"to_{name}": sql_type(name) for name in _HEAD_COLUMNS if name in moved}


def _move_patch(shape: Shape) -> str:
    """The same for executions: most columns are named by all patches of a commit."""
    return "".join(
        f"{name} = g.to_{name}, "
        if name in shape.always
        else f"{name} = CASE WHEN g.named & {BITS[name]} <> 0 THEN g.to_{name} ELSE e.{name} END, "
        for name in _HEAD_COLUMNS
        if name in shape.moved
    )


class Shape(NamedTuple):
    """What a commit is made of: parts by name (also `attempts`, `tags`, and `own`: notes about what
    is changed, too), the columns that its patches of executions name, those that all of them do,
    and the columns that its patches of flows name."""

    parts: frozenset[str]
    moved: frozenset[str]
    always: frozenset[str]
    raised: frozenset[str]


def _given(part: str, columns: Mapping[str, str]) -> str:
    """The rows of a part. An array may be shorter than there are rows: then one value stands for
    all that follow. They are taken apart in a list of results, not as a table: that would write
    down every array by itself first."""
    every = {"which": "bigint", **columns}
    cells = ", ".join(f"unnest(:{part}_{name}::{kind}[]) AS {name}" for name, kind in every.items())
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
        told = [part for part in _LOG if part in parts]
        writes = [self._move(shape)] if "moves" in parts else []
        writes += [self._write(part, shape) for part in _WRITE if part in parts]
        if told:
            lines = " UNION ALL ".join(self._told(part, parts) for part in told)
            writes.append(self.fill("commit_log", told=lines))
        text = self.fill(
            "flow_commit",
            clock=self.clock(),
            locks=self._lock() if "moves" in parts else "",
            refusals="\n".join(self._refuse(part) for part in _REFUSE if part in parts),
            writes="".join(writes),
            raced=" OR ".join(_short(part) for part in _COUNTED if part in parts) or "false",
        )
        return numbered(text)

    def _lock(self) -> str:
        return self.fill(
            "moves_lock",
            given=_given("moves", GUARD),
            held=self.fill("guard_held"),
            seen=self.fill("guard_seen"),
        )

    def _refuse(self, part: str) -> str:
        name, compared = _REFUSE[part]
        columns = {column: PARTS[part][column] for column in compared}
        return self.fill(name, given=_given(part, columns))

    def _move(self, shape: Shape) -> str:
        attempts = KEPT if "attempts" in shape.parts else {}
        beside = self.kept_attempts() if attempts else ""
        return self.fill(
            "moves_write",
            given=_given("moves", MOVE | moved_columns(shape.moved) | attempts),
            kept=_KEEP,
            patch=_move_patch(shape),
            more_g=f", {listed(attempts, 'g')}" if attempts else "",
            beside=beside + (self.fill("moves_tags") if "tags" in shape.parts else ""),
        )

    def _write(self, part: str, shape: Shape) -> str:
        columns = PARTS[part]
        return self.fill(
            _WRITE[part],
            given=_given(part, columns),
            columns=", ".join(columns),
            values=listed(columns, "t"),
            kept=_KEEP,
            patch=_patch([n for n in _FLOW_COLUMNS if n in shape.raised], FLOW),
        )

    def _told(self, part: str, parts: frozenset[str]) -> str:
        name = "notes_log_after" if part == "notes" and "own" in parts else _LOG[part]
        return self.fill(name, given=_given(part, PARTS[part]), kept=_KEEP)

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


def _short(part: str) -> str:
    """Whether fewer were written than were to be: somebody else wrote one meanwhile."""
    return (
        f"(SELECT count(*) FROM {_COUNTED[part]}) < "  # noqa: S608 - our names
        f"(SELECT count(*) FROM unnest(:{part}_which::bigint[]) AS t (which) WHERE {_KEEP})"
    )
