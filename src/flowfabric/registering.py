"""Registering: from a user's function and the options of `app.task` to a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Concatenate, ParamSpec, TypeVar, overload

import msgspec

from flowfabric.client.client import Request
from flowfabric.core import names
from flowfabric.core.carried import Carrier
from flowfabric.core.duration import Span, duration_ms
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
from flowfabric.loggers import logger_of
from flowfabric.task import AsyncTask, Home, SyncTask, Task
from flowfabric.worker.callables import callable_of, is_redefined, name_of
from flowfabric.worker.context import Context
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.handler import Handler

P = ParamSpec("P")
R = TypeVar("R")

logger = logger_of("flowfabric.app")


class Definitions:
    """The tasks of one app by their names, and the lanes that these name."""

    def __init__(
        self, home: Home, lane: str, conversion: Conversion, carrier: Carrier | None
    ) -> None:
        self.home = home
        self._conversion = conversion
        self._carrier = carrier
        self.tasks: dict[str, Task[..., object]] = {}
        self.handlers: dict[str, Handler] = {}
        self.lanes: dict[str, None] = {lane: None}

    def add(
        self, name: str | None, given: object, terms: Request, isolate: str | None
    ) -> Task[..., object]:
        """Register it; a definition that ran again replaces the one before."""
        function = callable_of(given.function if isinstance(given, Task) else given)
        checked = names.task_name(name or name_of(function))
        handler = Handler(
            checked, function, self._conversion, isolate=isolate, carrier=self._carrier
        )
        self._require_free(handler)
        terms = msgspec.structs.replace(terms, kind=checked)
        kind = AsyncTask if handler.is_async else SyncTask
        made: Task[..., object] = kind(handler, self.home, terms)
        self.tasks[checked], self.handlers[checked] = made, handler
        self.lanes[terms.lane] = None
        return made

    def _require_free(self, handler: Handler) -> None:
        known = self.handlers.get(handler.name)
        if known is None:
            return
        if not is_redefined(known.function, handler.function):
            raise InvalidInput(
                f"a task {handler.name!r} already exists", field="name", hint="rename one"
            )
        logger.debug("task %s was redefined", handler.name, extra={"task": handler.name})


class Register:
    """The decorator that `app.task(...)` with options answers."""

    def __init__(
        self, definitions: Definitions, name: str | None, terms: Request, isolate: str | None
    ) -> None:
        self._definitions = definitions
        self._name = name
        self._terms = terms
        self._isolate = isolate

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[object, None, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[object, None, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...

    def __call__(self, function: object, /) -> object:
        return self._definitions.add(self._name, function, self._terms, self._isolate)


def one_name(first: str | None, name: str | None) -> str | None:
    """The name of a task, said as the first argument or by keyword."""
    if first is not None and name is not None:
        raise InvalidInput(
            f"got two names, {first!r} and {name!r}", field="name", hint="pass one of them"
        )
    return name if first is None else names.task_name(first)


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
            f"unknown value {on_attempt_timeout!r}",
            field="on_attempt_timeout",
            hint="use 'expire' or 'retry'",
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
            hint="use 0 or more, or a RetryPolicy with every field in its range",
        ) from error
    return text


def _timeout_ms(value: Span | None) -> int | None:
    if value is None:
        return None
    timeout_ms = duration_ms(value, "attempt_timeout")
    if timeout_ms < 1:
        raise InvalidInput(
            f"attempt_timeout must be at least 1 ms (got {value!r})",
            field="attempt_timeout",
            hint="omit it for no limit, or pass a duration such as '30s'",
        )
    return timeout_ms


def _count(value: object, field: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    raise InvalidInput(
        f"{field} must be at least 0 (got {value!r})", field=field, hint="use 0 or more"
    )
