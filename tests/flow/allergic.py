"""A store that fails, as none should, whenever a call is about one record. No test lives here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from flowfabric.core.flow.views import Sight, View
from flowfabric.core.retention import Purge, Purged
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.store import Store
from flowfabric.testing import FaultyStore, Verb


class Allergic(FaultyStore):
    """Which record, and in which verbs. What only puts the record off is not refused: whoever is
    in trouble can still be moved out of the way."""

    def __init__(self, inner: Store, doomed: str, verbs: Collection[Verb]) -> None:
        super().__init__(inner)
        self.doomed = doomed
        self.verbs = verbs
        self.refused = 0

    def _taste(self, verb: Verb, items: Sequence[object], is_about: Callable[..., bool]) -> None:
        if verb in self.verbs and any(is_about(each) for each in items):
            self.refused += 1
            raise ValueError("melted")

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        self._taste(Verb.GRAPH, sights, self._looks_closely)
        return await super().graph(sights)

    def _looks_closely(self, sight: Sight) -> bool:
        closely = sight.heads or sight.leaving or sight.members or sight.tally or sight.whole
        return sight.flow == self.doomed and bool(closely)

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        self._taste(Verb.COMMIT_EACH, batch, self._changes)
        return await super().commit_each(batch, now_ms)

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        self._taste(Verb.COMMIT, [changes], self._changes)
        return await super().commit(changes, now_ms)

    def _changes(self, changes: Changeset) -> bool:
        patches = [each.patch for each in changes.flows if each.id == self.doomed]
        puts_off = any(patch.get("failures") or set(patch) == {"purge_ms"} for patch in patches)
        new = [each.id for each in changes.new_flows]
        return (bool(patches) or self.doomed in new) and not puts_off

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        self._taste(Verb.APPLY, transitions, self._moves)
        return await super().apply(transitions, now_ms, urgent=urgent)

    def _moves(self, transition: Transition) -> bool:
        puts_off = bool(transition.patch.get("failures")) or set(transition.patch) == {"purge_ms"}
        return transition.id == self.doomed and not puts_off

    async def purge(self, purge: Purge) -> Purged:
        self._taste(Verb.PURGE, [*purge.executions, *purge.flows], lambda e: e.id == self.doomed)
        return await super().purge(purge)
