"""A user with the rights that the guide lists, and no others: enough for all work, clear if not."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed, Query
from flowfabric.core.policy import DAY_MS
from flowfabric.core.retention import FlowDeparture, Purge
from flowfabric.errors import StoreUnavailable
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.flow_steps import (
    add_lines,
    everything,
    flow_of,
    put_flow,
    take_flows,
)
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import apply, put, put_and_take
from flowfabric.testing.flows import flow_id, plan
from flowfabric.testing.servers import ValkeyCluster, ValkeyServer
from tests.store.story import tell
from tests.store.valkey.conftest import Opener
from tests.store.valkey.test_wakeups import listening

GUIDE = Path(__file__).parents[3] / "docs/guides/valkey.md"
UPKEEP = ("+scan", "+memory|usage", "+function|delete")


Restricted = Callable[..., ValkeyStore]


def listed() -> list[str]:
    """The words of the guide's ACL SETUSER, after the user's name."""
    text = GUIDE.read_text(encoding="utf-8")
    (block,) = re.findall(r"> ACL SETUSER app (.*?)```", text, re.DOTALL)
    return str(block).split()


@pytest.fixture(params=["server", "cluster"])
def restricted(request: pytest.FixtureRequest, opener: Opener) -> Iterator[Restricted]:
    """Opens stores, with one prefix, for a user who is gone afterwards."""
    found: ValkeyServer | ValkeyCluster = request.getfixturevalue(request.param)
    nodes = found.nodes if isinstance(found, ValkeyCluster) else [found]
    user = f"app_{secrets.token_hex(4)}"

    def say(*words: str) -> None:
        for node in nodes:
            with node.talk() as talk:
                talk.ask(*words)

    def opened(*more: str, without: str = "") -> ValkeyStore:
        words = [word.replace("ff:", f"{user}:") for word in listed() if word != without]
        say("ACL", "SETUSER", user, *words, *more)
        parts = urlsplit(found.url)
        host = parts.netloc.rpartition("@")[2]
        return opener(parts._replace(netloc=f"{user}:secret@{host}").geturl(), prefix=user)

    yield opened
    say("ACL", "DELUSER", user)


async def test_all_work_is_done_with_the_rights_of_the_guide(
    restricted: Restricted, clock: VirtualClock
) -> None:
    store, other = restricted(*UPKEEP), restricted(*UPKEEP)
    await store.migrate()
    await other.migrate()
    ear = await listening(store)
    await tell(other, clock)
    assert (await ear.next()).ready
    await put_flow(store, clock, plan("abc", "a>b b>c", flow=flow_id(1)))
    await add_lines(store, clock, line(1))
    assert await take_flows(store, clock)
    assert (await everything(store, flow_id(1))).edges
    assert await store.find(Query(limit=100))
    assert await store.tail(Feed(limit=100))
    assert (await store.due(clock.now_ms() + 10**6, 100)).rows
    assert {size.name for size in await store.sizes() if size.rows}
    lease = await put_and_take(store, clock, order(77, key="mine", digest="d"))
    await apply(store, clock, complete(lease, clock.now_ms(), b"1"))
    clock.advance(DAY_MS)
    gone = (await store.departing(clock.now_ms(), 10)).executions
    flows = [FlowDeparture(flow_id(1), (await flow_of(store, flow_id(1))).rev)]
    purge = Purge(now_ms=clock.now_ms(), executions=gone, flows=flows)
    assert {lease.id, flow_id(1)} <= set((await store.purge(purge)).gone)
    await store.drop()


def test_the_guide_lists_every_command_of_the_functions() -> None:
    folder = files("flowfabric.store.lua")
    library = "".join(
        file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".lua")
    )
    used = {word.lower() for word in re.findall(r"\bcall(?:\(|, )'(\w+)'", library)}
    assert {"hset", "zadd", "xadd"} <= used
    assert used <= {word.removeprefix("+") for word in listed()}


async def refusal(restricted: Restricted, clock: VirtualClock, *, without: str) -> StoreUnavailable:
    """Why the first order cannot be written by a user who lacks this right."""
    store = restricted(without=without)
    try:
        await store.migrate()
        await put(store, clock, order(0))
    except StoreUnavailable as error:
        return error
    raise AssertionError(f"written without {without}")


# The last one is missing inside a function.
@pytest.mark.parametrize("missing", ["+client|setname", "+info", "+fcall", "+zadd"])
async def test_a_command_that_is_missing_is_named(
    restricted: Restricted, clock: VirtualClock, missing: str
) -> None:
    error = await refusal(restricted, clock, without=missing)
    assert f"'{missing.removeprefix('+')}'" in str(error)
    assert (error.code, error.retryable) == ("auth", False)
    assert f"needs {missing}," in error.hint
    assert "guide" in error.hint


async def test_keys_of_another_prefix_are_out_of_reach(
    restricted: Restricted, clock: VirtualClock
) -> None:
    error = await refusal(restricted, clock, without="~ff:*")
    assert "No permissions to access a key" in str(error)
    assert (error.code, error.retryable) == ("auth", False)
    assert "~<prefix>:*" in error.hint
