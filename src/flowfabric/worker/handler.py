"""A user's function as the worker sees it: its name, its parameters, how to call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from flowfabric.core.carried import Carrier
from flowfabric.errors import InvalidInput
from flowfabric.worker.callables import body_of, require_task
from flowfabric.worker.child.importing import Origin, origin_of, require_found
from flowfabric.worker.codec import ArgumentCodec, ResultCodec, annotations_of
from flowfabric.worker.context import Context
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.shapes import NO_HOOKS

PROCESS = "process"
_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Handler:
    """One registered function."""

    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        conversion: Conversion = NO_HOOKS,
        *,
        isolate: str | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(body_of(function))
        # Where a process of its own finds it; None for one that runs in the worker's.
        self.origin = None if isolate is None else _origin(name, function, isolate)
        self.carrier = carrier
        signature = _signature(name, function)
        parameters = list(signature.parameters.values())
        require_task(name, function, parameters)
        hints = annotations_of(name, body_of(function))
        self.takes_context = bool(parameters) and hints.get(parameters[0].name) is Context
        if self.takes_context:
            parameters = parameters[1:]
        # How it is started: the worker passes the context.
        self.signature = signature.replace(parameters=parameters)
        for parameter in parameters:
            if parameter.kind not in _PLAIN:
                raise InvalidInput(
                    f"task {name!r} takes {parameter}",
                    field=parameter.name,
                    hint="name every argument of a task",
                )
            if hints.get(parameter.name) is Context:
                raise InvalidInput(
                    f"task {name!r} takes its context as {parameter.name!r}, not first",
                    field=parameter.name,
                    hint="the context must be the first parameter",
                )
        self.names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(
            p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self.arguments = ArgumentCodec(name, parameters, hints, conversion)
        self.result = ResultCodec(name, hints, conversion)

    @property
    def is_endable(self) -> bool:
        """Whether a worker can end it while it runs; a thread runs on."""
        return self.is_async or self.origin is not None

    def require_found(self) -> None:
        """Refuses a task whose process, if it is to have one, would not find it."""
        if self.origin is not None:
            require_found(self.name, self.origin, self)

    def encode_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The payload of a call; refuses what the function could not be called with."""
        return self.arguments.encode(self.bind(args, kwargs))

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The arguments by name."""
        if len(args) > len(self._positional):
            raise self._mismatch(f"takes {len(self._positional)} positional arguments", "arguments")
        values: dict[str, object] = dict(zip(self._positional, args, strict=False))
        if not kwargs and len(values) == len(self.names):
            return values
        for name, value in kwargs.items():
            if name in values:
                raise self._mismatch(f"got {name!r} twice", name)
            if name not in self.names:
                raise self._mismatch(f"has no argument {name!r}", name)
            values[name] = value
        if not self._required <= values.keys():
            missing = sorted(self._required - values.keys())
            raise self._mismatch(f"needs {', '.join(missing)}", missing[0])
        return values

    def _mismatch(self, problem: str, field: str) -> InvalidInput:
        shape = f"{self.name}({', '.join(self.names)})"
        return InvalidInput(
            f"task {self.name!r} {problem}", field=field, hint=f"call it as {shape}"
        )


def _origin(name: str, function: Callable[..., object], isolate: str) -> Origin:
    if isolate != PROCESS:
        raise InvalidInput(
            f"unknown isolation {isolate!r} of task {name!r}",
            field="isolate",
            hint=f"use {PROCESS!r}, or omit it",
        )
    return origin_of(name, function)


def _signature(name: str, function: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise InvalidInput(
            f"task {name!r} has no readable signature: {error}",
            field="function",
            hint="wrap it in a function of your own",
        ) from error
