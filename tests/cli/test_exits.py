"""One table of exit codes over the error tree."""

import pytest
from typer.testing import CliRunner

from flowfabric import errors
from flowfabric.cli.exits import EXIT_CODES, exit_code, known_error, sentence
from flowfabric.cli.main import app
from flowfabric.errors import FlowFabricError


def tree(root: type[FlowFabricError]) -> set[type[FlowFabricError]]:
    return {root}.union(*(tree(child) for child in root.__subclasses__()))


def test_every_branch_of_the_tree_has_a_row_of_its_own() -> None:
    assert set(FlowFabricError.__subclasses__()) | {FlowFabricError} == set(EXIT_CODES)


@pytest.mark.parametrize("kind", sorted(tree(FlowFabricError), key=str))
def test_every_error_leaves_with_the_code_of_its_branch(kind: type[FlowFabricError]) -> None:
    branch = next(c for c in kind.__mro__ if c is FlowFabricError or FlowFabricError in c.__bases__)
    assert issubclass(branch, FlowFabricError)
    assert exit_code(kind) == EXIT_CODES[branch]
    assert 0 < exit_code(kind) < 126


def test_the_help_explains_every_code() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output.partition("Exit codes:")[2]
    explained = {int(line.split()[0]) for line in shown.splitlines() if line.strip()}
    assert explained == {0, 130, *EXIT_CODES.values()}


def test_an_error_is_said_on_one_line() -> None:
    error = errors.InvalidInput("two\n  lines", field="name", hint="write\none")
    assert sentence(error) == r"name: two\n  lines (write\none)"


def test_the_error_inside_a_group_is_the_one_that_is_told() -> None:
    inner = errors.Refused("not now")
    assert known_error(ExceptionGroup("tasks", [ExceptionGroup("more", [inner])])) is inner


@pytest.mark.parametrize("other", [ValueError("a bug"), KeyboardInterrupt(), SystemExit(3)])
def test_what_is_not_of_the_tree_is_left_alone(other: BaseException) -> None:
    assert known_error(other) is None
