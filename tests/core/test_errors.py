"""The tree of errors as it is drawn, one reaction per code, and how an error reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

from flowfabric import errors
from flowfabric.errors import (
    REACTIONS,
    ClockSkew,
    Conflict,
    Corrupt,
    ExecutionNotFound,
    FlowFabricError,
    IllegalTransition,
    InvalidInput,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    Reaction,
    Refused,
    StaleLease,
    StoreUnavailable,
    TaskError,
    error_class,
)
from tests.core.codes import CATALOGUE, NO_SUCH_CALL, documented


def classes() -> dict[str, type[FlowFabricError]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in found if issubclass(kind, FlowFabricError)}


def drawn() -> Iterator[tuple[str, str, str]]:
    """Name, parent and description of each line of the tree in the module's docstring."""
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.fullmatch(r"([│├└─ ]*)([A-Z]\w+)(?:\s{2,}(.+))?", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        yield found[2], path[depth - 1] if depth else "Exception", found[3] or ""


# The tree


def test_the_tree_that_is_drawn_is_the_tree_that_is_there() -> None:
    assert {name: parent for name, parent, _ in drawn()} == {
        name: kind.__bases__[0].__name__ for name, kind in classes().items()
    }


def test_every_class_is_drawn_once() -> None:
    names = [name for name, _, _ in drawn()]
    assert len(names) == len(set(names)) == len(classes())


@pytest.mark.parametrize("name", sorted(classes()))
def test_every_class_says_what_it_means_and_has_a_code_with_a_reaction(name: str) -> None:
    kind = classes()[name]
    assert kind.__doc__
    assert re.fullmatch(r"[a-z_]+", kind.code)
    assert kind is FlowFabricError or kind.code in REACTIONS


def test_every_family_is_described_where_it_is_drawn() -> None:
    parents = {parent for _, parent, _ in drawn()}
    assert [name for name, _, said in drawn() if name in parents and not said] == []


def test_nothing_is_deeper_than_a_family_and_its_members() -> None:
    assert all(len(kind.__mro__) <= len(FlowFabricError.__mro__) + 2 for kind in classes().values())


# Codes


@pytest.mark.case("ER-001", "ER-002")
@pytest.mark.parametrize(("code", "reaction"), documented())
def test_every_code_of_the_catalogue_gives_an_error_with_its_reaction(
    code: str, reaction: Reaction
) -> None:
    kind = error_class(code)
    assert kind is not None
    assert issubclass(kind, FlowFabricError)
    assert FlowFabricError(code=code).reaction is reaction


@pytest.mark.case("ER-002")
@pytest.mark.parametrize("code", NO_SUCH_CALL)
def test_a_code_of_a_call_that_does_not_exist_is_unknown(code: str) -> None:
    assert error_class(code) is None


@pytest.mark.case("ER-002")
def test_each_code_of_its_own_gives_its_own_class() -> None:
    for code in REACTIONS:
        carriers = [known for known in classes().values() if known.code == code]
        assert not carriers or error_class(code) in carriers


def test_the_catalogue_has_all_its_codes_once() -> None:
    codes = [code for codes in CATALOGUE.values() for code in codes.split()]
    assert len(codes) == len(set(codes)) == 92


@pytest.mark.case("ER-002")
@pytest.mark.parametrize("code", ["no_such_code", "", "error", "STALE_LEASE", "invalid_nonsense"])
def test_an_unknown_code_gives_none(code: str) -> None:
    assert error_class(code) is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("execution_not_found", ExecutionNotFound),
        ("illegal_transition", IllegalTransition),
        ("clock_skew", ClockSkew),
        ("transport", StoreUnavailable),
        ("conflict", Conflict),
        ("corruption", Corrupt),
        ("invalid_tag_key", InvalidInput),
        ("fence_required", InvalidInput),
        ("stale_lease", StaleLease),
        ("lane_too_long", InvalidInput),
        ("cluster", StoreUnavailable),
        ("busy_loading", StoreUnavailable),
        ("auth", StoreUnavailable),
        ("edge_group_policy_already_fixed", InvalidInput),
        ("claim_grant_expired", Refused),
    ],
)
def test_a_code_belongs_to_the_class_that_carries_it_or_to_its_family(
    code: str, kind: type[FlowFabricError]
) -> None:
    assert error_class(code) is kind


