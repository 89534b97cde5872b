"""Contention: processes that fight over a few executions, and the proof that it did no harm."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from flowfabric.cli.bench.contender import LANE, READY, TASK, Orders, Report
from flowfabric.cli.bench.judge import Entry, History, judge
from flowfabric.cli.bench.targets import Target
from flowfabric.core.ids import ExecutionId, execution_id, uuid7
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Event, Feed, Want
from flowfabric.core.policy import Policy, encode_policy
from flowfabric.engine.engine import Engine
from flowfabric.errors import Corrupt, FlowFabricError, InvalidInput
from flowfabric.store import open_store

EXECUTIONS = 24
_REPLAYS = 1_000_000
_RANDOM_BITS = 74
_PAGE = 1_000


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """`conflicts`: guarded writes that came too late. `lost`: acknowledged writes that the store
    does not have. `double_leases`: leases given away while another was alive."""

    verbs_per_s: float
    conflicts: int
    lost: int
    double_leases: int


class Arena:
    """The executions that are fought over, before and after."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ids: list[ExecutionId] = []
        self._revs: dict[ExecutionId, int] = {}

    async def prepare(self) -> None:
        policy = encode_policy(Policy(max_replay_count=_REPLAYS))
        orders = [
            Order(
                id=self._new_id(number),
                namespace=self.engine.namespace,
                lane=LANE,
                kind=TASK,
                payload=b"{}",
                policy=policy,
            )
            for number in range(EXECUTIONS)
        ]
        await self.engine.submit(orders)
        self.ids = [order.id for order in orders]
        self._revs = await self._current_revs()

    def _new_id(self, number: int) -> ExecutionId:
        unique = uuid7(self.engine.clock.now_ms(), secrets.randbits(_RANDOM_BITS))
        return execution_id(number % self.engine.counts.flow, unique)

    async def _current_revs(self) -> dict[ExecutionId, int]:
        loaded = await self.engine.store.load(Want(ids=self.ids))
        revs = {one.head.id: one.head.rev for one in loaded if one is not None}
        if len(revs) != len(self.ids):
            raise Corrupt("submitted executions are missing")
        return revs

    async def histories(self) -> list[History]:
        revs = await self._current_revs()
        ends = await self.engine.store.endings(self.ids)
        return [
            History(id, await self._events(id), end, revs[id] - self._revs[id])
            for id, end in zip(self.ids, ends, strict=True)
            if end is not None
        ]

    async def _events(self, id: ExecutionId) -> list[Event]:
        events: list[Event] = []
        while True:
            after = events[-1].cursor if events else ""
            page = await self.engine.store.tail(Feed(after=after, execution=id, limit=_PAGE))
            events += page
            if len(page) < _PAGE:
                return events


async def run(target: Target, *, processes: int, verbs: int) -> Contention:
    if target.kind == "memory":
        raise InvalidInput(
            "other processes cannot open memory://", field="store", hint="use sqlite or a server"
        )
    engine = Engine(open_store(target.url), namespace=f"bench-{secrets.token_hex(4)}")
    await engine.open()
    try:
        arena = Arena(engine)
        await arena.prepare()
        with tempfile.TemporaryDirectory(prefix="flowfabric-contend-") as folder:
            orders = _orders(target, arena, Path(folder), shares(verbs, processes))
            seconds, reports = await asyncio.to_thread(fight, orders)
            entries = [entry for order in orders for entry in _journal(order)]
        verdict = judge(await arena.histories(), entries)
    finally:
        await engine.close()
    return Contention(
        verbs_per_s=verbs / seconds,
        conflicts=sum(report.conflicts for report in reports),
        lost=verdict.lost,
        double_leases=verdict.double_leases,
    )


def shares(verbs: int, processes: int) -> list[int]:
    return [verbs // processes + (number < verbs % processes) for number in range(processes)]


def _orders(target: Target, arena: Arena, folder: Path, verbs: Sequence[int]) -> list[Orders]:
    return [
        Orders(
            url=target.url,
            namespace=arena.engine.namespace,
            seed=number,
            verbs=share,
            ids=arena.ids,
            journal=str(folder / f"journal-{number}"),
        )
        for number, share in enumerate(verbs)
    ]


def _journal(orders: Orders) -> list[Entry]:
    return msgspec.json.decode(Path(orders.journal).read_bytes(), type=list[Entry])


def fight(orders: Sequence[Orders]) -> tuple[float, list[Report]]:
    """All begin at once; answers how long it took until the last was done."""
    with ExitStack() as stack:
        fighters = [stack.enter_context(_process(each)) for each in orders]
        for fighter in fighters:
            if _heard(fighter) != READY:
                raise _fallen(fighter)
        began = time.perf_counter()
        for fighter in fighters:
            _tell(fighter, "go")
        reports = [_report(fighter) for fighter in fighters]
        return time.perf_counter() - began, reports


@contextmanager
def _process(orders: Orders) -> Iterator[subprocess.Popen[str]]:
    fighter = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli.bench.contender"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with fighter:
        try:
            _tell(fighter, msgspec.json.encode(orders).decode())
            yield fighter
        finally:
            fighter.kill()
            _close_input(fighter)


def _tell(fighter: subprocess.Popen[str], line: str) -> None:
    """One that has fallen is noticed by its silence."""
    with suppress(BrokenPipeError):
        if fighter.stdin is not None:
            fighter.stdin.write(f"{line}\n")
            fighter.stdin.flush()


def _close_input(fighter: subprocess.Popen[str]) -> None:
    with suppress(BrokenPipeError):
        if fighter.stdin is not None:
            fighter.stdin.close()


def _heard(fighter: subprocess.Popen[str]) -> str:
    return fighter.stdout.readline().strip() if fighter.stdout is not None else ""


def _report(fighter: subprocess.Popen[str]) -> Report:
    line = _heard(fighter)
    if not line:
        raise _fallen(fighter)
    return msgspec.json.decode(line, type=Report)


def _fallen(fighter: subprocess.Popen[str]) -> FlowFabricError:
    said = fighter.stderr.read() if fighter.stderr is not None else ""
    last = said.strip().splitlines()[-1:] or ["it printed nothing"]
    return FlowFabricError(f"a contending process failed: {last[0]}")
