"""What a worker logs by itself. Ids go into `extra`, so that any handler can use them.

Logger `flowfabric.worker`: claims at DEBUG, starts, stops and cancelled work at INFO, retries, lost
leases and a blocked event loop at WARNING, failures at ERROR with their traceback.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

from flowfabric.core.duration import format_ms
from flowfabric.core.lifecycle import UNREAD
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.engine.outcomes import Delayed, Failed, Finished, Outcome
from flowfabric.errors import FlowFabricError, LeaseExpired, StaleLease
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.worker")

NAMES_SHOWN = 10

_FAILED, _CANCELLED = State.FAILED, State.CANCELLED


class WorkerLog:
    """One per worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def started(
        self, *, lanes: Sequence[str], tasks: Sequence[str], slots: int, store: str, version: str
    ) -> None:
        logger.info(
            "worker %s started: lanes %s; %d tasks: %s; %d slots; store %s; flowfabric %s",
            self._worker,
            _listed(lanes),
            len(tasks),
            _listed(tasks),
            slots,
            store,
            version,
            extra={"worker": self._worker, "lanes": list(lanes), "store": store},
        )

    def stopping(self, attempts: int, drain_seconds: float) -> None:
        text = "worker %s is stopping: it waits up to %s for %d running attempts"
        drain = format_ms(int(drain_seconds * 1000))
        about = {"worker": self._worker, "attempts": attempts}
        logger.info(text, self._worker, drain, attempts, extra=about)

    def stopped(self) -> None:
        logger.info("worker %s stopped", self._worker, extra={"worker": self._worker})

    def claimed(self, leases: Sequence[Lease]) -> None:
        if not leases or not logger.isEnabledFor(logging.DEBUG):
            return
        for lease in leases:
            head = lease.head
            logger.debug("claimed %s: task %s", head.id, head.kind, extra=self._about(lease))

    def finished(self, outcome: Outcome, answer: Finished, now_ms: int, member: str = "") -> None:
        """Failures, whatever follows from them, and outcomes that the store refused. `member`: the
        name of a member in its flow."""
        if answer.error is not None:
            about = self._about(outcome.lease) | {"error": answer.error.code}
            logger.warning(
                "the outcome of %s was refused: %s", answer.id, answer.error, extra=about
            )
        elif isinstance(outcome, Failed):
            self._failed(outcome, answer, now_ms, member)
        elif isinstance(outcome, Delayed) and outcome.unread:
            head = outcome.lease.head
            text = "cannot read the arguments of task %s: execution %s; handed back for %s: %s"
            pause = format_ms(max(outcome.until_ms - now_ms, 0))
            about = self._about(outcome.lease) | {"category": UNREAD}
            logger.warning(text, head.kind, head.id, pause, outcome.unread, extra=about)

    def _failed(self, outcome: Failed, answer: Finished, now_ms: int, member: str) -> None:
        head, failure = outcome.lease.head, outcome.failure
        shown = failure.report.headline if failure.report else failure.reason
        about = self._about(outcome.lease) | {"category": failure.category}
        about |= {"member": member} if member else {}
        task = f"{head.kind} (member {member!r})" if member else head.kind
        said = (task, head.id, head.attempt)
        if answer.state is _FAILED:
            text = "task %s failed: execution %s, attempt %d: %s"
            error = outcome.error if is_writable(outcome.error) else None
            if error is None and failure.report is not None and failure.report.traceback:
                shown = f"{shown}\n{failure.report.traceback}"
            logger.error(text, *said, shown, exc_info=error, extra=about)
        elif answer.state is _CANCELLED:
            text = "task %s failed after its cancel: execution %s, attempt %d: %s"
            logger.info(text, *said, shown, extra=about)
        else:
            pause = max((answer.until_ms or now_ms) - now_ms, 0)
            about |= {"next_attempt": answer.next_attempt, "pause_ms": pause}
            text = "task %s failed: execution %s, attempt %d; retry in %s: %s"
            logger.warning(text, *said, format_ms(pause), shown, extra=about)

    def lost(self, lease: Lease, error: FlowFabricError) -> None:
        """Work that was cancelled or taken away is no surprise; a lease that ran out is."""
        is_lost = isinstance(error, LeaseExpired | StaleLease)
        level = logging.WARNING if is_lost else logging.INFO
        about = self._about(lease) | {"error": error.code}
        logger.log(level, "stopping %s: task %s: %s", lease.id, lease.head.kind, error, extra=about)

    def _about(self, lease: Lease) -> dict[str, object]:
        head = lease.head
        return {
            "worker": self._worker,
            "execution": head.id,
            "task": head.kind,
            "attempt": head.attempt,
            "lane": head.lane,
            "flow": head.flow,
        }


def is_writable(error: BaseException | None) -> bool:
    """Whether a handler can write the exception: one may have text that no file takes."""
    try:
        "".join(traceback.format_exception(error)).encode()
    except Exception:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN]) or "none"
    return shown if len(names) <= NAMES_SHOWN else f"{shown}, …"
