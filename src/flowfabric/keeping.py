"""How long what has ended is kept, as people say it: one span, or a span for each way to end."""

from __future__ import annotations

from collections.abc import Mapping

from flowfabric.core.duration import Span, duration_ms
from flowfabric.core.policy import DEFAULT, RetentionPolicy
from flowfabric.errors import InvalidInput

Keep = Span | Mapping[str, Span]

_OUTCOMES = ("completed", "failed", "cancelled", "expired", "skipped")


def retention_policy(
    keep: Keep | None, otherwise: RetentionPolicy = DEFAULT.retention_policy
) -> RetentionPolicy:
    """`"7d"` for all, or `{"failed": "30d"}`; what is not said is `otherwise`."""
    if keep is None:
        return otherwise
    if not isinstance(keep, Mapping):
        kept_ms = duration_ms(keep, "retention")
        return RetentionPolicy(kept_ms, kept_ms, kept_ms, kept_ms, kept_ms)
    for name in keep:
        if name not in _OUTCOMES:
            raise InvalidInput(
                f"unknown outcome {name!r}",
                field="retention",
                hint=f"use one of {', '.join(_OUTCOMES)}",
            )
    spans = {name: duration_ms(span, f"retention.{name}") for name, span in keep.items()}
    known = {name: getattr(otherwise, f"{name}_ms") for name in _OUTCOMES}
    return RetentionPolicy(**{f"{name}_ms": spans.get(name, known[name]) for name in _OUTCOMES})
