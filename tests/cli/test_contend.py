"""Contention: a sound store is found sound, and every planted fault is found."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence

import msgspec
import pytest
from typer.testing import CliRunner

from flowfabric.cli.bench import contend as module
from flowfabric.cli.bench.contend import Arena, shares
from flowfabric.cli.bench.contender import LANE, TASK, Contender, RefereedStore
from flowfabric.cli.bench.judge import Did, Entry, History, Verdict, judge, result_of
from flowfabric.cli.main import app
from flowfabric.core.model import Claim, Ended, Event, Lease
from flowfabric.core.states import State
from flowfabric.core.transition import Applied, Rejected, Transition
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.store import Store
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.build import execution_id
from tests.cli.command import ff, ff_process

VERBS = 400
ID = execution_id(0)


async def fought(store: Store) -> Verdict:
    """What is found after three contenders had their way with a store."""
    refereed = RefereedStore(store)
    engine = Engine(refereed)
    await engine.open()
    arena = Arena(engine)
    await arena.prepare()
    entries: list[Entry] = []
    for seed in range(3):
        contender = Contender(refereed, engine, arena.ids, seed)
        await contender.run(VERBS)
        entries += contender.entries
    assert {entry.did for entry in entries} == set(Did)
    return judge(await arena.histories(), entries)


async def test_a_sound_store_is_found_sound() -> None:
    assert await fought(MemoryStore()) == Verdict(0, 0)


class Forgetful(MemoryStore):
    """Says of every fifth guarded write that it was done, and does not do it."""

    forgets = Did.COMPLETED
    seen = 0

    def _apply(self, transition: Transition, now_ms: int) -> Applied | Rejected:
        kind = transition.log.kind if transition.log else Did.RENEWED
        self.seen += kind == self.forgets
        if kind == self.forgets and self.seen % 5 == 0:
            return Applied(transition.id)
        return super()._apply(transition, now_ms)


class ForgetfulOfRenewals(Forgetful):
    """There is no line in the log to miss; only the count of writes tells."""

    forgets = Did.RENEWED


class Mixed(MemoryStore):
    """Keeps another result than the one it was given."""

    def _write(self, transition: Transition, now_ms: int) -> None:
        if transition.attempt is not None and transition.attempt.result is not None:
            attempt = msgspec.structs.replace(transition.attempt, result=b"somebody else's")
            transition = msgspec.structs.replace(transition, attempt=attempt)
        super()._write(transition, now_ms)


class Generous(MemoryStore):
    """Gives work away that somebody holds."""

    async def claim(self, ask: Claim) -> list[Lease]:
        held = [row for row in self._rows.values() if row.state is State.ACTIVE]
        if not held:
            return await super().claim(ask)
        return [Lease(self._take(held[0], ask), b"")]


class Repetitive(MemoryStore):
    """Answers every second claim with what it answered to the one before."""

    last: Sequence[Lease] = ()

    async def claim(self, ask: Claim) -> list[Lease]:
        if self.last:
            again, self.last = list(self.last), ()
            return again
        self.last = await super().claim(ask)
        return list(self.last)


@pytest.mark.parametrize("kind", [Forgetful, ForgetfulOfRenewals, Mixed, Repetitive])
async def test_a_store_that_loses_what_it_acknowledged_is_found(kind: type[MemoryStore]) -> None:
    assert (await fought(kind())).lost > 0


@pytest.mark.parametrize("kind", [Generous, Repetitive])
async def test_a_store_that_gives_work_away_twice_is_found(kind: type[MemoryStore]) -> None:
    assert (await fought(kind())).double_leases > 0


def event(kind: str, state: State, epoch: int) -> Event:
    return Event(
        cursor="", execution=ID, at_ms=0, kind=kind, state=state, attempt=0, epoch=epoch, detail={}
    )


def history(*events: Event, state: State = State.ACTIVE, writes: int = 10) -> History:
    return History(ID, events, Ended(ID, state, "", "", b""), writes)


def claimed(epoch: int, done_s: float) -> Entry:
    return Entry(Did.CLAIMED, ID, done_s - 1, done_s, epoch, f"token-{epoch}")


def renewed(epoch: int, sent_s: float) -> Entry:
    return Entry(Did.RENEWED, ID, sent_s, sent_s + 1, epoch, f"token-{epoch}")


LINES = (
    event("claimed", State.ACTIVE, 1),
    event("cancelled", State.CANCELLED, 2),
    event("replayed", State.WAITING, 2),
    event("claimed", State.ACTIVE, 3),
)


def test_leases_that_overlap_in_time_are_found_though_the_log_looks_right() -> None:
    entries = [claimed(1, 10), renewed(1, 30), claimed(3, 20), renewed(3, 40)]
    assert judge([history(*LINES)], entries) == Verdict(0, 1)


def test_leases_that_follow_each_other_are_fine() -> None:
    entries = [claimed(1, 10), renewed(1, 15), claimed(3, 20), renewed(3, 40)]
    assert judge([history(*LINES)], entries) == Verdict(0, 0)


def test_a_lease_that_was_over_before_its_holder_heard_of_it_is_fine() -> None:
    entries = [claimed(1, 25), claimed(3, 20), renewed(3, 40)]
    assert judge([history(*LINES)], entries) == Verdict(0, 0)


def test_a_result_is_that_of_the_last_completion() -> None:
    lines = (event("claimed", State.ACTIVE, 1), event("completed", State.COMPLETED, 1))
    right = Ended(ID, State.COMPLETED, "", "", result_of(ID, 1))
    wrong = msgspec.structs.replace(right, result=result_of(ID, 2))
    assert judge([History(ID, lines, right, 2)], []) == Verdict(0, 0)
    assert judge([History(ID, lines, wrong, 2)], []) == Verdict(1, 0)


async def test_guards_that_refuse_are_counted() -> None:
    store = RefereedStore(MemoryStore())
    engine = Engine(store)
    await engine.open()
    arena = Arena(engine)
    await arena.prepare()
    lease = (await engine.claim([LANE], 1, tasks=[TASK], worker="w", token="t" * 16, ttl_ms=5_000))[
        0
    ]
    await engine.cancel(lease.id)
    assert store.conflicts == 0
    answers = await engine.renew([lease], 5_000)
    assert answers[0].error is not None
    assert store.conflicts == 1


async def test_only_a_request_that_found_something_to_do_has_written() -> None:
    store = RefereedStore(MemoryStore())
    engine = Engine(store)
    await engine.open()
    arena = Arena(engine)
    await arena.prepare()
    for request in ("first", "second/half"):
        await engine.change_priority(arena.ids[0], 3, request=request)
    assert [store.has_written(request) for request in ("first", "second/half")] == [True, False]
    await engine.cancel(arena.ids[0], request="third/half")
    assert store.has_written("third/half")


def test_every_verb_has_somebody_to_do_it() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(1, 2) == [1, 0]


def test_processes_contend_and_do_no_harm() -> None:
    ran = ff_process(
        *("bench", "contend", "--store", "sqlite?synchronous=NORMAL"),
        *("--processes", "2", "--verbs", "200", "--json"),
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    figures = json.loads(ran.stdout)
    assert list(figures) == ["verbs_per_s", "conflicts", "lost", "double_leases"]
    assert figures["verbs_per_s"] > 0
    assert (figures["lost"], figures["double_leases"]) == (0, 0)


def test_memory_is_no_place_for_processes() -> None:
    ran = ff("bench", "contend", "--store", "memory")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "other processes cannot open memory://" in ran.stderr


def test_harm_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "judge", lambda histories, entries: Verdict(1, 0))
    arguments = ["--processes", "1", "--verbs", "5", "--store", "sqlite", "--json"]
    ran = CliRunner().invoke(app, ["bench", "contend", *arguments])
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["lost"] == 1


def test_a_contender_that_falls_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    ran = CliRunner().invoke(app, ["bench", "contend", "--store", "sqlite", "--verbs", "5"])
    assert isinstance(ran.exception, FlowFabricError)
    assert "a contending process failed" in str(ran.exception)
