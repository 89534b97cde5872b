"""Logging is configured by the command line, and by nothing else."""

import json
import logging
import subprocess
import sys

import pytest

from flowfabric.cli.logs import JsonFormatter, TextFormatter
from tests.cli.command import ff


def record(message: str, **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("flowfabric.worker")
    return logger.makeRecord(
        logger.name, logging.WARNING, "worker.py", 1, message, ("x",), None, extra=extra
    )


def test_a_json_line_has_the_fields_that_the_caller_passed() -> None:
    text = JsonFormatter().format(record("lost %s", execution="{fp:1}:a", failures=3))
    line = json.loads(text)
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "flowfabric.worker",
        "message": "lost x",
        "execution": "{fp:1}:a",
        "failures": 3,
    }


def test_a_json_line_is_one_line_whatever_is_in_it() -> None:
    text = JsonFormatter().format(record("a\nb\u2028 %s", body=b"\n", odd={1}, low="\ud800"))
    assert len(text.splitlines()) == 1
    line = json.loads(text)
    assert (line["message"], line["odd"], line["low"]) == ("a\nb\u2028 x", "{1}", "\ud800")


def test_an_extra_cannot_hide_what_every_line_has() -> None:
    line = json.loads(JsonFormatter().format(record("real %s", level="fake", at="never")))
    assert line["level"] == "warning"
    assert line["at"] != "never"


def test_text_shows_the_extra_fields_too() -> None:
    text = TextFormatter().format(record("lost %s", failures=3))
    assert text.partition(" ")[2] == "warning flowfabric.worker: lost x failures=3"


def logged(form: str, level: str) -> list[str]:
    arguments = ("--log-format", form, "--log-level", level)
    ran = ff(*arguments, "bench", "cycle", "--store", "mongo://x")
    assert (ran.returncode, ran.stdout) == (2, "")
    return ran.stderr.splitlines()


def test_json_lines_go_to_standard_error_with_error_and_trace() -> None:
    *lines, told = logged("json", "debug")
    (line,) = [json.loads(text) for text in lines if json.loads(text)["logger"] == "flowfabric.cli"]
    assert (line["level"], line["error"]) == ("debug", "invalid_input")
    assert "Traceback" in line["exception"]
    assert told.startswith("Error: url: unknown scheme")


@pytest.mark.parametrize("form", ["json", "text"])
def test_below_the_level_nothing_is_logged(form: str) -> None:
    assert len(logged(form, "info")) == 1


def test_an_unknown_format_is_refused_with_the_choices() -> None:
    ran = ff("--log-format", "xml", "demo")
    assert ran.returncode == 2
    assert "json" in ran.stderr


def test_importing_the_library_configures_no_logging() -> None:
    program = (
        "import logging, flowfabric, flowfabric.cli.main\n"
        "names = [type(h).__name__ for h in logging.getLogger('flowfabric').handlers]\n"
        "print(logging.getLogger().handlers, names, logging.getLogger('flowfabric').level)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[] ['NullHandler'] 0\n"
