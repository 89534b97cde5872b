"""Log records of the dispatcher: each is a function, and what it says is in fields, not in text.

Nothing here decides or counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flowfabric.core.flow.dispatch import Advanced
from flowfabric.core.flow.model import Edge, Group, Line, Unreadable
from flowfabric.engine.isolation import log_failed
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.dispatcher")


def dispatched(line: Line, whole: Advanced, edges: int) -> None:
    """All that followed from the end of one member, however many rounds it took."""
    if not logger.isEnabledFor(logging.INFO):
        return
    logger.info(
        "dispatched %s",
        line.execution,
        extra={
            "execution": line.execution,
            "flow": line.flow,
            "resolved": whole.edges,
            "edges": edges,
            "skipped": whole.skipped,
        },
    )


def failed(flow: str, error: Exception) -> None:
    log_failed(logger, "dispatch of a flow failed", error, {"flow": flow})


def not_put_back(flow: str, error: Exception) -> None:
    log_failed(logger, "could not postpone the dispatch of a flow", error, {"flow": flow})


def not_seen(flows: Sequence[str], error: Exception) -> None:
    log_failed(logger, "could not read several flows in one call", error, {"flows": len(flows)})


def strange(group: Group) -> None:
    logger.error(
        "unknown join policy on %s",
        group.downstream,
        extra={"flow": group.flow, "downstream": group.downstream, "policy": group.join},
    )


def unreadable(flow: str, lost: Unreadable) -> None:
    logger.warning(
        "a record of a flow cannot be read",
        extra={
            "flow": flow,
            "record": lost.kind,
            "record_name": lost.name,
            "problem": lost.problem,
        },
    )


def no_flow(flow: str) -> None:
    logger.warning("an outbox entry has an invalid flow id", extra={"flow": flow})


def nobody_ended(line: Line) -> None:
    logger.warning(
        "an outbox entry names a missing member",
        extra={"flow": line.flow, "execution": line.execution, "line": line.id},
    )


def leads_nowhere(edge: Edge) -> None:
    logger.warning(
        "an edge leads to a missing member",
        extra={"flow": edge.flow, "execution": edge.upstream, "downstream": edge.downstream},
    )
