"""Tokens of requests that a record keeps."""

from __future__ import annotations

from flowfabric.core.requests import KEPT, is_known, with_request


def test_a_request_is_known_once_it_was_added() -> None:
    requests = with_request("", "a")
    assert is_known(requests, "a")
    assert not is_known(requests, "b")


def test_no_part_of_a_token_is_taken_for_it() -> None:
    assert not is_known(with_request("", "abc"), "ab")


def test_nothing_is_known_of_a_record_without_requests() -> None:
    assert not is_known("", "a")


def test_the_last_few_are_kept_newest_last() -> None:
    requests = ""
    for number in range(KEPT + 2):
        requests = with_request(requests, f"t{number}")
    assert requests.split() == [f"t{number}" for number in range(2, KEPT + 2)]
