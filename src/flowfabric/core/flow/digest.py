"""What a keyed graph means, as a short text: repeating a submit with another meaning is a conflict.

Everything counts that changes what is run, when, how often or what follows from it, and nothing
that differs between two submits of the same graph: ids are places, and an instant counts as the
span from now, unless the instant itself is what was said.
"""

from __future__ import annotations

import hashlib

import msgspec

from flowfabric.core.carried import without_context
from flowfabric.core.duration import When
from flowfabric.core.flow.graph import Plan
from flowfabric.core.flow.settling import encode_retention
from flowfabric.core.lifecycle import Order

# A digest of another form was made by another rule and cannot be compared.
FORM = "2"
_SEPARATOR = ":"

_encode = msgspec.msgpack.Encoder().encode


def digest_of(plan: Plan, now_ms: int, deadline: When | None = None) -> str:
    """`now_ms`: the moment that the instants of the plan were counted from. `deadline`: as said."""
    is_instant = deadline is not None and deadline.is_instant
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
        ["at", plan.deadline_ms] if is_instant else _span(plan.deadline_ms, now_ms),
        encode_retention(plan.retention),
        [_meaning(order, now_ms) for order in plan.orders],
        links,
        policies,
    )
    return f"{FORM}{_SEPARATOR}{hashlib.sha256(_encode(whole)).hexdigest()}"


def is_same(stored: str, given: str) -> bool:
    """Whether two digests say the same, as far as they can be compared."""
    return stored == given or _form(stored) != _form(given)


def _meaning(order: Order, now_ms: int) -> tuple[object, ...]:
    return (
        order.namespace,
        order.lane,
        order.kind,
        order.payload,
        order.priority,
        order.policy,
        sorted(without_context(order.tags).items()),
        _span(order.delay_until_ms, now_ms),
        _span(order.deadline_ms, now_ms),
        order.key,
    )


def _span(instant_ms: int | None, now_ms: int) -> int | None:
    return None if instant_ms is None else instant_ms - now_ms


def _form(digest: str) -> str:
    return digest.partition(_SEPARATOR)[0] if _SEPARATOR in digest else ""
