"""Records of flows to and from what the server keeps.

A flow is a hash of its columns. Edges, groups and lines are small texts in hashes: JSON of the
columns that are not as usual and that their names do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from flowfabric.core.flow.changes import FlowPatch, Note, Resolution
from flowfabric.core.flow.model import MISSING, Edge, EdgeState, Flow, Group, Line, Unreadable
from flowfabric.core.flow.views import Pending, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId, execution_id
from flowfabric.core.model import Execution, Malformed, Value
from flowfabric.store.damage import in_column, problem_of
from flowfabric.store.valkey.codec import UUID_LENGTH, cell_of, pairs_of, parsers_of, uuid_of
from flowfabric.store.valkey.heads import UNREADABLE, head_or_malformed, usual_of
from flowfabric.store.valkey.link import Cell

T = TypeVar("T", Edge, Group, Line)
Name = Mapping[str, str | int]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_in_order = attrgetter("upstream", "downstream", "group")

_FLOW_USUAL = usual_of(Flow)
_FLOW_PARSERS = parsers_of(Flow)
_USUAL: dict[type[msgspec.Struct], dict[str, object]] = {
    kind: usual_of(kind) for kind in (Edge, Group, Line)
}


def _teller(kind: type[msgspec.Struct], names: Sequence[str]) -> Callable[[object], str]:
    """Columns of a record that are kept together, as a text: those that are not as usual, nothing
    if all of them are."""
    values_of = attrgetter(*names)
    usual = [(name, _USUAL[kind][name]) for name in names]

    # Records that are written at one time are mostly alike; what is equal but of another type
    # (5 and 5.0, 1 and True) is not.
    @lru_cache(maxsize=512, typed=True)
    def told(*values: object) -> str:
        named = zip(usual, values, strict=True)
        columns = {name: value for (name, normal), value in named if value != normal}
        return _encode(columns).decode() if columns else ""

    return lambda record: told(*values_of(record))


def _all_but(kind: type[msgspec.Struct], *names: str) -> list[str]:
    return [name for name in _USUAL[kind] if name not in names]


_drawn = _teller(Edge, ("kind", "position", "argument", "created_ms", "creator"))
_ended = _teller(Edge, ("state", "generation", "attempt", "outcome", "resolved_ms"))
_group = _teller(Group, _all_but(Group, "flow", "downstream", "name"))
_line = _teller(Line, _all_but(Line, "flow", "at_ms", "id"))


# -- writing ------------------------------------------------------------------------------------


def flow_cells(flow: Flow | FlowPatch) -> list[Cell]:
    """Its id, the revision it was seen with (nothing: it is new; a star: it is there), and its
    columns."""
    if isinstance(flow, FlowPatch):
        return [flow.id, "*" if flow.rev is None else flow.rev, *_patch_cells(flow.patch)]
    columns = msgspec.structs.asdict(flow)
    del columns["id"]
    told = {name: value for name, value in columns.items() if value != _FLOW_USUAL[name]}
    return [flow.id, "", *_patch_cells(told)]


def _patch_cells(patch: Mapping[str, Value]) -> list[Cell]:
    """How many columns are set, those, how many go back to what is usual, those."""
    told: list[Cell] = []
    gone: list[Cell] = []
    for name, value in patch.items():
        if value is None or value == _FLOW_USUAL[name]:
            gone.append(name)
        else:
            told += (name, cell_of(value))
    return [len(told) // 2, *told, len(gone), *gone]


def edge_cells(flow: str, edge: Edge | Resolution) -> tuple[Cell, ...]:
    """Its name, how it was drawn (nothing: it is there), whether it is pending, and its end."""
    return (
        flow,
        uuid_of(edge.downstream),
        uuid_of(edge.upstream),
        edge.group,
        (_drawn(edge) or "{}") if isinstance(edge, Edge) else "",
        int(edge.state is EdgeState.PENDING),
        _ended(edge),
    )


def group_cells(group: Group) -> tuple[Cell, ...]:
    return uuid_of(group.downstream), group.name, _group(group) or "{}"


def line_cells(line: Line) -> tuple[Cell, ...]:
    return line.flow, line_name(line), line.next_try_ms, _line(line)


def done_cells(line: Line) -> tuple[Cell, ...]:
    return line.flow, line_name(line)


def line_name(line: Line) -> str:
    """Names of one flow sort by time; what is equal then goes by id."""
    return f"{line.at_ms}:{line.id}"


def note_cells(note: Note) -> tuple[Cell, ...]:
    return uuid_of(note.execution), note.kind, _encode(note.detail).decode()


# -- reading ------------------------------------------------------------------------------------


class _Reader:
    """Reads records of one flow; those that cannot be read are put aside by name."""

    def __init__(self, flow: FlowId, partition: int = 0) -> None:
        self._flow = flow
        self._partition = partition
        self.unreadable: list[Unreadable] = []

    def id(self, uuid: bytes | str) -> ExecutionId:
        text = uuid if isinstance(uuid, str) else uuid.decode()
        return execution_id(self._partition, text)

    def flow(self, reply: Any) -> Flow | None:
        if not reply:
            self.unreadable.append(Unreadable("flow", self._flow, MISSING))
            return None
        fields: dict[str, Any] = {}
        for name, cell in pairs_of(reply).items():
            parse = _FLOW_PARSERS.get(name)
            try:
                if parse is not None:
                    fields[name.decode()] = parse(cell)
            except UNREADABLE:
                problem = in_column(
                    name.decode(), f"Invalid value {cell.decode(errors='replace')!r}"
                )
                self.unreadable.append(Unreadable("flow", self._flow, problem))
                return None
        try:
            return Flow(**fields, id=self._flow)
        except TypeError as error:
            self._lose("flow", self._flow, error)
            return None

    def edges(self, reply: Any) -> list[Edge]:
        found: dict[tuple[str, str, str], Edge] = {}
        for downstream, flat in reply:
            cells = pairs_of(flat)
            for field, text in cells.items():
                what, _, name = field.partition(b":")
                if what == b"edge":
                    ended = cells.get(b"end:" + name, b"")
                    edge = self._edge(self.id(downstream), name.decode(), (text, ended))
                    if edge is not None:
                        found[_in_order(edge)] = edge
        return [found[key] for key in sorted(found)]

    def _edge(self, downstream: ExecutionId, name: str, texts: Sequence[bytes]) -> Edge | None:
        upstream, group = self.id(name[:UUID_LENGTH]), name[UUID_LENGTH + 1 :]
        named: Name = {"upstream": upstream, "downstream": downstream, "group": group}
        if not texts[0]:
            # The index of what leaves the upstream names it, and nobody has drawn it.
            lost = Unreadable("edge", f"{upstream} {downstream} {group}", MISSING)
            self.unreadable.append(lost)
            return None
        return self._record(Edge, f"{upstream} {downstream} {group}", named, texts)

    def groups(self, reply: Any) -> list[Group]:
        found: list[Group] = []
        for uuid, flat in reply:
            downstream = self.id(uuid)
            for field, text in sorted(pairs_of(flat).items()):
                name = field.decode()
                named: Name = {"downstream": downstream, "name": name}
                group = self._record(Group, f"{downstream} {name}", named, (text,))
                found += [] if group is None else [group]
        return found

    def lines(self, reply: Any) -> list[Line]:
        found: list[Line] = []
        for name, text in reply:
            at_ms, _, id = name.decode().partition(":")
            # What is no time is left as it is, for the record to refuse.
            named: Name = {"at_ms": int(at_ms) if at_ms.isdecimal() else at_ms, "id": id}
            line = self._record(Line, id, named, (text,))
            found += [] if line is None else [line]
        return found

    def heads(self, reply: Any) -> dict[ExecutionId, Execution]:
        found: dict[ExecutionId, Execution] = {}
        for uuid, flat in reply:
            head = head_or_malformed(self.id(uuid), flat)
            if isinstance(head, Malformed):
                self.unreadable.append(Unreadable("execution", head.id, head.problem))
            elif head is not None:
                found[head.id] = head
        return found

    def _record(self, kind: type[T], name: str, named: Name, texts: Sequence[bytes]) -> T | None:
        """Columns that a newer program wrote are passed over."""
        usual = _USUAL[kind]
        try:
            told = [_decode(text) for text in texts if text]
            fields = {key: value for part in told for key, value in part.items()}
            values = {**usual, **fields, **named, "flow": self._flow}
            return msgspec.convert([values[column] for column in usual], kind)
        except UNREADABLE as error:
            self._lose(kind.__name__.lower(), name, error, tuple(usual))
            return None

    def _lose(self, kind: str, name: str, error: Exception, columns: Sequence[str] = ()) -> None:
        self.unreadable.append(Unreadable(kind, name, problem_of(error, columns)))


def view_of(sight: Sight, partition: int, reply: Any) -> View:
    if not reply:
        return View(flow=None)
    row, edges, groups, heads, members, lines, tally = reply
    reader = _Reader(sight.flow, partition)
    flow = reader.flow(row)
    if flow is None:
        return View(flow=None, unreadable=reader.unreadable)
    return View(
        flow=flow,
        edges=reader.edges(edges),
        groups=reader.groups(groups),
        heads=reader.heads(heads),
        members=[reader.id(uuid) for uuid in members],
        lines=reader.lines(lines),
        tally=_tally(tally),
        unreadable=reader.unreadable,
    )


def _tally(reply: Any) -> dict[str, int]:
    """How many members are in each state that has any."""
    counts = {state.decode(): int(count) for state, count in pairs_of(reply).items()}
    return {state: count for state, count in counts.items() if count > 0}


def pending_of(reply: Any, until_ms: int) -> dict[FlowId, Pending | Unreadable]:
    """Flows that were taken, with their lines; one that cannot be read is held all the same."""
    found: dict[FlowId, Pending | Unreadable] = {}
    for id, row, lines in reply:
        name = FlowId(id.decode())
        reader = _Reader(name)
        flow = reader.flow(row)
        if flow is None:
            found[name] = reader.unreadable[0]
        else:
            taken = msgspec.structs.replace(flow, busy_until_ms=until_ms)
            found[name] = Pending(taken, reader.lines(lines), reader.unreadable)
    return found


def flows_of(reply: Any) -> tuple[str, dict[str, Flow | Unreadable]]:
    """After which id to go on, nothing at the end; and the flows up to there."""
    last, rows = reply
    found: dict[str, Flow | Unreadable] = {}
    for id, row in rows:
        reader = _Reader(FlowId(id.decode()))
        flow = reader.flow(row)
        found[id.decode()] = flow or reader.unreadable[0]
    return last.decode(), found


def departing_flows_of(reply: Any) -> list[tuple[int, str, Flow | None]]:
    """When each may go, its id, and itself; one that cannot be read is left where it is."""
    return [
        (int(at_ms), id.decode(), _Reader(FlowId(id.decode())).flow(row))
        for id, at_ms, row in reply
    ]


def waiting_of(reply: Any) -> tuple[str, str, list[FlowId]]:
    """Version of the partition, when its first flow has its time, and who has it now."""
    version, first, ids = reply
    return version.decode(), first.decode(), [FlowId(id.decode()) for id in ids]


def flags_of(reply: Any) -> list[bool]:
    """Which changesets were written; that of lanes is alone."""
    return [flag == 1 for flag in (reply if isinstance(reply, list) else [reply])]
