"""One attempt in a process of its own: hand it over, keep what it says, and say what came of it.

Cancelled by the worker, it ends the process and all that the process has started, and only then
raises that: nothing of the attempt goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from flowfabric.core.failures import FailureReport
from flowfabric.core.flow.inputs import Passed
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.engine.outcomes import Completed, Failed
from flowfabric.errors import FlowFabricError
from flowfabric.worker.attempt_log import KEPT_FROM, TASK_LOGGER
from flowfabric.worker.child.channel import heard
from flowfabric.worker.child.importing import Origin
from flowfabric.worker.child.messages import Ending, Job, Line, Raised, Returned, Said, Unread
from flowfabric.worker.child.pool import ChildPool
from flowfabric.worker.child.process import ChildDied, ChildProcess
from flowfabric.worker.context import Context
from flowfabric.worker.inputs import filled
from flowfabric.worker.runner import UnreadArguments, told

PROCESS_DIED = "process_died"


def job_of(lease: Lease, origin: Origin, passed: Sequence[Passed], saved: Mapping[str, str]) -> Job:
    """Raises `UnreadArguments` when what was passed to it is no JSON."""
    try:
        payload = filled(lease.payload, passed)
    except msgspec.DecodeError as error:
        raise UnreadArguments(f"arguments: {told(error)}") from error
    return Job(
        task=lease.head.kind,
        module=origin.module,
        qualname=origin.qualname,
        lease=msgspec.structs.replace(lease, payload=payload),
        saved=saved,
        level=min(KEPT_FROM, logging.getLogger(TASK_LOGGER).getEffectiveLevel()),
    )


async def run_in_child(
    job: Job, context: Context | None, children: ChildPool
) -> Completed | Failed:
    """Raises `UnreadArguments` when the task does not take its arguments.

    `context`: keeps what the task says by its own; None for one that takes none.
    """
    try:
        child = children.take()
    except OSError as error:
        return _died(job, f"could not be started: {error}")
    try:
        ending = await _ending(job, context, child)
    except ChildDied as died:
        return _died(job, str(died))
    except BaseException:
        await children.end(child)
        raise
    children.give_back(child)
    return _outcome(job.lease, ending)


async def _ending(job: Job, context: Context | None, child: ChildProcess) -> Ending:
    await child.say(job)
    while True:
        message = await child.hear()
        if isinstance(message, Line):
            _log(message, context)
        elif isinstance(message, Said):
            await child.say(heard(await _progress(message, context)))
        else:
            return message


def _log(line: Line, context: Context | None) -> None:
    is_own = context is not None and line.logger == TASK_LOGGER
    logger = context.log if context is not None and is_own else logging.getLogger(line.logger)
    logger.log(line.level, "%s", line.text, extra=line.extra)


async def _progress(said: Said, context: Context | None) -> FlowFabricError | None:
    if context is None:
        return None
    try:
        await context.progress(said.pct, said.message)
    except FlowFabricError as error:
        return error
    return None


def _outcome(lease: Lease, ending: Ending) -> Completed | Failed:
    match ending:
        case Returned(result):
            return Completed(lease, result)
        case Raised(reason, category, fatal, report):
            return Failed(lease, Failure(reason, category, fatal, report))
        case Unread(reason):
            raise UnreadArguments(reason)


def _died(job: Job, how: str) -> Failed:
    reason = f"the process of task {job.task!r} {how}"
    report = FailureReport("ProcessDied", reason)
    return Failed(job.lease, Failure(reason, PROCESS_DIED, report=report))
