"""Workers: which are alive, and whether any of them serves some work.

A worker is a document of the kind `worker`. It is written anew while the worker lives and is due
when the worker has been silent for too long; whoever reads it ignores it from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from flowfabric.core.documents import (
    WORDS_MAX,
    AnyDocument,
    Document,
    Put,
    change,
    create,
)

KIND = "worker"
HEARTBEAT_SECONDS = 10.0
# Two heartbeats may be lost before a worker counts as gone.
ALIVE_MS = 30_000


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself; `busy` is how many of its slots are taken."""

    name: str
    namespace: str
    host: str
    pid: int
    version: str
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    busy: int
    started_ms: int
    seen_ms: int

    def seen(self, now_ms: int, busy: int, tasks: Iterable[str] | None = None) -> WorkerRecord:
        """The same worker at a later moment; it may know more tasks by then."""
        known = self.tasks if tasks is None else tuple(sorted(tasks))
        return msgspec.structs.replace(self, seen_ms=now_ms, busy=busy, tasks=known)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerRecord).decode


def heartbeat(seen: AnyDocument | None, worker: WorkerRecord, name: str) -> Put:
    """The put that says that a worker lives; its words are the lanes that it serves."""
    body, due_ms = _encode(worker), worker.seen_ms + ALIVE_MS
    words = worker.lanes[:WORDS_MAX]
    if seen is None:
        return create(KIND, worker.namespace, name, body=body, words=words, due_ms=due_ms)
    return change(seen, body=body, words=words, due_ms=due_ms)


def live(documents: Iterable[AnyDocument], now_ms: int) -> list[WorkerRecord]:
    """The workers that are not past their time. One that cannot be read is none: it is removed
    when it is due, as any other, and its worker writes it anew before."""
    found: list[WorkerRecord] = []
    for each in documents:
        if isinstance(each, Document) and each.due_ms is not None and each.due_ms > now_ms:
            worker = _record(each)
            if worker is not None:
                found.append(worker)
    return found


def _record(document: Document) -> WorkerRecord | None:
    try:
        return _decode(document.body)
    except msgspec.DecodeError:
        return None


def serves(worker: WorkerRecord, lane: str, task: str) -> bool:
    return lane in worker.lanes and task in worker.tasks


def unserved(lane: str, task: str, workers: Sequence[WorkerRecord]) -> str:
    """Why no live worker of the namespace will take this work; empty if one will."""
    if any(serves(worker, lane, task) for worker in workers):
        return ""
    of_lane = [worker for worker in workers if lane in worker.lanes]
    if of_lane:
        told = f"no live worker of lane `{lane}` knows task `{task}`"
        known, wanted = {name for worker in of_lane for name in worker.tasks}, task
    else:
        told = f"no live worker serves lane `{lane}`"
        known, wanted = {name for worker in workers for name in worker.lanes}, lane
    close = get_close_matches(wanted, sorted(known), n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ""
    return f"{told}; {_count(len(workers))}{hint}"


def _count(number: int) -> str:
    if number == 0:
        return "no worker is alive"
    return "1 worker is alive" if number == 1 else f"{number} workers are alive"
