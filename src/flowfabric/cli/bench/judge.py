"""What contenders were told against what the store has: was anything lost, or held twice?

A contender writes down every write that was acknowledged, with the times it was sent and answered
by a clock that all processes of a machine share. Nothing here talks to a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Ended, Event, Secretive
from flowfabric.core.states import State


class Did(StrEnum):
    """Named as the line in the log; a renewal has none."""

    CLAIMED = "claimed"
    RENEWED = "renewed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    REPLAYED = "replayed"
    PRIORITY = "priority_changed"


class Entry(Secretive, frozen=True):
    """An acknowledged write; `epoch` and `token` are those of a lease, or empty."""

    did: Did
    id: ExecutionId
    sent_s: float
    done_s: float
    epoch: int = 0
    token: str = ""


class History(msgspec.Struct, frozen=True):
    """What the store has of one execution: its log in the order of commits, how it stands, and
    how many writes it has seen since it was handed to the contenders."""

    id: ExecutionId
    events: Sequence[Event]
    end: Ended
    writes: int


class Verdict(msgspec.Struct, frozen=True):
    lost: int
    double_leases: int


def result_of(id: ExecutionId, epoch: int) -> bytes:
    """The result that a holder gives: it says whose it is."""
    return f"{id} {epoch}".encode()


def judge(histories: Iterable[History], entries: Iterable[Entry]) -> Verdict:
    told: dict[ExecutionId, list[Entry]] = {}
    for entry in entries:
        told.setdefault(entry.id, []).append(entry)
    lost, doubles = 0, 0
    for history in histories:
        mine = told.get(history.id, [])
        lost += lost_of(history, mine)
        doubles += len(doubles_of(history, mine))
    return Verdict(lost, doubles)


def lost_of(history: History, entries: Sequence[Entry]) -> int:
    """Acknowledged writes that the store does not have."""
    told = Counter((e.did.value, e.epoch) for e in entries if e.did is not Did.RENEWED)
    found = Counter((e.kind, e.epoch if _has_holder(e.kind) else 0) for e in history.events)
    missing = (told - found).total()
    # Every write raises the revision by one, so also one without a line cannot vanish unseen.
    unseen = len(entries) - history.writes
    return max(missing, unseen, 0) + (not _has_its_result(history))


def _has_holder(kind: str) -> bool:
    return kind in (Did.CLAIMED, Did.COMPLETED)


def _has_its_result(history: History) -> bool:
    if history.end.state is not State.COMPLETED:
        return True
    epochs = [event.epoch for event in history.events if event.kind == Did.COMPLETED]
    return bool(epochs) and history.end.result == result_of(history.id, epochs[-1])


def doubles_of(history: History, entries: Sequence[Entry]) -> set[tuple[int, str]]:
    """Leases that were given away while another was alive, by epoch and token."""
    claims = [entry for entry in entries if entry.did is Did.CLAIMED]
    doubles: set[tuple[int, str]] = set()
    tokens = {claim.epoch: claim.token for claim in claims}
    for before, after in pairwise(history.events):
        if after.kind == Did.CLAIMED and before.state is State.ACTIVE:
            doubles.add((after.epoch, tokens.get(after.epoch, "")))
    epochs = Counter(claim.epoch for claim in claims)
    doubles |= {(c.epoch, c.token) for c in claims if epochs[c.epoch] > 1}
    return doubles | _overlapping(claims, entries)


def _overlapping(claims: Sequence[Entry], entries: Sequence[Entry]) -> set[tuple[int, str]]:
    """A lease was surely alive from the answer to its claim until its last accepted word. One that
    nothing was accepted for may have been over before its holder heard of it."""
    last: dict[tuple[int, str], float] = {}
    for entry in entries:
        key = (entry.epoch, entry.token)
        if entry.did in (Did.RENEWED, Did.COMPLETED):
            last[key] = max(last.get(key, entry.sent_s), entry.sent_s)
    doubles: set[tuple[int, str]] = set()
    alive_until_s = float("-inf")
    for claim in sorted(claims, key=lambda claim: claim.done_s):
        until_s = last.get((claim.epoch, claim.token))
        if until_s is None:
            continue
        if claim.done_s < alive_until_s:
            doubles.add((claim.epoch, claim.token))
        alive_until_s = max(alive_until_s, until_s)
    return doubles
