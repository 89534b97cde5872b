"""Requests that a record keeps: which of them are repetitions."""

from __future__ import annotations

import pytest

from flowfabric.core.requests import KEPT, Request, answer_of, request, with_answer
from flowfabric.errors import IdempotencyConflict

A = request("a", "block", "paused")


def test_a_request_is_known_by_its_token_and_answered_what_it_was() -> None:
    requests = with_answer("", A, "blocked:3")
    assert answer_of(requests, A) == "blocked:3"
    assert answer_of(requests, request("b", "block", "paused")) is None


def test_nothing_is_known_of_a_record_without_requests() -> None:
    assert answer_of("", A) is None


@pytest.mark.parametrize("token", ["ab", "abcd", "x/abc", "/"])
def test_no_part_of_a_token_is_taken_for_it(token: str) -> None:
    requests = with_answer("", request("abc", "block"))
    assert answer_of(requests, request(token, "block")) is None


def test_a_token_may_have_any_sign_that_a_word_has() -> None:
    odd = request("a/b/c:ü", "block")
    assert answer_of(with_answer("", odd, "x"), odd) == "x"


@pytest.mark.parametrize(
    "other", [request("a", "cancel", "paused"), request("a", "block", "other")]
)
def test_the_same_token_for_something_else_is_refused(other: Request) -> None:
    with pytest.raises(IdempotencyConflict, match="request 'a' was already used for another call"):
        answer_of(with_answer("", A), other)


def test_the_order_of_named_arguments_is_nothing_else() -> None:
    assert request("a", "tag", {"x": 1, "y": 2}) == request("a", "tag", {"y": 2, "x": 1})


def test_the_last_few_are_kept_newest_last() -> None:
    requests = ""
    for number in range(KEPT + 2):
        requests = with_answer(requests, request(f"t{number}", "block"))
    assert len(requests.split()) == KEPT
    assert answer_of(requests, request("t1", "block")) is None
    assert answer_of(requests, request("t2", "block")) == ""
    assert requests.endswith(f"/t{KEPT + 1}")
