"""Task: a user's function that can be called, started, and added to a graph.

`add(1, 2)` runs the function here and now, `await add.start(1, 2)` submits it and answers a handle.
What is said about a start besides the function's own arguments (a delay, a key, tags) are its
options: `add.options(delay="5m").start(1, 2)`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from copy import copy
from datetime import datetime
from typing import Generic, ParamSpec, Protocol, Self, TypeVar, cast

import msgspec

from flowfabric.client.client import Client, Request
from flowfabric.client.handle import Handle
from flowfabric.core import names
from flowfabric.core.duration import Span, When, when
from flowfabric.core.flow import member_names
from flowfabric.errors import InvalidInput
from flowfabric.node import Node
from flowfabric.ref import Ref, Start
from flowfabric.worker.context import Context, context_here
from flowfabric.worker.handler import Handler

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F_co = TypeVar("F_co", covariant=True)


class Connect(Protocol):
    """Opens the store on first use."""

    def __call__(self) -> Awaitable[Client]: ...


class Home(msgspec.Struct, frozen=True, eq=False):
    """Where the tasks of an app are submitted to. `place`: equal for apps on the same store and
    namespace. `shown`: the same for people."""

    connect: Connect
    place: tuple[object, str]
    shown: str

    def require(self, other: Home, task: str) -> None:
        """Refuses a task of an app that submits elsewhere."""
        if other is not self and other.place != self.place:
            raise InvalidInput(
                f"task {task!r} belongs to another app, on {other.shown}; this one is on "
                f"{self.shown}",
                field="task",
                hint="use the app that the task was registered with, or register its function here",
            )


class Call(msgspec.Struct, Generic[R_co], frozen=True):
    """A call that is not submitted yet, for `App.start_many`."""

    request: Request
    decode: Callable[[bytes], R_co]
    home: Home


class TaskOf(Generic[F_co]):
    """A task whose function looks like this; only type checkers make use of it."""


class Task(TaskOf[Callable[P, R]], Generic[P, R]):
    """One task of an app: `SyncTask` or `AsyncTask`, by its function."""

    __name__: str

    def __init__(self, handler: Handler, home: Home, terms: Request) -> None:
        functools.update_wrapper(cast("Callable[..., object]", self), handler.function, updated=())
        self.__name__ = getattr(handler.function, "__name__", handler.name)
        self.__signature__ = handler.signature
        self.name = handler.name
        self.handler = handler
        self.home = home
        self._terms = terms
        # Options that a start takes as keywords, too: those that no parameter is called like.
        self._keywords = frozenset(_CHECKS).difference(handler.names, ("name",))

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    @property
    def function(self) -> Callable[..., object]:
        """The function as you wrote it; pass it the context if it takes one."""
        return self.handler.function

    def options(
        self,
        *,
        name: str | None = None,
        delay: datetime | Span | None = None,
        deadline: datetime | Span | None = None,
        priority: int | None = None,
        lane: str | None = None,
        tags: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """A copy of the task with these options; omitted ones stay as they are.

        `delay`: when it may begin. `deadline`: when it is ended in any case. Both are a duration
        ("5m") or a datetime with a time zone. With an `idempotency_key`, starting it again returns
        the same execution. `name`: of the member in its graph.
        """
        task = copy(self)
        task._terms = self._with(
            {
                "name": name,
                "delay": delay,
                "deadline": deadline,
                "priority": priority,
                "lane": lane,
                "tags": tags,
                "idempotency_key": idempotency_key,
            }
        )
        return task

    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, Handle[R]]:
        """Submit the call and return its handle at once."""
        return Start(self._start(args, kwargs), self.name)

    async def _start(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Handle[R]:
        request = self._to_start(args, kwargs)
        client = await self.home.connect()
        return await client.start(request, self.handler.result.decode)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for `App.start_many`: checked like `start`, but not submitted."""
        return Call(self._to_start(args, kwargs), self.handler.result.decode, self.home)

    def _to_start(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Request:
        terms = self._terms
        if kwargs and not self._keywords.isdisjoint(kwargs):
            terms = self._with({key: kwargs[key] for key in kwargs if key in self._keywords})
            kwargs = {key: kwargs[key] for key in kwargs if key not in self._keywords}
        if terms.name:
            raise InvalidInput(
                f"task {self.name!r}: only members of a graph have names",
                field="name",
                hint=f"omit name={terms.name!r}, or add the task to a graph",
            )
        values = self.handler.bind(args, kwargs)
        try:
            payload = self.handler.arguments.encode(values)
        except InvalidInput:
            _require_values(self.name, values)
            raise
        return msgspec.structs.replace(terms, payload=payload)

    def request(self, values: Mapping[str, object], later: Collection[str] = ()) -> Request:
        """The request of a member with these arguments; `later` names those whose value, or a part
        of it, is the result of another member."""
        terms, arguments = self._terms, self.handler.arguments
        if terms.key is not None:
            raise InvalidInput(
                f"task {self.name!r}: a member of a graph has no key of its own",
                field="idempotency_key",
                hint="pass it to submit: await graph.submit(idempotency_key=...)",
            )
        try:
            payload = arguments.encode_open(values, later) if later else arguments.encode(values)
        except InvalidInput:
            _require_values(self.name, values)
            raise
        tags = terms.tags | {member_names.TAG: terms.name} if terms.name else terms.tags
        return msgspec.structs.replace(terms, payload=payload, tags=tags)

    def _with(self, said: Mapping[str, object]) -> Request:
        """The terms with these options, as far as they are said; refuses what is out of range."""
        found = {key: value for key, value in said.items() if value is not None}
        changes = {_CHECKS[key][0]: _CHECKS[key][1](value) for key, value in found.items()}
        return msgspec.structs.replace(self._terms, **changes)

    def _leading(self, args: tuple[object, ...]) -> tuple[object, ...]:
        """What comes before the arguments of a direct call: the context of the attempt that this
        code runs in, for a function that takes one."""
        if not self.handler.takes_context or (args and isinstance(args[0], Context)):
            return ()
        context = context_here()
        if context is None:
            raise InvalidInput(
                f"task {self.name!r} takes a context, but this code does not run inside an attempt",
                field="context",
                hint=f"submit it with `await {self.name}.start(...)`, or call "
                f"`{self.name}.function(context, ...)` with a context of your own",
            )
        return (context,)


class SyncTask(Task[P, R]):
    """A task of a plain function; a worker runs it in a thread."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, as if it were no task."""
        return self.function(*self._leading(args), *args, **kwargs)

    @property
    def function(self) -> Callable[..., R]:
        return cast("Callable[..., R]", self.handler.function)


class AsyncTask(Task[P, R]):
    """A task of an async function; a worker runs it in its event loop."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Ref[R]:
        """Awaited, run the function here and now, as if it were no task."""
        return Ref(self.function(*self._leading(args), *args, **kwargs), self.name)

    @property
    def function(self) -> Callable[..., Coroutine[object, None, R]]:
        return cast("Callable[..., Coroutine[object, None, R]]", self.handler.function)


def request_of(call: Call[R], home: Home) -> tuple[Request, Callable[[bytes], R]]:
    """What to submit for a call; for anything else, an error that says what to write instead."""
    given: object = call
    if not isinstance(given, Call):
        raise no_call(given)
    home.require(call.home, call.request.kind)
    return call.request, call.decode


def no_call(given: object) -> InvalidInput:
    """Why this is nothing to submit."""
    hint = "pass the result of `task.bind(...)`"
    if isinstance(given, Task):
        hint = f"pass {given.name}.bind(...), with its arguments"
    elif isinstance(given, Coroutine):
        given.close()
        hint = "use `.bind(...)` instead of `.start(...)` or of calling the task"
    return InvalidInput(f"{given!r} is not a call", field="calls", hint=hint)


def _require_values(task: str, values: Mapping[str, object]) -> None:
    """Of an argument that stands for a value which is not here yet, say how to get it."""
    for name, value in values.items():
        hint = ""
        if isinstance(value, Coroutine):
            value.close()
            hint = "await it, and pass the result"
        elif isinstance(value, Handle):
            hint = "pass `await handle.result()`, or use a graph to pass a result without waiting"
        elif isinstance(value, Node):
            hint = "pass nodes with `graph.add(task, node)`"
        elif isinstance(value, Task):
            hint = "pass a result of the task, not the task"
        if hint:
            raise InvalidInput(f"task {task!r}: got {value!r}", field=name, hint=hint) from None


def _moment(field: str) -> Callable[[object], When | None]:
    return lambda value: when(cast("datetime | Span", value), field)


def _tags(value: object) -> dict[str, str]:
    tags = names.tags(value)
    if member_names.TAG in tags:
        raise InvalidInput(
            f"the tag {member_names.TAG!r} is reserved for the name of a member",
            field="tags",
            hint="use options(name=...)",
        )
    return tags


# Each option: which field of a request it is, and what checks it.
_CHECKS: dict[str, tuple[str, Callable[[object], object]]] = {
    "name": ("name", names.member_name),
    "delay": ("delay", _moment("delay")),
    "deadline": ("deadline", _moment("deadline")),
    "priority": ("priority", names.priority),
    "lane": ("lane", names.lane_name),
    "tags": ("tags", _tags),
    "idempotency_key": ("key", names.idempotency_key),
}
