"""Every type of the table of docs/reference/values.md: how it is stored, and that it comes back."""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any

import pytest

from flowfabric import App
from flowfabric.errors import InvalidInput
from flowfabric.worker.conversion import Conversion
from flowfabric.worker.handler import Handler
from tests.app.stage import running
from tests.worker.travelling import (
    CASES,
    HOOKS,
    LINES,
    NAMED,
    TRAVELS,
    Case,
    Point,
    holder,
    is_same,
)

REFUSED = [(line.types, *each) for line in LINES for each in line.refused]


def handler(kind: object) -> Handler:
    """A task that takes a value of this type and returns one."""

    def take(v: Any) -> Any: ...

    take.__annotations__ = {"v": kind, "return": kind}
    return Handler("take", take, Conversion(HOOKS))


def arrived(kind: object, value: object) -> tuple[object, object]:
    """As an argument, and as a result."""
    made = handler(kind)
    argument = made.arguments.decode(made.encode_call((value,), {}))["v"]
    return argument, made.result.decode(made.result.encode(value))


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_stored_as_the_table_says_and_comes_back(name: str) -> None:
    _, (kind, value, stored) = CASES[name]
    made = handler(kind)
    assert made.encode_call((value,), {}).decode() == f'{{"v":{stored}}}'
    assert made.result.encode(value).decode() == stored
    assert all(is_same(value, back) for back in arrived(kind, value))


@pytest.mark.parametrize("case", NAMED, ids=repr)
def test_a_type_with_a_name_of_its_own_travels_as_what_it_means(case: Case) -> None:
    assert arrived(case.kind, case.value) == (case.value, case.value)


Within = Callable[[Any, object], tuple[object, object]]
WITHIN: dict[str, Within] = {
    "a list": lambda kind, value: (GenericAlias(list, kind), [value, value]),
    "a dict": lambda kind, value: (GenericAlias(dict, (str, kind)), {"a": value}),
    "a tuple": lambda kind, value: (GenericAlias(tuple, (kind, ...)), (value,)),
    "a list in a list": lambda kind, value: (
        GenericAlias(list, GenericAlias(list, kind)),
        [[value]],
    ),
    "what may be missing": lambda kind, value: (kind | None, value),
    "what is missing": lambda kind, value: (GenericAlias(list, kind | None), [None]),
}


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("name", CASES)
def test_a_value_comes_back_from_inside_of_others(name: str, within: str) -> None:
    _, case = CASES[name]
    kind, value = WITHIN[within](case.kind, case.value)
    assert all(is_same(value, back) for back in arrived(kind, value))


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if case.kind != Point])
def test_a_value_comes_back_from_inside_of_a_dataclass(name: str) -> None:
    _, case = CASES[name]
    kind = holder(case.kind)
    made: Any = kind
    assert all(is_same(made(case.value), back) for back in arrived(kind, made(case.value)))


@pytest.mark.parametrize("name", CASES)
def test_without_annotation_a_value_travels_or_is_refused(name: str) -> None:
    line, case = CASES[name]
    if line.alone == TRAVELS:
        assert all(is_same(case.value, back) for back in arrived(Any, case.value))
        return
    made = handler(Any)
    with pytest.raises(InvalidInput, match="would arrive as"):
        made.encode_call((case.value,), {})
    with pytest.raises(InvalidInput, match="would arrive as"):
        made.result.encode(case.value)


@pytest.mark.parametrize(("types", "kind", "value"), REFUSED)
def test_what_the_table_refuses_is_refused(types: str, kind: object, value: object) -> None:
    made = handler(kind)
    with pytest.raises(InvalidInput, match="cannot be stored") as refused:
        made.encode_call((value,), {})
    assert (refused.value.field or "").startswith("v")
    with pytest.raises(InvalidInput, match="cannot be stored"):
        made.result.encode(value)


async def test_every_value_travels_along_an_edge() -> None:
    app = App("memory://", types=HOOKS)
    cases = [case for _, case in CASES.values()]
    got: dict[int, object] = {}

    def pair(place: int, case: Case) -> tuple[Any, Any]:
        def give() -> Any:
            return case.value

        def take(value: Any, some: Any) -> None:
            got[place] = value
            assert is_same([value], some)

        give.__annotations__ = {"return": case.kind}
        take.__annotations__ = {"value": case.kind, "some": GenericAlias(list, case.kind)}
        named = app.task(name=f"give-{place}"), app.task(name=f"take-{place}")
        return named[0](give), named[1](take)

    graph = app.graph("edges")
    for place, case in enumerate(cases):
        give, take = pair(place, case)
        node = graph.add(give)
        graph.add(take, node, [node])
    async with running(app):
        run = await graph.submit()
        await run.wait()
    assert len(got) == len(cases)
    assert all(is_same(case.value, got[place]) for place, case in enumerate(cases))
