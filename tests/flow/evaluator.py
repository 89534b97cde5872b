"""A simple evaluator of flows, written from the rules and knowing nothing of the core.

It follows what was done to a flow from outside (ends, cancels, replays) and says what may have
become of it. How much a dispatcher had done before each of these is unknown, so it keeps every
state that is possible; a round of a dispatcher itself leaves nothing to chance. No test lives here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

Pair = tuple[int, int]

BLOCKED, READY, RUNNING = "blocked", "ready", "running"
COMPLETED, FAILED, CANCELLED, SKIPPED = "completed", "failed", "cancelled", "skipped"
RESULTS = ("success_only", "completion")
ENDS = frozenset({COMPLETED, FAILED, CANCELLED, SKIPPED})
PENDING, SATISFIED, IMPOSSIBLE = "pending", "satisfied", "impossible"


class Rule(NamedTuple):
    """How a member joins: how many upstreams must satisfy it, and if the rest is cancelled then."""

    need: int
    cancels: bool


@dataclass(frozen=True)
class Graph:
    """Who waits for whom and by which kind of edge. The order of the edges is that of the dict.
    `passing`: those that hand a result on."""

    size: int
    edges: dict[Pair, str]
    rules: dict[int, Rule]
    passing: frozenset[Pair] = frozenset()

    def wants_success(self, pair: Pair) -> bool:
        """Whether only a success gives the downstream what it waits for."""
        kind = self.edges[pair]
        return kind == "success_only" or (kind == "completion" and pair in self.passing)

    def entering(self, down: int) -> list[Pair]:
        return [pair for pair in self.edges if pair[1] == down]

    def leaving(self, up: int) -> list[Pair]:
        return [pair for pair in self.edges if pair[0] == up]


class Edge(NamedTuple):
    state: str = PENDING
    generation: int = 0
    is_used: bool = False


@dataclass(frozen=True)
class Situation:
    """Where a flow stands."""

    members: tuple[str, ...]
    generations: tuple[int, ...]
    edges: tuple[tuple[Pair, Edge], ...]
    groups: tuple[tuple[int, str], ...]
    owed: frozenset[Pair] = frozenset()  # a group, and one of its upstreams
    untold: frozenset[int] = frozenset()  # ends that no dispatcher has seen


def begun(graph: Graph) -> Situation:
    return Situation(
        members=tuple(BLOCKED if n in graph.rules else READY for n in range(graph.size)),
        generations=(0,) * graph.size,
        edges=tuple((pair, Edge()) for pair in graph.edges),
        groups=tuple((down, PENDING) for down in sorted(graph.rules)),
    )


def satisfies(kind: str, end: str) -> bool:
    match kind:
        case "success_only":
            return end == COMPLETED
        case "failure":
            return end in (FAILED, CANCELLED)
        case _:
            return True


class _Draft:
    """A situation that is being changed."""

    def __init__(self, graph: Graph, seen: Situation) -> None:
        self.graph = graph
        self.members = list(seen.members)
        self.generations = list(seen.generations)
        self.edges = dict(seen.edges)
        self.groups = dict(seen.groups)
        self.owed = set(seen.owed)
        self.untold = set(seen.untold)

    def done(self) -> Situation:
        return Situation(
            tuple(self.members),
            tuple(self.generations),
            tuple(self.edges.items()),
            tuple(self.groups.items()),
            frozenset(self.owed),
            frozenset(self.untold),
        )

    def end(self, n: int, how: str) -> None:
        self.members[n] = how
        self.untold.add(n)

    def is_over(self, n: int) -> bool:
        return self.members[n] in ENDS

    def count(self, down: int, state: str) -> int:
        return sum(self.edges[pair].state == state for pair in self.graph.entering(down))

    def judged(self, down: int) -> str:
        rule, width = self.graph.rules[down], len(self.graph.entering(down))
        if self.count(down, SATISFIED) >= rule.need:
            return SATISFIED
        return IMPOSSIBLE if width - self.count(down, IMPOSSIBLE) < rule.need else PENDING

    def is_needed(self, up: int, besides: int) -> bool:
        """Whether a group that is not decided wants this member to succeed."""
        waits = [pair for pair in self.graph.leaving(up) if self.edges[pair].state == PENDING]
        wants = [pair for pair in waits if self.graph.wants_success(pair)]
        return any(down != besides and self.groups[down] == PENDING for _, down in wants)


def dispatched(graph: Graph, seen: Situation) -> Situation:
    """One round: all ends that are known, what follows from them, and the cancels owed before."""
    draft = _Draft(graph, seen)
    told, draft.untold = sorted(draft.untold), set()
    was_owed, draft.owed = draft.owed, set()
    decided = _resolve(draft, told)
    for down in decided:
        if draft.groups[down] == SATISFIED and draft.members[down] == BLOCKED:
            draft.members[down] = READY
        elif draft.groups[down] == IMPOSSIBLE and not draft.is_over(down):
            draft.end(down, SKIPPED)
    for down in decided:
        if graph.rules[down].cancels:
            draft.owed |= {pair for pair in graph.entering(down) if _is_loser(draft, pair)}
    for up, down in sorted(was_owed):
        if not draft.is_over(up) and not draft.is_needed(up, besides=down):
            draft.end(up, CANCELLED)
    return draft.done()


def _resolve(draft: _Draft, told: Iterable[int]) -> list[int]:
    """Ends resolve the edges that wait for them; answers whose groups are decided by that."""
    touched: dict[int, list[Pair]] = {}
    for up in told:
        for pair in draft.graph.leaving(up):
            if draft.edges[pair].state == PENDING:
                touched.setdefault(pair[1], []).append(pair)
    decided: list[int] = []
    for down, pairs in touched.items():
        was_open = draft.groups[down] == PENDING
        room = draft.graph.rules[down].need - draft.count(down, SATISFIED) if was_open else 0
        order = {pair: place for place, pair in enumerate(draft.graph.entering(down))}
        for pair in sorted(pairs, key=order.__getitem__):
            is_met = satisfies(draft.graph.edges[pair], draft.members[pair[0]])
            state = SATISFIED if is_met else IMPOSSIBLE
            is_used = is_met and room > 0
            room -= is_met
            draft.edges[pair] = Edge(state, draft.generations[pair[0]], is_used)
        if was_open and draft.judged(down) != PENDING:
            draft.groups[down] = draft.judged(down)
            decided.append(down)
    return decided


def _is_loser(draft: _Draft, pair: Pair) -> bool:
    up, down = pair
    is_pending = draft.edges[pair].state == PENDING
    return is_pending and not draft.is_over(up) and not draft.is_needed(up, besides=down)


def ended(graph: Graph, seen: Situation, n: int, how: str) -> Situation | None:
    """It ran to an end."""
    if seen.members[n] != RUNNING:
        return None
    draft = _Draft(graph, seen)
    draft.end(n, how)
    return draft.done()


def claimed(graph: Graph, seen: Situation, n: int) -> Situation | None:
    """Somebody runs it, which he only can when nothing holds it back."""
    if seen.members[n] != READY:
        return None
    draft = _Draft(graph, seen)
    draft.members[n] = RUNNING
    return draft.done()


def stumbled(graph: Graph, seen: Situation, n: int) -> Situation | None:
    """It will be tried again; meanwhile it may have come to depend on somebody once more."""
    if seen.members[n] != RUNNING:
        return None
    draft = _Draft(graph, seen)
    draft.members[n] = BLOCKED if draft.groups.get(n) == PENDING else READY
    return draft.done()


def cancelled(graph: Graph, seen: Situation, n: int) -> Situation | None:
    if seen.members[n] in ENDS:
        return None
    draft = _Draft(graph, seen)
    draft.end(n, CANCELLED)
    return draft.done()


def replayed(graph: Graph, seen: Situation, n: int, *, below: bool) -> Situation | None:
    """It runs again; what it could not have is asked for again, from those that ran again.

    With `below`, so does everybody who had what it is from the end that is taken back. Who runs at
    this moment goes on.
    """
    if seen.members[n] not in ENDS:
        return None
    draft = _Draft(graph, seen)
    again = {n} | (_dependants(draft, n) if below else set())
    opened = {pair for pair in graph.edges if again >= set(pair)}
    opened = {pair for pair in opened if draft.edges[pair].state != PENDING}
    touched = {down for _, down in opened}
    for pair in opened:
        draft.edges[pair] = Edge()
    if draft.groups.get(n) == IMPOSSIBLE:
        touched.add(n)
        for pair in graph.entering(n):
            if draft.edges[pair].state == IMPOSSIBLE:
                draft.edges[pair] = _asked_again(draft, pair)
    for down in touched:
        _count_anew(draft, down, _asked_again if down == n else _caught_up)
    for each in again:
        _take_back(draft, each)
    return draft.done()


def _dependants(draft: _Draft, n: int) -> set[int]:
    """Who was released or skipped by this end, and by theirs; but not who would be skipped at once
    because of others that do not run again."""
    found, queue = {n}, [n]
    for up in queue:
        for pair in draft.graph.leaving(up):
            if pair[1] not in found and _made(draft, pair):
                found.add(pair[1])
                queue.append(pair[1])
    while True:
        vain = {down for down in found - {n} if _is_vain(draft, down, found)}
        if not vain:
            return found - {n}
        found -= vain


def _made(draft: _Draft, pair: Pair) -> bool:
    """Whether the downstream has what it is from this edge."""
    edge = draft.edges[pair]
    is_lost = edge.state == IMPOSSIBLE and draft.groups[pair[1]] == IMPOSSIBLE
    return edge.is_used or is_lost


def _is_vain(draft: _Draft, down: int, again: set[int]) -> bool:
    entering = draft.graph.entering(down)
    stays = [pair for pair in entering if pair[0] not in again]
    lost = sum(
        draft.edges[pair].state == IMPOSSIBLE or _is_lost_since(draft, pair) for pair in stays
    )
    has_none = len(stays) == len(entering)
    return has_none or len(entering) - lost < draft.graph.rules[down].need


def _is_stale(draft: _Draft, pair: Pair) -> bool:
    """A late success that was never used, of an upstream that has gone on since."""
    edge = draft.edges[pair]
    is_late = edge.state == SATISFIED and not edge.is_used
    return is_late and draft.generations[pair[0]] > edge.generation


def _is_lost_since(draft: _Draft, pair: Pair) -> bool:
    end = draft.members[pair[0]]
    is_over = _is_stale(draft, pair) and draft.is_over(pair[0])
    return is_over and not satisfies(draft.graph.edges[pair], end)


def _count_anew(draft: _Draft, down: int, asked: Callable[[_Draft, Pair], Edge]) -> None:
    """A late success that was never used is asked again, if its upstream has gone on since; then
    the first successes are used, as many as are needed."""
    entering = draft.graph.entering(down)
    for pair in entering:
        if _is_stale(draft, pair):
            draft.edges[pair] = asked(draft, pair)
    met = [pair for pair in entering if draft.edges[pair].state == SATISFIED]
    for place, pair in enumerate(met):
        is_used = place < draft.graph.rules[down].need
        draft.edges[pair] = draft.edges[pair]._replace(is_used=is_used)
    draft.owed = {each for each in draft.owed if each[1] != down}
    draft.groups[down] = draft.judged(down)


def _take_back(draft: _Draft, n: int) -> None:
    if draft.is_over(n):
        draft.generations[n] += 1
        draft.untold.discard(n)
    is_running = draft.members[n] == RUNNING
    waits = draft.groups.get(n) == PENDING
    draft.members[n] = RUNNING if is_running else BLOCKED if waits else READY


def _asked_again(draft: _Draft, pair: Pair) -> Edge:
    up = pair[0]
    has_run_again = draft.generations[up] > draft.edges[pair].generation and draft.is_over(up)
    if has_run_again and satisfies(draft.graph.edges[pair], draft.members[up]):
        return Edge(SATISFIED, draft.generations[up], is_used=True)
    return Edge()


def _caught_up(draft: _Draft, pair: Pair) -> Edge:
    """Nobody has asked this upstream to run again: its end counts, once it is known."""
    up = pair[0]
    if not draft.is_over(up) or up in draft.untold:
        return Edge()
    is_met = satisfies(draft.graph.edges[pair], draft.members[up])
    return Edge(SATISFIED if is_met else IMPOSSIBLE, draft.generations[up])


def outcome(graph: Graph, seen: Situation, losers: frozenset[int]) -> str:
    """What came of a flow whose members have all ended; `losers` were cancelled by a join."""
    edges = dict(seen.edges)

    def wanting(n: int) -> list[Pair]:
        return [pair for pair in graph.leaving(n) if graph.edges[pair] in RESULTS]

    def goes_on(n: int) -> bool:
        """Whether nothing is missing for want of this one."""
        return seen.members[n] != SKIPPED or _all(goes_on(down) for _, down in wanting(n))

    def is_absorbed(n: int) -> bool:
        mine = [pair for pair in graph.leaving(n) if edges[pair].generation == seen.generations[n]]
        caught = [down for up, down in mine if graph.edges[up, down] == "failure"]
        if any(seen.members[down] != SKIPPED for down in caught):
            return True
        return _all(goes_on(down) for up, down in wanting(n) if (up, down) in mine)

    bad = [n for n, end in enumerate(seen.members) if end in (FAILED, CANCELLED)]
    return "success" if all(n in losers or is_absorbed(n) for n in bad) else "failed"


def _all(judged: Iterable[bool]) -> bool:
    """All of them, and at least one."""
    found = list(judged)
    return bool(found) and all(found)


class Evaluator:
    """Every situation that a flow may be in after what was done to it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.possible = {begun(graph)}

    def claimed(self, n: int) -> None:
        self._after(claimed(self.graph, seen, n) for seen in self._anytime())

    def stumbled(self, n: int) -> None:
        self._after(stumbled(self.graph, seen, n) for seen in self._anytime())

    def ended(self, n: int, how: str) -> None:
        self._after(ended(self.graph, seen, n, how) for seen in self._anytime())

    def cancelled(self, n: int) -> None:
        self._after(cancelled(self.graph, seen, n) for seen in self._anytime())

    def replayed(self, n: int, *, below: bool) -> None:
        self._after(replayed(self.graph, seen, n, below=below) for seen in self._anytime())

    def at_rest(self) -> set[Situation]:
        """What is left when no dispatcher has anything to do."""
        return {seen for seen in self._anytime() if not seen.untold and not seen.owed}

    def _after(self, found: Iterable[Situation | None]) -> None:
        self.possible = {seen for seen in found if seen is not None}

    def _anytime(self) -> set[Situation]:
        """Whatever dispatchers may have done meanwhile, from nothing to all there is to do."""
        found = set(self.possible)
        queue = list(found)
        for seen in queue:
            after = dispatched(self.graph, seen)
            if after not in found:
                found.add(after)
                queue.append(after)
        return found
