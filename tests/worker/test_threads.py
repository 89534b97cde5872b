"""The threads of plain functions: as many as may be, used again, and no reason to stay alive."""

from __future__ import annotations

import threading

import pytest

from flowfabric.worker.threads import DaemonThreads


def test_threads_are_made_when_needed_and_used_again() -> None:
    threads = DaemonThreads(2, "test")
    names = {threads.submit(lambda: threading.current_thread().name).result() for _ in range(50)}
    assert names <= {"test_1", "test_2"}
    threads.shutdown()


def test_as_many_run_at_once_as_may_and_others_wait() -> None:
    threads = DaemonThreads(3, "test")
    together = threading.Barrier(3)
    running = [threads.submit(together.wait, 30) for _ in range(6)]
    assert sorted(each.result(30) for each in running) == [0, 0, 1, 1, 2, 2]
    threads.shutdown()


def test_an_error_is_the_callers() -> None:
    threads = DaemonThreads(1, "test")
    with pytest.raises(SystemExit):
        threads.submit(_leave).result(30)
    assert threads.submit(lambda: 1).result(30) == 1
    threads.shutdown()


def _leave() -> None:
    raise SystemExit


def test_a_call_that_is_cancelled_before_it_began_is_not_made() -> None:
    threads = DaemonThreads(1, "test")
    go_on = threading.Event()
    first = threads.submit(go_on.wait, 30)
    made: list[int] = []
    second = threads.submit(made.append, 1)
    assert second.cancel()
    go_on.set()
    assert first.result(30)
    threads.submit(made.append, 2).result(30)
    assert made == [2]
    threads.shutdown()


def test_a_shutdown_waits_for_nothing_and_ends_what_is_idle() -> None:
    threads = DaemonThreads(2, "ending")
    go_on = threading.Event()
    running = threads.submit(go_on.wait, 30)
    threads.submit(lambda: None).result(30)
    mine = [each for each in threading.enumerate() if each.name.startswith("ending_")]
    assert all(each.daemon for each in mine)
    threads.shutdown()
    threads.shutdown()
    with pytest.raises(RuntimeError):
        threads.submit(lambda: None)
    go_on.set()
    assert running.result(30)
    for each in mine:
        each.join(30)
        assert not each.is_alive()
