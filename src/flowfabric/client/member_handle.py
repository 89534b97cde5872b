"""MemberHandle: one member of a flow, found by its name.

A handle like any other. That its flow has no such member can only be seen by asking the store, so
each verb says it then, in the words of the caller.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from flowfabric.client.handle import Connect, Handle
from flowfabric.core.flow.member_names import named_id
from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts
from flowfabric.core.model import Event
from flowfabric.errors import ExecutionNotFound

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class MemberName(NamedTuple):
    """The name of a member and the flow that it has the name in."""

    flow: FlowId
    name: str


class MemberHandle(Handle[R_co]):
    """Refers to a member by the name that its graph gave it."""

    def __init__(
        self,
        member: MemberName,
        connect: Connect,
        decode: Callable[[bytes], R_co],
        *,
        counts: Callable[[], PartitionCounts],
    ) -> None:
        super().__init__(named_id(*member, counts()), connect, decode)
        self.member = member
        self._counts = counts

    @property
    def _id(self) -> ExecutionId:
        """How many partitions a store has is known when it is open."""
        return named_id(*self.member, self._counts())

    def __repr__(self) -> str:
        return f"Handle({self.id!r}, name={self.member.name!r})"

    async def _read_events(self, after: str) -> list[Event]:
        found = await super()._read_events(after)
        if not found and not after:
            # Of an execution that is there something is always logged, until it is trimmed.
            await (await self._connect()).engine.read.load(self._id)
        return found


Verb = Callable[Concatenate[MemberHandle[object], P], Coroutine[object, None, R]]


def _by_name(verb: Verb[P, R]) -> Verb[P, R]:
    @functools.wraps(verb)
    async def named(self: MemberHandle[object], /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await verb(self, *args, **kwargs)
        except ExecutionNotFound as error:
            flow, name = self.member
            if error.details.get("execution") != self.id:
                raise
            raise ExecutionNotFound(
                f"flow {flow} has no member {name!r}",
                hint="set names with `graph.add(task.options(name=...))`; a finished flow is "
                "deleted after its retention",
                details={"execution": self.id, "flow": flow, "member": name},
            ) from None

    return named


for _name, _verb in inspect.getmembers(MemberHandle, inspect.iscoroutinefunction):
    if not _name.startswith("_") or _name.startswith("_read_"):
        setattr(MemberHandle, _name, _by_name(_verb))
