"""What `result()` raises for work that ended otherwise: like a local exception, with the traceback
of the worker as its cause."""

from __future__ import annotations

from flowfabric.core.failures import FailureReport
from flowfabric.core.model import Ended
from flowfabric.core.states import SHAPE, Outcome
from flowfabric.engine.engine import Engine
from flowfabric.errors import (
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    FlowFabricError,
)
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.client")

_ENDINGS: dict[Outcome, type[ExecutionEnded]] = {
    Outcome.FAILED: ExecutionFailed,
    Outcome.CANCELLED: ExecutionCancelled,
    Outcome.EXPIRED: ExecutionExpired,
    Outcome.SKIPPED: ExecutionSkipped,
}


class RemoteTraceback(Exception):
    """Stands for the exception of the task: it was raised in the worker, not here."""

    def __init__(self, report: FailureReport) -> None:
        self.report = report
        super().__init__(report.headline)

    def __str__(self) -> str:
        return f"\n{self.report.traceback or self.report.headline}"


async def error_of(engine: Engine, ended: Ended) -> ExecutionEnded:
    """One more look at the store, and only for a failure: what the exception was."""
    outcome = SHAPE[ended.state].outcome
    report = await _report(engine, ended) if outcome is Outcome.FAILED else None
    reason = report.headline if report else ended.detail
    details: dict[str, object] = {"category": ended.category, "reason": ended.detail}
    if report is not None:
        details |= {"type": report.type, "message": report.message, "notes": list(report.notes)}
        details["members"] = [member.headline for member in report.members]
    error = _ENDINGS[outcome](
        f"execution {ended.id} {ended.state}: {reason or outcome}", details=details
    )
    if report is not None and isinstance(error, ExecutionFailed):
        error.traceback = report.traceback
        error.__cause__ = RemoteTraceback(report)
    return error


async def _report(engine: Engine, ended: Ended) -> FailureReport | None:
    """That the exception cannot be read does not make the failure another one."""
    try:
        return await engine.read.failure(ended.id)
    except FlowFabricError as error:
        logger.warning(
            "could not read the exception of %s: %s",
            ended.id,
            error,
            extra={"error": error.code},
        )
        return None
