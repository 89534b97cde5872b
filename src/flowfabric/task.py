"""Task: a user's function that can be started.

`task.start(...)` submits it and answers a handle. What may be said about a start besides the
function's own arguments (a key, tags, a delay) are keywords of `start`; a task cannot have
parameters of these names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Generic, Protocol, TypeVar

import msgspec

from flowfabric.client.client import Client, Request
from flowfabric.client.handle import Handle
from flowfabric.core import names
from flowfabric.core.duration import Span, duration_ms, when
from flowfabric.core.policy import (
    OnAttemptTimeout,
    Policy,
    RetentionPolicy,
    RetryPolicy,
    TimeoutPolicy,
    encode_policy,
    parse_policy,
)
from flowfabric.errors import Invalid, InvalidInput
from flowfabric.worker.handler import Handler

R_co = TypeVar("R_co", covariant=True)

RESERVED = frozenset({"idempotency_key", "tags", "delay", "deadline", "priority", "lane"})


class Call(msgspec.Struct, Generic[R_co], frozen=True):
    """A start that has not been made yet: what `App.start_many` takes."""

    request: Request
    decode: Callable[[bytes], R_co]


class Connect(Protocol):
    """Opens the store on first use."""

    def __call__(self) -> Awaitable[Client]: ...


class Task(Generic[R_co]):
    """One task of an app."""

    def __init__(self, handler: Handler, connect: Connect, defaults: Request) -> None:
        for name in handler.names:
            if name in RESERVED:
                raise InvalidInput(
                    f"task {handler.name!r} has a parameter {name!r}",
                    field=name,
                    hint=f"rename it; {', '.join(sorted(RESERVED))} are options of a start",
                )
        self.name = handler.name
        self.handler = handler
        self._connect = connect
        self._defaults = defaults

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    @property
    def function(self) -> Callable[..., object]:
        """The function itself, for calling it directly."""
        return self.handler.function

    async def start(
        self,
        /,
        *args: object,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        delay: datetime | Span | None = None,
        deadline: datetime | Span | None = None,
        priority: int | None = None,
        lane: str | None = None,
        **kwargs: object,
    ) -> Handle[R_co]:
        """Submit it and return at once; the handle knows how to wait.

        With an `idempotency_key`, starting again answers the same execution. `delay` says
        when it may begin, `deadline` when it is ended, whatever it does: each a span ("5m") or an
        instant, which is a datetime with a time zone.
        """
        call = self.bind(
            *args,
            idempotency_key=idempotency_key,
            tags=tags,
            delay=delay,
            deadline=deadline,
            priority=priority,
            lane=lane,
            **kwargs,
        )
        client = await self._connect()
        return await client.start(call.request, call.decode)

    def bind(
        self,
        /,
        *args: object,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        delay: datetime | Span | None = None,
        deadline: datetime | Span | None = None,
        priority: int | None = None,
        lane: str | None = None,
        **kwargs: object,
    ) -> Call[R_co]:
        """The same as `start`, checked but not submitted."""
        defaults = self._defaults
        request = Request(
            kind=self.name,
            payload=self.handler.encode_call(args, kwargs),
            lane=defaults.lane if lane is None else names.lane_name(lane),
            policy=defaults.policy,
            priority=defaults.priority if priority is None else names.priority(priority),
            tags={} if tags is None else names.tags(tags),
            key=None if idempotency_key is None else names.idempotency_key(idempotency_key),
            delay=when(delay, "delay"),
            deadline=when(deadline, "deadline"),
        )
        return Call(request, self.handler.result.decode)

    def request(self, values: Mapping[str, object], later: Collection[str] = ()) -> Request:
        """A member of a graph with these arguments; `later`: those that come later, or parts of
        them."""
        arguments = self.handler.arguments
        payload = arguments.encode_open(values, later) if later else arguments.encode(values)
        return msgspec.structs.replace(self._defaults, payload=payload)


def policy_text(
    *,
    retries: int | RetryPolicy | None,
    attempt_timeout: Span | None,
    on_attempt_timeout: str,
    max_reclaims: int,
    max_replays: int,
    retention: RetentionPolicy,
) -> str:
    """The stored policy that the options of a task mean; refuses what is out of range."""
    if on_attempt_timeout not in tuple(OnAttemptTimeout):
        raise InvalidInput(
            f"{on_attempt_timeout!r} is not possible",
            field="on_attempt_timeout",
            hint="'expire' or 'retry'",
        )
    policy = Policy(
        retry_policy=retries
        if retries is None or isinstance(retries, RetryPolicy)
        else RetryPolicy(max_retries=_count(retries, "retries")),
        timeout_policy=TimeoutPolicy(
            attempt_timeout_ms=_timeout_ms(attempt_timeout),
            on_attempt_timeout=OnAttemptTimeout(on_attempt_timeout),
            max_reclaim_count=_count(max_reclaims, "max_reclaims"),
        ),
        retention_policy=retention,
        max_replay_count=_count(max_replays, "max_replays"),
    )
    try:
        text = encode_policy(policy)
        parse_policy(text)
    except (Invalid, TypeError) as error:
        # Only the retries are records that somebody else made.
        raise InvalidInput(
            str(error),
            field="retries",
            code="invalid_policy_json",
            hint="a number from 0, or a RetryPolicy with every field in its range",
        ) from error
    return text


def _timeout_ms(value: Span | None) -> int | None:
    if value is None:
        return None
    timeout_ms = duration_ms(value, "attempt_timeout")
    if timeout_ms < 1:
        raise InvalidInput(
            "no attempt can be that quick",
            field="attempt_timeout",
            hint="leave it away for no limit, or give a span such as '30s'",
        )
    return timeout_ms


def _count(value: object, field: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    raise InvalidInput(f"{value!r} is not a number of times", field=field, hint="0 or more")