@pytest.mark.parametrize("code", ["stale_lease", "lease_expired", "lease_revoked"])
def test_a_lost_lease_is_always_a_lost_lease(code: str) -> None:
    kind = error_class(code)
    assert kind is not None
    assert issubclass(kind, LeaseLost)


@pytest.mark.case("ER-003")
def test_of_the_troubles_with_a_store_four_are_worth_another_try() -> None:
    kinds = (
        *("transport", "protocol", "timeout", "auth"),
        *("cluster", "busy_loading", "script_not_loaded", "other"),
    )
    made = [StoreUnavailable(code=kind) for kind in kinds]
    assert tuple(error.code for error in made) == kinds
    assert {error.code for error in made if error.retryable} == {
        "transport",
        "timeout",
        "cluster",
        "busy_loading",
    }


def test_a_code_that_is_not_known_is_not_tried_again() -> None:
    assert FlowFabricError(code="no_such_code").reaction is Reaction.TERMINAL


# How it reads


@pytest.mark.case("ER-024")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidInput("is empty", field="lane", hint="name it"), "lane: is empty (name it)"),
        (InvalidInput("is empty", field="lane"), "lane: is empty"),
        (InvalidInput("is empty", hint="name it"), "is empty (name it)"),
        (InvalidInput("is empty"), "is empty"),
        (InvalidInput("is empty", field="", hint=""), "is empty"),
        (NotFound(), "There is no such record."),
        (PayloadTooLarge("2 MB", hint=""), "2 MB"),
        (
            PayloadTooLarge("2 MB", field="payload"),
            "payload: 2 MB (store large data elsewhere and pass a reference to it)",
        ),
    ],
)
def test_the_parts_that_are_there_are_shown_and_the_others_leave_no_trace(
    error: FlowFabricError, text: str
) -> None:
    assert str(error) == text


PLAIN = sorted(n for n, kind in classes().items() if kind.__init__ is FlowFabricError.__init__)


@pytest.mark.parametrize("name", PLAIN)
def test_an_error_without_a_message_says_what_its_class_means(name: str) -> None:
    error = classes()[name]()
    assert error.message == (classes()[name].__doc__ or "").strip()
    assert error.details == {}


def test_an_error_carries_what_it_was_given_and_its_class_stays_as_it_was() -> None:
    error = Refused("no", field="id", hint="wait", code="lane_closed", details={"lane": "main"})
    assert (error.message, error.field, error.hint) == ("no", "id", "wait")
    assert (error.code, error.details) == ("lane_closed", {"lane": "main"})
    assert error.retryable
    assert (Refused.code, Refused.hint) == ("refused", "")


def test_a_task_says_how_its_attempt_failed() -> None:
    error = TaskError("no answer", category="provider_error", fatal=True)
    assert (str(error), error.category, error.fatal) == ("no answer", "provider_error", True)
    plain = TaskError("no answer")
    assert (plain.category, plain.fatal) == ("handler_error", False)


def test_a_clock_that_is_off_says_by_how_much_and_what_time_it_is() -> None:
    error = ClockSkew.between(store_now_ms=1_000, caller_now_ms=1_700)
    assert error.store_now_ms == 1_000
    assert "700 ms" in str(error)
    assert error.details == {"store_now_ms": 1_000, "caller_now_ms": 1_700}
    assert error.retryable


def test_every_documented_code_can_be_rebuilt_as_an_error() -> None:
    for code in REACTIONS:
        kind = error_class(code)
        assert kind is not None
        rebuilt = kind("what happened") if kind is TaskError else kind("what happened", code=code)
        assert rebuilt.message == "what happened"
    assert ClockSkew("off").store_now_ms is None
