"""What a keyed graph means, as a short text: repeating a submit with another meaning is a conflict.

Everything counts that changes what is run, when, how often or what follows from it, and nothing
that differs between two submits of the same graph: ids are places, and an instant counts as the
span from now, unless the instant itself is what was said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from flowfabric.core.carried import without_context
from flowfabric.core.duration import When
from flowfabric.core.flow.graph import Plan
from flowfabric.core.flow.settling import encode_retention
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order

# A digest of another form was made by another rule and cannot be compared.
FORM = "2"
_SEPARATOR = ":"

_encode = msgspec.msgpack.Encoder().encode


class Said(NamedTuple):
    """When a member may begin and is ended, as it was said."""

    delay: When | None = None
    deadline: When | None = None


_NOTHING_SAID: Mapping[ExecutionId, Said] = MappingProxyType({})


def digest_of(
    plan: Plan,
    now_ms: int,
    deadline: When | None = None,
    said: Mapping[ExecutionId, Said] = _NOTHING_SAID,
) -> str:
    """`now_ms`: the moment that the instants of the plan were counted from. `deadline`, `said`: of
    the flow and of its members, as people said it."""
    places = {order.id: place for place, order in enumerate(plan.orders)}
    links = [
        (places[link.upstream], places[link.downstream], link.kind, link.group, link.argument)
        for link in plan.links
    ]
    policies = sorted(
        (places[key.downstream], key.name, *policy) for key, policy in plan.policies.items()
    )
    whole = (
        plan.name,
        _moment(plan.deadline_ms, now_ms, deadline),
        encode_retention(plan.retention),
        [_meaning(order, now_ms, said.get(order.id, Said())) for order in plan.orders],
        links,
        policies,
    )
    return f"{FORM}{_SEPARATOR}{hashlib.sha256(_encode(whole)).hexdigest()}"


def is_same(stored: str, given: str) -> bool:
    """Whether two digests say the same, as far as they can be compared."""
    return stored == given or _form(stored) != _form(given)


def _meaning(order: Order, now_ms: int, said: Said) -> tuple[object, ...]:
    return (
        order.namespace,
        order.lane,
        order.kind,
        order.payload,
        order.priority,
        order.policy,
        sorted(without_context(order.tags).items()),
        _moment(order.delay_until_ms, now_ms, said.delay),
        _moment(order.deadline_ms, now_ms, said.deadline),
        order.key,
    )


def _moment(instant_ms: int | None, now_ms: int, said: When | None) -> object:
    """An instant that was said means itself, also when it has passed; else the span counts."""
    if said is not None and said.is_instant:
        return ["at", said.ms]
    return None if instant_ms is None else instant_ms - now_ms


def _form(digest: str) -> str:
    return digest.partition(_SEPARATOR)[0] if _SEPARATOR in digest else ""
