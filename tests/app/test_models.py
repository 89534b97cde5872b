"""Models and hooked types on their way through an app: started, returned, along edges, replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from flowfabric import App, ExecutionFailed, InvalidInput, Task, TypeHook
from tests.app.stage import running, written
from tests.worker.travelling import Customer, Money, Order


@dataclass
class Bill:
    order: Order
    total: Money


@pytest.fixture
async def shop(app: App, url: str) -> App:
    """The same app, with a type of its own."""
    return App(url, drain="5s", types=[TypeHook(Money, encode=str, decode=Money.parse)])


async def test_models_and_hooked_types_go_in_and_come_out(shop: App) -> None:
    @shop.task
    async def bill(order: Order, prices: list[Money]) -> Bill:
        assert isinstance(order.customer, Customer)
        return Bill(order, Money(sum(each.cents for each in prices), prices[0].currency))

    @shop.task
    def greet(bill: Bill, customer: Customer | None = None) -> list[Customer | None]:
        return [bill.order.customer, customer]

    order = Order(id=1, sum=9.5, customer=Customer(name="Ada"))
    graph = shop.graph("sale")
    made = graph.add(bill, order, [Money(3, "EUR"), Money(4, "EUR")])
    greeted = graph.add(greet, made)
    async with running(shop):
        run = await graph.submit()
        found = await run.result(made)
        assert (found.order, str(found.total)) == (order, "7 EUR")
        assert await run.result(greeted) == [Customer(name="Ada"), None]
        # The plain form of a model is taken, too; type checkers want the model.
        anyhow: Task[..., Bill] = bill
        alone = await anyhow.start({"id": 2, "sum": 1, "customer": {"name": "Bo"}}, ["5 EUR"])
        assert (await alone.result()).order.customer == Customer(name="Bo")


async def test_what_does_not_validate_is_refused_when_it_is_started(app: App) -> None:
    @app.task
    async def pay(order: Order) -> None: ...

    with pytest.raises(InvalidInput, match=r"'pay': id: .*valid integer") as refused:
        await cast(Task[..., None], pay).start({"id": "one", "sum": 1})
    assert refused.value.field == "order.id"
    assert await written(app) == (0, 0)


async def test_a_result_that_does_not_validate_fails_the_attempt(app: App) -> None:
    @app.task(retries=3)
    async def order() -> Order:
        return cast(Order, {"id": 1})

    async with running(app):
        handle = await order.start()
        with pytest.raises(ExecutionFailed, match=r"which returns Order.*sum: Field req") as failed:
            await handle.result()
    assert failed.value.details["category"] == "invalid_result"


async def test_a_model_is_not_passed_to_a_parameter_that_does_not_say_so(app: App) -> None:
    @app.task
    async def order() -> Order:
        return Order(id=1, sum=1)

    @app.task
    async def pay(order): ...  # type: ignore[no-untyped-def]

    graph = app.graph("sale")
    with pytest.raises(InvalidInput, match="passes Order, but the parameter has no annotation"):
        graph.add(pay, graph.add(order))
