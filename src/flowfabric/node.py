"""Nodes: the members of a graph before it is submitted, and what stands for their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from flowfabric.client.client import Request
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import EdgeKind
from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.errors import InvalidInput

A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)


class Later(Generic[R_co]):
    """What stands for a result among the arguments of a member."""

    __slots__ = ()


class Condition(msgspec.Struct, frozen=True, gc=False):
    """An upstream, and which of its ends are waited for."""

    node: Node[object]
    kind: EdgeKind


class OptionalResult(Later[R_co], Condition, frozen=True, gc=False):
    """As an argument: the result of an upstream, or None."""


class Node(Later[R_co], msgspec.Struct, eq=False, gc=False):
    """One future member of a flow. As an argument it stands for its result."""

    name: str
    request: Request
    decode: Callable[[bytes], R_co]
    # The annotation that its result cannot be read without.
    needs: str = ""
    _id: ExecutionId | None = None

    def __repr__(self) -> str:
        return f"Node({self.name!r})"

    @property
    def id(self) -> str:
        """The id of the member, once its graph is submitted."""
        if self._id is None:
            raise InvalidInput(
                f"{self!r} has no id before `submit()`",
                field="node",
                hint="await graph.submit() first",
            )
        return public_id(self._id)

    @property
    def optional(self) -> OptionalResult[R_co | None]:
        """As an argument: its result, or None if it did not succeed."""
        return OptionalResult(self, EdgeKind.COMPLETION)

    @property
    def failed(self) -> Condition:
        """For `after`: wait until it has failed, was cancelled or expired. If it succeeded or was
        skipped, the waiting member is skipped."""
        return Condition(self, EdgeKind.FAILURE)

    @property
    def ended(self) -> Condition:
        """For `after`: wait until it has ended, whatever its outcome."""
        return Condition(self, EdgeKind.ORDER)


class Choice(Later[R_co]):
    """Some of several nodes. As an argument it stands for what they pass on."""

    def __init__(self, nodes: Sequence[Node[object]], policy: Policy) -> None:
        self.nodes = tuple(nodes)
        self.policy = policy


# What a member may wait for, as an argument or in `after`.
Upstream = Node[object] | Choice[object] | Condition
After = Upstream | Iterable[Upstream]

UPSTREAMS = (Node, Choice, Condition)

# What may be passed for a parameter of type A. Of lists and mappings of nodes a type checker sees
# that they hold nodes, and the worker checks what these pass.
Given: TypeAlias = A | Later[A] | Sequence[Later[object]] | Mapping[str, Later[object]]
