"""Texts of users that would end a line, steer a terminal or turn around the order of reading, sent
through everything that prints or logs a line."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.cli import keeping
from flowfabric.cli.demo.board import Happening
from flowfabric.cli.demo.screen import Lines
from flowfabric.cli.exits import sentence
from flowfabric.cli.logs import JsonFormatter, TextFormatter
from flowfabric.cli.terminal import print_json
from flowfabric.core.explain import blocking_detail, explain
from flowfabric.core.states import Reason, State
from flowfabric.engine.diagnosis import Diagnosis, Finding, Kind
from flowfabric.engine.doctor import Doctor
from flowfabric.errors import ExecutionFailed, InvalidInput
from flowfabric.printing import one_line
from flowfabric.store.clock import FollowingClock
from flowfabric.store.memory import MemoryStore
from flowfabric.testing import VirtualClock
from tests.core.build import NOW, changed, sample

# New lines of every kind, a colour, a bell, what turns the order around, and what is not seen.
NASTY = "one\ntwo\r\n\x1b[31mred\x07\x85\u2028\u2029\u202egnp.exe\u2066\u200f\u200b\x00\x7f"
PARTS = ("one", "two", "red", "gnp.exe")


def record(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        trace = sys.exc_info()
    extra = {"reason": text}
    return logging.getLogger("f").makeRecord("f", 30, "f", 1, "%s", (text,), trace, extra=extra)


def text_log(text: str) -> str:
    """A record is its first line; what follows is moved in, and cannot be taken for another."""
    first, *trace = TextFormatter().format(record(text)).split("\n")
    assert all(line.startswith("  ") for line in trace)
    return first + "".join(trace)


def demo_line(text: str) -> str:
    out = io.StringIO()
    Lines(out, 0).tell(Happening(0, "worker", text))
    return out.getvalue().removesuffix("\n")


def explained(state: State) -> Callable[[str], str]:
    def tell(text: str) -> str:
        parked = text if state is State.DELAYED else ""
        row = changed(sample(state), outcome_detail=text, parked=parked)
        return explain(row, NOW).sentence + blocking_detail(row)

    return tell


def retried(text: str) -> str:
    reason = Reason.WAITING_FOR_RETRY_BACKOFF
    row = changed(sample(State.DELAYED), reason=reason, outcome_detail=text)
    return explain(row, NOW).sentence


def found(text: str) -> str:
    clock = VirtualClock()
    doctor = Doctor(MemoryStore(clock), FollowingClock(clock))
    doctor._found(Kind.PARKED, text, text)
    (finding,) = doctor._findings
    return finding.subject + finding.sentence


SINKS: dict[str, Callable[[str], str]] = {
    "error": lambda text: str(ExecutionFailed(text, hint=text)),
    "field of an error": lambda text: str(InvalidInput("bad", field=text)),
    "command line": lambda text: sentence(ExecutionFailed(text)),
    "text log": text_log,
    "json log": lambda text: JsonFormatter().format(record(text)),
    "demo": demo_line,
    "failed": explained(State.FAILED),
    "revoked": explained(State.REVOKED),
    "parked": explained(State.DELAYED),
    "retried": retried,
    "doctor": found,
}


def hidden(text: str) -> list[str]:
    return [c for c in text if not c.isprintable() and unicodedata.category(c) != "Zs"]


@pytest.mark.parametrize("sink", SINKS)
def test_what_users_write_stays_on_its_line_and_is_seen_as_it_is(sink: str) -> None:
    line = SINKS[sink](NASTY)
    assert hidden(line) == []
    if sink != "field of an error":
        assert all(part in line for part in PARTS)


@pytest.mark.parametrize("is_json", [True, False])
def test_what_doctor_prints_stays_on_its_line(
    capsys: pytest.CaptureFixture[str], is_json: bool
) -> None:
    """A table wraps a long text by itself; nothing else ends a line."""
    diagnosis = Diagnosis(
        executions=1,
        flows=0,
        timers_lag_ms=0,
        dispatch_lag_ms=0,
        duties=[],
        findings=[Finding(Kind.PARKED, NASTY, NASTY)],
    )
    if is_json:
        print_json(msgspec.structs.asdict(diagnosis))
    else:
        keeping._tell(diagnosis, NASTY)
    out = capsys.readouterr().out
    assert hidden(out.replace("\n", "")) == []
    if is_json:
        assert json.loads(out)["findings"][0]["sentence"] == NASTY


@given(st.text())
def test_nothing_hidden_is_left_and_nothing_seen_is_changed(text: str) -> None:
    assert hidden(one_line(text)) == []
    if not hidden(text):
        assert one_line(text) == text
