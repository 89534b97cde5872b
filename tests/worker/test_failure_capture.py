"""Exceptions of every kind as reports: whole where they are small, bounded where they are not."""

from __future__ import annotations

import copy

import pytest

from flowfabric.core.failures import (
    MEMBERS,
    MESSAGE_CHARS,
    TRACEBACK_CHARS,
    UNREADABLE,
    FailureReport,
    decode_report,
    encode_report,
)
from flowfabric.errors import TaskError
from flowfabric.worker.failure_capture import FRAMES, report_of, type_name


def caught(error: BaseException) -> BaseException:
    """The exception as it is after it was raised."""
    try:
        raise error
    except BaseException as raised:
        return raised


def look_up(name: str) -> int:
    return {"a": 1}[name]


def dig(depth: int) -> int:
    if depth == 0:
        return look_up("b")
    return dig(depth - 1)


class OutOfStock(Exception):
    """An exception of a program."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Crooked(Exception):
    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise ValueError("no notes")
        return super().__getattribute__(name)


def test_a_report_has_type_message_traceback_and_notes() -> None:
    with pytest.raises(KeyError) as error:
        look_up("b")
    error.value.add_note("the price list is incomplete")
    report = report_of(error.value)
    assert (report.type, report.message) == ("KeyError", "'b'")
    assert report.headline == "KeyError: 'b'"
    assert report.notes == ("the price list is incomplete",)
    assert 'return {"a": 1}[name]' in report.traceback
    assert report.traceback.rstrip().endswith("KeyError: 'b'\nthe price list is incomplete")


def test_a_type_is_named_with_its_module() -> None:
    assert type_name(OutOfStock()) == f"{__name__}.OutOfStock"
    assert type_name(KeyError()) == "KeyError"
    assert type_name(TaskError("a")) == "TaskError"


def test_causes_are_in_the_traceback() -> None:
    error = OutOfStock("no b")
    error.__cause__ = caught(KeyError("b"))
    report = report_of(caught(error))
    assert "KeyError: 'b'" in report.traceback
    assert "direct cause" in report.traceback


def test_a_deep_stack_keeps_own_frames_and_says_what_is_missing() -> None:
    with pytest.raises(KeyError) as error:
        dig(FRAMES * 3)
    report = report_of(error.value)
    assert "frames left out" in report.traceback
    assert 'return {"a": 1}[name]' in report.traceback
    assert "look_up" in report.traceback


def test_own_frames_go_before_those_of_libraries() -> None:
    box: list[object] = [_Unwritable()]
    for _ in range(FRAMES):
        box = [box]
    with pytest.raises(OutOfStock) as error:
        copy.deepcopy(box)
    report = report_of(error.value)
    assert "in test_own_frames_go_before_those_of_libraries" in report.traceback
    assert "in __deepcopy__" in report.traceback
    assert report.traceback.count("File ") < FRAMES + 2
    assert "frames left out" in report.traceback


class _Unwritable:
    def __deepcopy__(self, _: object) -> object:
        raise OutOfStock


def test_a_group_keeps_its_members() -> None:
    inner = ExceptionGroup("inner", [OSError("c")])
    report = report_of(caught(ExceptionGroup("outer", [ValueError("a"), inner])))
    assert [member.headline for member in report.members[:1]] == ["ValueError: a"]
    assert [member.headline for member in report.members[1].members] == ["OSError: c"]
    assert "ValueError: a" in report.traceback
    assert "OSError: c" in report.traceback


def test_a_group_of_thousands_is_bounded() -> None:
    report = report_of(caught(ExceptionGroup("many", [ValueError(n) for n in range(5_000)])))
    assert len(report.members) == MEMBERS
    assert report.left_out == 5_000 - MEMBERS
    assert f"and {5_000 - MEMBERS} more" in report.traceback


def test_a_long_message_is_bounded_at_both_places() -> None:
    report = report_of(caught(ValueError("x" * 1_000_000 + "the end")))
    assert len(report.message) < MESSAGE_CHARS * 1.1
    assert len(report.traceback) < TRACEBACK_CHARS * 1.1
    assert report.message.endswith("the end")
    assert report.traceback.rstrip().endswith("the end")


def test_text_that_no_store_keeps_is_replaced() -> None:
    report = report_of(caught(ValueError("a\0b\ud800c")))
    assert report.message == "a\N{REPLACEMENT CHARACTER}b?c"


def test_an_exception_without_a_text_is_kept_all_the_same() -> None:
    assert "cannot be read" in report_of(caught(Mute())).message


def test_an_exception_that_cannot_be_looked_at_is_named() -> None:
    report = report_of(caught(Crooked("a")))
    assert report == FailureReport(
        f"{__name__}.Crooked", "the exception cannot be shown: ValueError"
    )


def test_a_report_is_the_same_after_it_was_stored() -> None:
    report = report_of(caught(ExceptionGroup("outer", [ValueError("a")])))
    assert decode_report(encode_report(report)) == report


def test_a_report_that_cannot_be_read_says_so() -> None:
    assert decode_report(b"[1]").type == UNREADABLE
    assert decode_report(b"", "no body").message == "the exception cannot be read: no body"
