"""Workers in processes of their own: signals, and one file for several of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.client import results
from flowfabric.core.documents import DocumentQuery
from flowfabric.core.registry import ALIVE_MS, KIND, live
from flowfabric.engine.registry import remove_silent
from flowfabric.store import open_store
from tests.app.stage import PATIENCE_SECONDS, eventually, kinds
from tests.conftest import discard
from tests.servers import DURABLE, store_url
from tests.worker import deaf
from tests.worker.process import make
from tests.worker.processes import DEAF, process


@pytest.fixture(params=DURABLE)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    url = store_url(str(request.param), tmp_path / "shared.db")
    yield url
    await discard(open_store(url))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(url: str, number: signal.Signals) -> None:
    app, work, _ = make(url)
    with process(url) as worker:
        handle = await work.start("slow", waits=True)
        assert await worker.says() == "began slow"
        worker.send(number)
        assert await worker.says() == "stopping"
        worker.go_on()
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await handle.result() == f"slow done by {worker.id}"
    assert await kinds(handle) == ["submitted", "claimed", "completed"]
    await app.close()


async def test_a_signal_hands_back_what_does_not_end_in_time(url: str) -> None:
    app, _, forever = make(url)
    with process(url, "0s") as worker:
        handle = await forever.start("endless")
        assert await worker.says() == "began endless"
        worker.send(signal.SIGTERM)
        assert await worker.says() == "stopping"
        assert await worker.says() == "stopped endless"
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await kinds(handle) == ["submitted", "claimed", "released"]
    assert (await handle.explain()).wakes == "worker"
    await app.close()


async def test_a_task_that_swallows_its_cancellation_does_not_keep_the_process(url: str) -> None:
    app, swallow, _ = deaf.make(url)
    with process(url, "0s", program=DEAF) as worker:
        handle = await swallow.start()
        assert await worker.says() == "began swallow"
        worker.send(signal.SIGTERM)
        assert await worker.says() == "swallowed"
        assert await worker.says() == (
            f"WARNING abandoned {handle.id}: its task 'swallow' ignored its cancellation;"
            " its lease is released"
        )
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
        assert await worker.says() == ""
    assert await kinds(handle) == ["submitted", "claimed", "released"]
    await app.close()


async def test_a_plain_function_that_never_returns_does_not_keep_the_process(url: str) -> None:
    app, _, block = deaf.make(url)
    with process(url, "0s", "5s", program=DEAF) as worker:
        handle = await block.start()
        assert await worker.says() == "began block"
        worker.send(signal.SIGTERM)
        assert await worker.says() == (
            f"WARNING abandoned {handle.id}: the thread of its task 'block' still runs;"
            " its lease will expire"
        )
        assert await worker.says() == "bye"
        assert await worker.ended() == 0
    assert await kinds(handle) == ["submitted", "claimed"]
    await app.close()


async def test_a_second_signal_ends_it_at_once(url: str) -> None:
    app, _, forever = make(url)
    with process(url, "1000s") as worker:
        handle = await forever.start("endless")
        assert await worker.says() == "began endless"
        worker.send(signal.SIGTERM)
        assert await worker.says() == "stopping"
        worker.send(signal.SIGTERM)
        assert await worker.ended() == -signal.SIGTERM
    assert (await handle.explain()).wakes == "lease"
    await app.close()


async def test_the_waiting_process_hears_of_work_done_in_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NET_SECONDS", 1_000.0)
    app, work, _ = make(url)
    with process(url) as worker:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for name in ("first", "second", "third"):
                handle = await work.start(name)
                assert await handle.result() == f"{name} done by {worker.id}"
        many = await app.start_many(work.bind(f"job-{n}") for n in range(50))
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(*(handle.result() for handle in many))
        assert answers == [f"job-{n} done by {worker.id}" for n in range(50)]
    await app.close()


async def test_two_workers_share_one_file(url: str) -> None:
    app, work, _ = make(url)
    with process(url) as first, process(url) as second:
        handles = await app.start_many(work.bind(f"job-{n}") for n in range(300))
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(*(handle.result() for handle in handles))
        workers = {answer.rpartition(" ")[2] for answer in answers}
    assert workers <= {str(first.id), str(second.id)}
    for handle in handles[::50]:
        assert await kinds(handle) == ["submitted", "claimed", "completed"]
    await app.close()


async def test_a_killed_worker_is_listed_until_it_expires_and_a_stopped_one_is_not(
    url: str,
) -> None:
    app, _, _ = make(url)

    async def pids() -> set[int]:
        return {worker.pid for worker in await app.workers()}

    async def are_listed(wanted: set[int]) -> bool:
        return await pids() == wanted

    with process(url) as killed, process(url) as stopped:
        await eventually(lambda: are_listed({killed.id, stopped.id}))
        stopped.send(signal.SIGTERM)
        assert await stopped.says() == "bye"
        killed.send(signal.SIGKILL)
        await killed.ended()
    (left,) = await app.workers()
    assert left.pid == killed.id
    documents = await app.engine.store.documents(DocumentQuery(kind=KIND, namespace="default"))
    assert live(documents, left.seen_ms + ALIVE_MS) == []
    # A timekeeper whose clock stands then finds it due, and removes it.
    due = await app.engine.store.due(left.seen_ms + ALIVE_MS, 9, [KIND])
    assert await remove_silent(app.engine.store, due.documents, app.engine.clock.now_ms()) == 1
    assert await pids() == set()
    await app.close()
