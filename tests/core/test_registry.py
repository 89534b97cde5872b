"""Which workers are alive, and what is said of work that none of them serves."""

from __future__ import annotations

import pytest

from flowfabric.core.documents import DamagedDocument, Document, written
from flowfabric.core.registry import ALIVE_MS, WorkerRecord, heartbeat, live, unserved

NOW_MS = 1_000_000


def worker(lanes: str = "mail", tasks: str = "greet", name: str = "w") -> WorkerRecord:
    return WorkerRecord(
        name=name,
        namespace="default",
        host="h",
        pid=1,
        version="0",
        lanes=tuple(lanes.split()),
        tasks=tuple(tasks.split()),
        slots=5,
        busy=0,
        started_ms=NOW_MS,
        seen_ms=NOW_MS,
    )


def stored(record: WorkerRecord) -> Document:
    document = written(heartbeat(None, record, record.name), NOW_MS)
    assert document is not None
    return document


def test_a_worker_is_alive_until_its_document_is_due() -> None:
    document = stored(worker())
    assert document.words == ("mail",)
    assert live([document], NOW_MS + ALIVE_MS - 1) == [worker()]
    assert live([document], NOW_MS + ALIVE_MS) == []


def test_a_document_that_cannot_be_read_is_no_worker() -> None:
    spoilt = Document("worker", "default", "x", 1, NOW_MS + 5, (), b"melted")
    damaged = DamagedDocument("worker", "default", "y", 1, "column body: melted")
    assert live([spoilt, damaged, stored(worker())], NOW_MS) == [worker()]


def test_a_heartbeat_changes_what_was_seen() -> None:
    seen = stored(worker())
    put = heartbeat(seen, worker().seen(NOW_MS + 10_000, 3), "w")
    assert (put.rev, put.due_ms) == (seen.rev, NOW_MS + 10_000 + ALIVE_MS)


@pytest.mark.parametrize(
    ("lane", "task", "told"),
    [
        ("mail", "greet", ""),
        ("sms", "greet", ""),
        (
            "mial",
            "greet",
            "no live worker serves lane `mial`; 3 workers are alive; did you mean `mail`?",
        ),
        ("x", "greet", "no live worker serves lane `x`; 3 workers are alive"),
        (
            "mail",
            "gret",
            (
                "no live worker of lane `mail` knows task `gret`; 3 workers are alive; "
                "did you mean `greet`?"
            ),
        ),
        ("sms", "bill", "no live worker of lane `sms` knows task `bill`; 3 workers are alive"),
    ],
)
def test_work_that_no_live_worker_serves_is_named(lane: str, task: str, told: str) -> None:
    workers = [worker("mail"), worker("mail sms"), worker("bills", "bill")]
    assert unserved(lane, task, workers) == told


def test_how_many_are_alive_is_said_in_words() -> None:
    assert unserved("a", "t", []) == "no live worker serves lane `a`; no worker is alive"
    assert "; 1 worker is alive" in unserved("a", "t", [worker("zzz")])
