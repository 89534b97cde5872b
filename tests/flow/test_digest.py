"""What a keyed graph means: every field counts, or it is listed with why it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowfabric.core.duration import When
from flowfabric.core.flow.digest import Said, digest_of, is_same
from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, GroupKey, Join, OnSatisfied
from flowfabric.core.lifecycle import Order
from flowfabric.core.policy import RetentionPolicy
from flowfabric.testing.clock import START_MS
from flowfabric.testing.flows import FLOW, flow_id, links, member, order, plan

NOW = START_MS
JOINED = Policy(Join.QUORUM, 1, OnSatisfied.CANCEL_REMAINING)


def whole() -> Plan:
    drawn = plan("abcd", links("a>c b>c") + links("c>d", kind=EdgeKind.COMPLETION))
    policies = {GroupKey(member("c"), "start"): JOINED}
    return msgspec.structs.replace(drawn, policies=policies, deadline_ms=NOW + 5_000)


def with_order(**changed: object) -> Plan:
    orders = list(whole().orders)
    orders[1] = msgspec.structs.replace(orders[1], **changed)
    return msgspec.structs.replace(whole(), orders=orders)


def with_link(**changed: object) -> Plan:
    drawn = list(whole().links)
    drawn[1] = msgspec.structs.replace(drawn[1], **changed)
    return msgspec.structs.replace(whole(), links=drawn)


def with_policy(**changed: Any) -> Plan:
    policies = {GroupKey(member("c"), "start"): JOINED._replace(**changed)}
    return msgspec.structs.replace(whole(), policies=policies)


PLAN: dict[str, Plan] = {
    "name": msgspec.structs.replace(whole(), name="other"),
    "orders": msgspec.structs.replace(whole(), orders=[*whole().orders, order("e")]),
    "links": msgspec.structs.replace(whole(), links=whole().links[:2]),
    "policies": msgspec.structs.replace(whole(), policies={}),
    "deadline_ms": msgspec.structs.replace(whole(), deadline_ms=NOW + 5_001),
    "retention": msgspec.structs.replace(whole(), retention=RetentionPolicy(failed_ms=7)),
}
ORDER: dict[str, Plan] = {
    "namespace": with_order(namespace="other"),
    "lane": with_order(lane="other"),
    "kind": with_order(kind="other"),
    "payload": with_order(payload=b"[]"),
    "priority": with_order(priority=1),
    "policy": with_order(policy='{"max_replay_count":1}'),
    "tags": with_order(tags={"demo.x": "y"}),
    "delay_until_ms": with_order(delay_until_ms=NOW + 1),
    "deadline_ms": with_order(deadline_ms=NOW + 1),
    "key": with_order(key="k"),
}
LINK: dict[str, Plan] = {
    "upstream": with_link(upstream=member("d"), downstream=member("c")),
    "downstream": with_link(downstream=member("d")),
    "kind": with_link(kind=EdgeKind.FAILURE),
    "group": with_link(group="other"),
    "argument": with_link(argument="n"),
}
POLICY: dict[str, Plan] = {
    "join": with_policy(join=Join.ANY_OF),
    "k": with_policy(k=2),
    "on_satisfied": with_policy(on_satisfied=OnSatisfied.LET_RUN),
}
# Fields that two submits of the same graph may differ in, or that follow from others.
NOT_COUNTED: dict[type, dict[str, tuple[Plan, str]]] = {
    Plan: {
        "id": (
            msgspec.structs.replace(
                plan("abcd", links("a>c b>c", flow_id(2)), flow=flow_id(2)),
                links=links("a>c b>c", flow_id(2))
                + links("c>d", flow_id(2), kind=EdgeKind.COMPLETION),
                policies={GroupKey(member("c", flow_id(2)), "start"): JOINED},
                deadline_ms=NOW + 5_000,
            ),
            "follows from the key",
        ),
        "namespace": (msgspec.structs.replace(whole(), namespace="x"), "is part of the id"),
        "creator": (msgspec.structs.replace(whole(), creator="me"), "says who, not what"),
        "digest": (msgspec.structs.replace(whole(), digest="x"), "is this itself"),
        "keep_until_ms": (
            msgspec.structs.replace(whole(), keep_until_ms=NOW),
            "how long the key itself is known",
        ),
    },
    Order: {
        "id": (whole(), "stands for a place in the graph; see Plan.id"),
        "creator": (with_order(creator="me"), "says who, not what"),
        "digest": (with_order(digest="x"), "follows from task and payload"),
        "asked_ms": (with_order(asked_ms=NOW), "says when, not what"),
    },
    Link: {},
    Policy: {},
}
COUNTED = {Plan: PLAN, Order: ORDER, Link: LINK, Policy: POLICY}


@pytest.mark.parametrize("record", COUNTED)
def test_every_field_counts_or_is_listed_with_why_not(record: type) -> None:
    fields: tuple[str, ...] = getattr(record, "__struct_fields__", None) or Policy._fields
    assert sorted([*COUNTED[record], *NOT_COUNTED[record]]) == sorted(fields)


@pytest.mark.parametrize(
    ("record", "field"),
    [(record, field) for record, plans in COUNTED.items() for field in plans],
)
def test_what_changes_the_meaning_changes_the_digest(record: type, field: str) -> None:
    assert digest_of(COUNTED[record][field], NOW) != digest_of(whole(), NOW)


@pytest.mark.parametrize(
    ("record", "field"),
    [(record, field) for record, plans in NOT_COUNTED.items() for field in plans],
)
def test_what_does_not_change_the_meaning_does_not(record: type, field: str) -> None:
    assert digest_of(NOT_COUNTED[record][field][0], NOW) == digest_of(whole(), NOW)


def test_the_same_graph_means_the_same_at_any_time() -> None:
    later = msgspec.structs.replace(whole(), deadline_ms=NOW + 5_000 + 777)
    assert digest_of(later, NOW + 777) == digest_of(whole(), NOW)
    assert digest_of(whole(), NOW) == digest_of(whole(), NOW)
    assert whole().id == FLOW


def test_an_instant_that_was_said_means_itself_and_no_span() -> None:
    said = When(NOW + 5_000, is_instant=True)
    assert digest_of(whole(), NOW, said) == digest_of(whole(), NOW + 777, said)
    assert digest_of(whole(), NOW, said) != digest_of(whole(), NOW)
    assert digest_of(whole(), NOW, When(5_000)) == digest_of(whole(), NOW)


@pytest.mark.parametrize("field", ["delay", "deadline"])
def test_an_instant_of_a_member_means_itself_and_no_span(field: str) -> None:
    column = {"delay": "delay_until_ms", "deadline": "deadline_ms"}[field]
    at = with_order(**{column: NOW + 5_000})
    # What has passed is not waited for.
    passed = with_order(**{column: None})
    id = at.orders[1].id
    said = {id: Said(**{field: When(NOW + 5_000, is_instant=True)})}
    span = {id: Said(**{field: When(5_000)})}
    one = digest_of(at, NOW, None, said)
    moved = msgspec.structs.replace(passed, deadline_ms=(passed.deadline_ms or 0) + 777)
    assert digest_of(moved, NOW + 777, None, said) == one
    assert one != digest_of(at, NOW)
    assert digest_of(at, NOW, None, span) == digest_of(at, NOW)


def test_the_order_of_policies_and_tags_is_no_meaning() -> None:
    keys = [GroupKey(member("c"), "start"), GroupKey(member("d"), "start")]
    one, other = (
        msgspec.structs.replace(whole(), policies=dict.fromkeys(some, JOINED))
        for some in (keys, keys[::-1])
    )
    assert digest_of(one, NOW) == digest_of(other, NOW)
    tags = {"demo.a": "1", "demo.b": "2"}
    turned = dict(reversed(tags.items()))
    assert digest_of(with_order(tags=tags), NOW) == digest_of(with_order(tags=turned), NOW)


def test_parts_do_not_run_into_each_other() -> None:
    one = msgspec.structs.replace(whole(), orders=[_said("ab", b"c"), *whole().orders[1:]])
    other = msgspec.structs.replace(whole(), orders=[_said("a", b"bc"), *whole().orders[1:]])
    assert digest_of(one, NOW) != digest_of(other, NOW)


def _said(kind: str, payload: bytes) -> Order:
    return msgspec.structs.replace(whole().orders[0], kind=kind, payload=payload)


@pytest.mark.parametrize(
    ("stored", "given", "same"),
    [
        ("2:a", "2:a", True),
        ("2:a", "2:b", False),
        ("a", "b", False),
        ("a", "a", True),
        ("", "a", False),
        ("a", "2:a", True),
        ("3:a", "2:a", True),
    ],
)
def test_a_digest_of_another_form_is_not_compared(stored: str, given: str, same: bool) -> None:
    assert is_same(stored, given) is same
