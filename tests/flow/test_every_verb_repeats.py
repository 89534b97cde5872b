"""Every verb that writes: its reply is lost once, and the caller calls it again.

The verbs are found in the classes themselves: a new one without a row here is a failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from flowfabric.core.entries import Entry
from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import CancelPolicy, EdgeKind, Join
from flowfabric.core.flow.views import Members, Sight
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.operator import ExpireReason
from flowfabric.core.states import LaneState, Reason
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_building import FlowBuilding
from flowfabric.engine.flow_replaying import FlowReplaying
from flowfabric.engine.flows import Flows, SubmittedFlow
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.outcomes import Completed, Finished
from flowfabric.engine.overseeing import Overseeing
from flowfabric.engine.renewals import Renewed
from flowfabric.engine.submissions import Submitted
from flowfabric.errors import FlowFabricError
from flowfabric.testing import build
from flowfabric.testing.build import KIND, LANE, TTL_MS
from flowfabric.testing.conformance.steps import contents
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, links, member, order, plan
from tests.flow.desk import FlowDesk

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "repeating.md"
SOLO = build.execution_id(0)
TERMS = build.policy(retries=1)
BROKEN = Failure("broke")

Prepare = Callable[[FlowDesk], Awaitable[Lease | None]]
Call = Callable[[Engine, Lease], Awaitable[object]]


async def nothing(_: FlowDesk) -> None:
    """Nothing is there."""


async def waiting(desk: FlowDesk) -> None:
    await desk.submit(build.order(0, policy=TERMS))


async def blocked(desk: FlowDesk) -> None:
    await waiting(desk)
    await desk.engine.block(SOLO, Reason.PAUSED_BY_OPERATOR)


async def granted(desk: FlowDesk) -> Lease:
    await waiting(desk)
    return await desk.take(SOLO, start=False)


async def running(desk: FlowDesk) -> Lease:
    await waiting(desk)
    return await desk.take(SOLO)


async def completed(desk: FlowDesk) -> None:
    await desk.engine.complete(await running(desk), b"1")


async def flow(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))


async def ended_member(desk: FlowDesk) -> None:
    await flow(desk)
    await desk.ended("a")


async def drawn(desk: FlowDesk) -> None:
    await flow(desk)
    await desk.engine.flows.build.link(FLOW, links("a>b")[0])


async def outsider(desk: FlowDesk) -> None:
    await flow(desk)
    await desk.engine.submit([order("z")])


class Row(NamedTuple):
    """How a verb is called, what of the store loses its reply, and a call that is another one."""

    prepare: Prepare
    call: Call
    loses: Verb = Verb.COMMIT
    other: Call | None = None


ALL_OF, ANY_OF = Policy(), Policy(Join.ANY_OF)
NEW = Addition(orders=[order("n")], links=links("a>n"))
OTHER_INPUT = Addition(orders=[order("n", payload=b"[]")], links=links("a>n"))
REQUEST = "the-same-request"

ENGINE: dict[str, Row] = {
    "submit": Row(
        nothing,
        lambda e, _: e.submit([build.order(0, key="k", payload=b"1", digest="1")]),
        Verb.INSERT,
        lambda e, _: _first_error(e.submit([build.order(1, key="k", payload=b"2", digest="2")])),
    ),
    "claim": Row(
        waiting,
        lambda e, _: e.claim(
            [LANE], 1, tasks=[KIND], worker="w", token="mine", ttl_ms=TTL_MS, repeated=True
        ),
        Verb.CLAIM,
    ),
    "start": Row(granted, lambda e, lease: e.start(lease), Verb.APPLY),
    "renew": Row(running, lambda e, lease: e.renew([lease], TTL_MS), Verb.APPLY),
    "progress": Row(running, lambda e, lease: e.progress(lease, 50, "half"), Verb.APPLY),
    "append": Row(
        running, lambda e, lease: e.append([(lease, (Entry("t", "k", b"1"),))]), Verb.APPEND
    ),
    "finish": Row(running, lambda e, lease: e.finish([Completed(lease, b"1")]), Verb.APPLY),
    "finish_and_follow": Row(
        running, lambda e, lease: _answers(e, Completed(lease, b"1")), Verb.APPLY
    ),
    "complete": Row(
        running,
        lambda e, lease: e.complete(lease, b"1"),
        Verb.APPLY,
        lambda e, lease: e.complete(lease, b"2"),
    ),
    "fail": Row(
        running,
        lambda e, lease: e.fail(lease, BROKEN),
        Verb.APPLY,
        lambda e, lease: e.fail(lease, Failure("broke", fatal=True)),
    ),
    "delay": Row(
        running,
        lambda e, lease: e.delay(lease, lease.until_ms),
        Verb.APPLY,
        lambda e, lease: e.delay(lease, lease.until_ms + 1),
    ),
    "release": Row(
        running,
        lambda e, lease: e.release(lease),
        Verb.APPLY,
        lambda e, lease: e.complete(lease, b"1"),
    ),
}
OVERSEEING: dict[str, Row] = {
    "cancel": Row(
        running,
        lambda e, _: e.cancel(SOLO, request=REQUEST),
        other=lambda e, _: e.expire(SOLO, ExpireReason.ATTEMPT_TIMEOUT, request=REQUEST),
    ),
    "expire": Row(
        running,
        lambda e, _: e.expire(SOLO, ExpireReason.ATTEMPT_TIMEOUT, request=REQUEST),
        other=lambda e, _: e.cancel(SOLO),
    ),
    "revoke": Row(
        running,
        lambda e, _: e.revoke(SOLO, request=REQUEST),
        other=lambda e, _: e.revoke(SOLO, worker="another", request=REQUEST),
    ),
    "replay": Row(
        completed,
        lambda e, _: e.replay(SOLO, request=REQUEST),
        other=lambda e, _: e.replay(SOLO),
    ),
    "change_priority": Row(
        waiting,
        lambda e, _: e.change_priority(SOLO, 9, request=REQUEST),
        other=lambda e, _: e.change_priority(SOLO, 8, request=REQUEST),
    ),
    "block": Row(
        waiting,
        lambda e, _: e.block(SOLO, Reason.WAITING_FOR_BUDGET, request=REQUEST),
        other=lambda e, _: e.block(SOLO, Reason.WAITING_FOR_QUOTA),
    ),
    "unblock": Row(
        blocked,
        lambda e, _: e.unblock(SOLO, request=REQUEST),
        other=lambda e, _: e.unblock(SOLO),
    ),
    "pause": Row(
        waiting,
        lambda e, _: e.pause(SOLO, request=REQUEST),
        other=lambda e, _: e.block(SOLO, Reason.PAUSED_BY_POLICY, request=REQUEST),
    ),
    "resume": Row(
        blocked,
        lambda e, _: e.resume(SOLO, request=REQUEST),
        other=lambda e, _: e.unblock(SOLO, request=REQUEST),
    ),
    "purge": Row(completed, lambda e, _: e.purge(SOLO), Verb.PURGE),
    "set_tags": Row(
        waiting,
        lambda e, _: e.set_tags(SOLO, {"demo.tenant": "acme"}, request=REQUEST),
        other=lambda e, _: e.set_tags(SOLO, {}),
    ),
    "set_lane": Row(waiting, lambda e, _: e.set_lane(LANE, LaneState.PAUSED)),
}
FLOWS: dict[str, Row] = {
    "submit": Row(
        nothing,
        lambda e, _: e.flows.submit(plan("ab", "a>b")),
        Verb.COMMIT_EACH,
        lambda e, _: e.flows.submit(msgspec.structs.replace(plan("abc", "a>b"), digest="another")),
    ),
    "cancel": Row(
        flow,
        lambda e, _: e.flows.cancel(FLOW, CancelPolicy.CANCEL_ALL),
        other=lambda e, _: e.flows.cancel(FLOW, CancelPolicy.FLOW_ONLY),
    ),
}
BUILDING: dict[str, Row] = {
    "join": Row(outsider, lambda e, _: e.flows.build.join(FLOW, member("z"), request=REQUEST)),
    "add": Row(
        flow,
        lambda e, _: e.flows.build.add(FLOW, NEW, request=REQUEST),
        other=lambda e, _: e.flows.build.add(FLOW, OTHER_INPUT),
    ),
    "link": Row(
        flow,
        lambda e, _: e.flows.build.link(FLOW, links("a>b")[0], request=REQUEST),
        other=lambda e, _: e.flows.build.link(FLOW, links("a>b", kind=EdgeKind.ORDER)[0]),
    ),
    "seal": Row(
        drawn,
        lambda e, _: e.flows.build.seal(FLOW, member("b"), request=REQUEST),
        other=lambda e, _: e.flows.build.seal(FLOW, member("a")),
    ),
    "set_policy": Row(
        flow,
        lambda e, _: e.flows.build.set_policy(FLOW, member("b"), ANY_OF, request=REQUEST),
        other=lambda e, _: e.flows.build.set_policy(FLOW, member("b"), ALL_OF, request=REQUEST),
    ),
}
REPLAYING: dict[str, Row] = {
    "replay": Row(
        ended_member,
        lambda e, _: e.flows.replaying.replay(FLOW, member("a"), request=REQUEST),
        other=lambda e, _: e.flows.replaying.replay(FLOW, member("a")),
    ),
}
LANES: dict[str, Row] = {"set": Row(waiting, lambda e, _: e.lanes.set(LANE, LaneState.PAUSED))}

TABLES: dict[type, dict[str, Row]] = {
    Engine: ENGINE,
    Overseeing: OVERSEEING,
    Flows: FLOWS,
    FlowBuilding: BUILDING,
    FlowReplaying: REPLAYING,
    Lanes: LANES,
}
# What writes nothing, or nothing of its own.
OTHERS: dict[type, set[str]] = {
    Engine: {"open", "close", "hints"},
    Overseeing: {"adopt"},
    Flows: {
        *("flow", "status", "summary", "counted", "picture", "members", "backlog", "owed"),
        *("inputs", "known_inputs", "wait_cancelled", "require_readable"),
    },
    FlowBuilding: set(),
    FlowReplaying: set(),
    Lanes: {"state", "serving", "closed"},
}
ROWS = [(kind, name) for kind, table in TABLES.items() for name in table]


async def _first_error(submitting: Awaitable[list[Submitted]]) -> None:
    (answer,) = await submitting
    if answer.error is not None:
        raise answer.error


async def _answers(engine: Engine, outcome: Completed) -> list[Finished]:
    return (await engine.finish_and_follow([outcome])).answers


def said(answer: object) -> object:
    """An answer without the word that it was given before."""
    match answer:
        case Finished():
            return msgspec.structs.replace(answer, repeated=False)
        case Submitted() | SubmittedFlow():
            return answer.id
        case Renewed():
            return answer.lease.until_ms, answer.error
        case list():
            return [said(each) for each in answer]
        case _:
            return answer


async def everything(desk: FlowDesk) -> tuple[object, ...]:
    """All that is stored; the log, the lanes and the flow among it."""
    sight = Sight(flow=FLOW, members=Members(limit=100), lines=True, whole=True)
    return await contents(desk.store), await desk.store.graph([sight])


@pytest.mark.parametrize("kind", TABLES)
def test_every_verb_that_writes_has_a_row(kind: type) -> None:
    public = {name for name, each in vars(kind).items() if not name.startswith("_")}
    assert public == TABLES[kind].keys() | OTHERS[kind]


@pytest.mark.parametrize("name", sorted({name for _, name in ROWS}))
def test_the_page_says_what_makes_a_verb_a_repetition(name: str) -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert any(f"`{name}`" in row.split("|")[1] for row in rows)


@pytest.mark.parametrize(("kind", "name"), ROWS)
async def test_a_verb_whose_reply_is_lost_can_be_called_again(
    desk: FlowDesk, kind: type, name: str
) -> None:
    row = TABLES[kind][name]
    lease = await row.prepare(desk)
    held = lease or Lease(build.submissions([build.order(0)], 0)[0].execution)
    faulty = FaultyStore(desk.store, [Fault(row.loses, 1, Kind.AFTER)])
    unlucky = Engine(faulty, clock=desk.clock)
    await unlucky.open()
    first = await row.call(unlucky, held)
    assert len(faulty.hit) == 1
    after = await everything(desk)
    again = await row.call(desk.another().engine, held)
    assert said(again) == said(first)
    if name not in ("renew", "progress"):
        assert await everything(desk) == after


@pytest.mark.parametrize(("kind", "name"), [r for r in ROWS if TABLES[r[0]][r[1]].other])
async def test_a_different_second_call_is_refused(desk: FlowDesk, kind: type, name: str) -> None:
    row = TABLES[kind][name]
    lease = await row.prepare(desk)
    held = lease or Lease(build.submissions([build.order(0)], 0)[0].execution)
    await row.call(desk.engine, held)
    after = await everything(desk)
    assert row.other is not None
    with pytest.raises(FlowFabricError):
        await row.other(desk.engine, held)
    assert await everything(desk) == after


async def test_a_cancel_that_is_repeated_leaves_a_later_replay_alone(desk: FlowDesk) -> None:
    await running(desk)
    await desk.engine.cancel(SOLO, request="cancel-1")
    await desk.engine.replay(SOLO, request="replay-1")
    await desk.engine.cancel(SOLO, request="cancel-1")
    await desk.engine.replay(SOLO, request="replay-1")
    row = await desk.head(SOLO)
    assert (row.state, row.replay_count) == ("waiting", 1)
    kinds = await desk.history(SOLO)
    assert (kinds.count("cancelled"), kinds.count("replayed")) == (1, 1)


async def test_two_cancels_are_one_line(desk: FlowDesk) -> None:
    await running(desk)
    for _ in range(2):
        assert await desk.engine.cancel(SOLO) == "cancelled"
    assert (await desk.history(SOLO)).count("cancelled") == 1
