"""The store of the simulation: the memory store, with a judge at every write.

It changes nothing. What it sees before and after a write is judged by rules of its own, not by the
guards that the store itself applies: a guard that is wrong is found here.
"""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.model import EdgeState, Flow
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution, Loaded
from flowfabric.core.retention import Purge, Purged
from flowfabric.core.states import CLAIMABLE, TERMINAL, State
from flowfabric.core.transition import Changeset, Held, Transition
from flowfabric.store.clock import SKEW_LIMIT_MS, Clock
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.invariants import RULES
from flowfabric.testing.simulation.ledger import Broken, Ledger

# Two writers may be off in opposite directions.
APART_MS = 2 * SKEW_LIMIT_MS


class WatchedStore(MemoryStore):
    """`settle_up` judges what the last call has written; the rest is judged as it is written."""

    def __init__(self, clock: Clock, ledger: Ledger) -> None:
        self._ledger = ledger
        self._touched: dict[ExecutionId, None] = {}
        self._touched_flows: dict[str, None] = {}
        super().__init__(clock)

    # -- as it is written -------------------------------------------------------------------

    def _put(self, row: Execution) -> None:
        before = self._rows.get(row.id)
        super()._put(row)
        self._touched[row.id] = None
        if row.flow:
            self._touched_flows[row.flow] = None
        if before is None:
            _require(row.rev == 1, row, f"came to be with rev {row.rev}")
            return
        self._judge_change(before, row)

    def _judge_change(self, before: Execution, row: Execution) -> None:
        _require(row.rev == before.rev + 1, row, f"rev {before.rev} became {row.rev}")
        _require(row.epoch >= before.epoch, row, f"epoch {before.epoch} became {row.epoch}")
        if row.state is State.ACTIVE and before.state is not State.ACTIVE:
            is_handed_over = before.state is State.BLOCKED_DEPENDENCIES and not row.deps_open
            is_free = before.state in CLAIMABLE or is_handed_over
            _require(is_free, row, f"was claimed while {before.state}")
            self._ledger.leased(row)
        elif row.state is State.ACTIVE:
            same = (row.lease_token, row.epoch) == (before.lease_token, before.epoch)
            _require(same, row, "changed hands without being free in between")
        if before.state in TERMINAL and row.state is not before.state:
            is_replay = row.replay_count == before.replay_count + 1 and row.state not in TERMINAL
            _require(is_replay, row, f"{before.state} became {row.state}")
        if row.state is State.COMPLETED and before.state is not State.COMPLETED:
            _require(before.state is State.ACTIVE, row, f"completed while {before.state}")
            self._ledger.completed(row.id, row.replay_count, row.attempt)

    def _write(self, transition: Transition, now_ms: int) -> None:
        before, guard = self._rows[transition.id], transition.guard
        if isinstance(guard, Held):
            is_held = before.state is State.ACTIVE and before.lease_token == guard.token
            is_alive = (before.lease_until_ms or 0) > self._clock.now_ms()
            _require(is_held and before.epoch == guard.epoch, before, f"was written by {guard}")
            _require(is_alive, before, f"was written by a lease until {before.lease_until_ms}")
        else:
            _require(before.rev == guard.rev, before, f"was written with the stale rev {guard.rev}")
        super()._write(transition, now_ms)
        row = self._rows[transition.id]
        is_loss = before.state is State.ACTIVE and row.state is not State.ACTIVE
        if is_loss and isinstance(guard, Held):
            self._ledger.handed_back(before, row, self._payloads[row.id])
        elif is_loss:
            _require(row.epoch > before.epoch, row, "lost its lease and keeps its epoch")

    def _commit(self, changes: Changeset, now_ms: int) -> bool:
        seen = {each.id: self.flow_of(each.id) for each in changes.flows}
        done = super()._commit(changes, now_ms)
        if done:
            for flow in changes.new_flows:
                self._touched_flows[flow.id] = None
            for each in changes.flows:
                self._touched_flows[each.id] = None
                was = seen[each.id]
                if was is None or each.rev not in (None, was.rev):
                    known = None if was is None else was.rev
                    raise Broken(f"flow {each.id}: rev {known}, written with rev {each.rev}")
        return done

    # -- what goes --------------------------------------------------------------------------

    async def purge(self, purge: Purge) -> Purged:
        now_ms = self._clock.now_ms() + SKEW_LIMIT_MS
        rows = {each.id: self._rows.get(each.id) for each in purge.executions}
        flows = {each.id: self.flow_of(each.id) for each in purge.flows}
        members = {id: self.members_of(id) for id in flows}
        answer = await super().purge(purge)
        for id in answer.gone:
            row = rows.get(ExecutionId(id))
            if row is not None:
                self._judge_removed(row, None, now_ms)
        for flow, whose in members.items():
            for row in whose:
                if row.id not in self._rows:
                    self._judge_removed(row, flows[flow], now_ms)
        self._ledger.gone.update(answer.gone)
        return answer

    def _judge_removed(self, row: Execution, flow: Flow | None, now_ms: int) -> None:
        purge_ms = row.purge_ms if flow is None else flow.purge_ms
        is_due = purge_ms is not None and purge_ms <= now_ms
        is_staged = flow is not None and not flow.is_open and not flow.settled
        _require(is_due, row, f"was removed at {now_ms}, to be kept until {purge_ms}")
        _require(row.state in TERMINAL or is_staged, row, f"was removed while {row.state}")
        self._ledger.removed(row.id)

    # -- after each call --------------------------------------------------------------------

    def settle_up(self) -> list[FlowId]:
        """Judge the rows that the call has written; answers the flows that it is about."""
        now_ms = self._clock.now_ms() + SKEW_LIMIT_MS
        for id in self._touched:
            row = self._rows.get(id)
            if row is None:
                continue
            loaded = self.loaded_of(row)
            said = [sentence for rule in RULES for sentence in rule(loaded, now_ms)]
            _require(not said, row, "; ".join(said))
        self._touched.clear()
        flows = [FlowId(flow) for flow in self._touched_flows]
        self._touched_flows.clear()
        return flows

    def loaded_of(self, row: Execution) -> Loaded:
        """The row and its attempts, with the difference between two clocks taken out of them."""
        attempts = self._attempts.get(row.id, {})
        told = [attempts[number] for number in sorted(attempts)]
        for place, each in enumerate(told):
            began, ended = each.started_ms, each.ended_ms
            if began is not None and ended is not None and ended < began <= ended + APART_MS:
                told[place] = msgspec.structs.replace(each, started_ms=ended)
        return Loaded(row, attempts=tuple(told))

    # -- for judges of flows ----------------------------------------------------------------

    @property
    def rows(self) -> dict[ExecutionId, Execution]:
        return self._rows

    @property
    def crowd(self) -> int:
        """How many executions have not ended, without those of flows that were never opened."""
        rows = self._rows.values()
        return sum(row.state not in TERMINAL and self._flows.is_open(row.flow) for row in rows)

    @property
    def written(self) -> int:
        """How many lines the log has ever had."""
        return self._log.last

    def waiting_for_replays(self) -> list[ExecutionId]:
        """Members that only an operator can help: all they wait for is over in this generation."""
        return [
            row.id
            for row in self._rows.values()
            if row.state is State.BLOCKED_DEPENDENCIES and self._waits_for_replay(row.id)
        ]

    def _waits_for_replay(self, id: ExecutionId) -> bool:
        edges = self._flows._entering.get(id, {}).values()
        pending = [edge for edge in edges if edge.state is EdgeState.PENDING]
        ups = [(self._rows[edge.upstream], edge.generation) for edge in pending]
        return bool(ups) and all(
            up.state in TERMINAL and up.replay_count < generation for up, generation in ups
        )

    @property
    def flow_ids(self) -> list[FlowId]:
        return [FlowId(id) for id in self._flows._flows]

    def flow_of(self, id: FlowId) -> Flow | None:
        return self._flows._flows.get(id)

    def members_of(self, id: FlowId) -> list[Execution]:
        return [self._rows[member] for member in self._flows._members.get(id, {})]


def _require(holds: bool, row: Execution, otherwise: str) -> None:
    if not holds:
        raise Broken(f"{row.id} {otherwise}")
