"""Two programs with different tasks share one store and one lane. Workers of both are killed and
started again, and one is deployed without its task for a while: nothing of either fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flowfabric as ff
from tests.servers import store_url

PROGRAM = Path(__file__).with_name("shop_worker.py")
ROOT = PROGRAM.parents[2]
EACH = 1_000
PATIENCE_SECONDS = 300.0
# How many results were there when something happened to the workers.
KILLS = (100, 400, 900, 1_300)
WITHOUT_BILL_AT, WITH_BILL_AT = 600, 1_000


class Deployment:
    """The one worker process of a program; starting another ends the one before without a word."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *tasks: str) -> None:
        self.kill()
        argv = [sys.executable, "-m", "tests.chaos.shop_worker", self._url, *tasks]
        self._process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ})

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@contextmanager
def deployed(url: str) -> Iterator[tuple[Deployment, Deployment]]:
    mail, bill = Deployment(url), Deployment(url)
    try:
        yield mail, bill
    finally:
        mail.kill()
        bill.kill()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey", "valkey-cluster"])
async def test_two_programs_on_one_lane_fail_nothing_of_each_other(
    kind: str, tmp_path: Path
) -> None:
    url = store_url(kind, tmp_path / "shop.db")
    app = ff.App(url, lease_ttl="5s")

    @app.task
    async def mail(n: int) -> str:
        raise AssertionError("the worker's own code runs")

    @app.task
    async def bill(n: int) -> str:
        raise AssertionError("the worker's own code runs")

    calls = [task.bind(n) for n in range(EACH) for task in (mail, bill)]
    handles = await app.start_many(calls)
    with deployed(url) as (mailing, billing):
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await _worked(handles, mailing, billing)
    assert answers == [f"{name} {n}" for n in range(EACH) for name in ("mail", "bill")]
    for handle in (handles[0], handles[1], handles[-1]):
        assert {attempt.outcome for attempt in await handle.attempts()} <= {"success", "lost"}
    await app.close()


async def _worked(
    handles: list[ff.Handle[str]], mailing: Deployment, billing: Deployment
) -> list[str]:
    """The results, with kills and deploys while they come in."""
    waiting = [asyncio.ensure_future(handle.result()) for handle in handles]
    mailing.start("mail")
    billing.start("bill")
    has_bill = True
    for done, each in enumerate(asyncio.as_completed(waiting)):
        if done == WITHOUT_BILL_AT:
            billing.start("refund")
            has_bill = False
        if done == WITH_BILL_AT:
            billing.start("bill")
            has_bill = True
        if done in KILLS:
            mailing.start("mail")
            billing.start("bill" if has_bill else "refund")
        await each
    return [each.result() for each in waiting]
