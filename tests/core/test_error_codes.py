"""Every code of the table is raised by something, and the reference lists the same codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import flowfabric
from flowfabric.errors import REACTIONS, FlowFabricError, Reaction

PACKAGE = Path(flowfabric.__file__).parent
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
# What a verb answers instead of raising it.
ANSWERED = {"no_active_lease"}
CODES = "_CODES"


def modules() -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        # Not the table itself, which has them all.
        if path.name != "errors.py" and "testing" not in path.parts:
            yield ast.parse(path.read_text(encoding="utf-8"))


def texts(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def code_positions(module: ast.Module) -> dict[str, int]:
    """Functions of a module that take a code, and where."""
    return {
        node.name: [argument.arg for argument in node.args.args].index("code")
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
        and "code" in [argument.arg for argument in node.args.args]
    }


def codes_in(module: ast.Module) -> set[str]:
    """The texts that are given as a code: by name, by place, or through a table of codes."""
    positions = code_positions(module)
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            place = positions.get(node.func.id) if isinstance(node.func, ast.Name) else None
            if place is not None and place < len(node.args):
                given.append(node.args[place])
            found |= {text for value in given for text in texts(value)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == CODES:
            found |= texts(node.value)
    return found


def classes_in(module: ast.Module) -> set[str]:
    """The names that are used, not only imported."""
    return {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}


def leaves(kind: type[FlowFabricError]) -> Iterator[type[FlowFabricError]]:
    below = kind.__subclasses__()
    if not below:
        yield kind
    for each in below:
        yield from leaves(each)


def families(kind: type[FlowFabricError]) -> Iterator[str]:
    """Codes by which several kinds of errors can be handled together."""
    if kind.__subclasses__():
        yield kind.code
    for each in kind.__subclasses__():
        yield from families(each)


def test_every_code_is_raised_by_something() -> None:
    raised = set().union(*map(codes_in, modules()))
    used = set().union(*map(classes_in, modules()))
    own = {kind.code for kind in leaves(FlowFabricError) if kind.__name__ in used}
    assert set(REACTIONS) - raised - own - set(families(FlowFabricError)) - ANSWERED == set()


def test_every_code_that_is_raised_is_in_the_table() -> None:
    raised = set().union(*map(codes_in, modules()))
    known = {text for text in raised if re.fullmatch(r"[a-z_]+", text)}
    assert known - set(REACTIONS) == set()


def test_every_class_of_the_tree_is_used() -> None:
    used = set().union(*map(classes_in, modules()))
    assert {kind.__name__ for kind in leaves(FlowFabricError)} - used == set()


def test_what_is_answered_instead_of_raised_is_answered() -> None:
    texts_of_all = set().union(*map(texts, modules()))
    assert set(REACTIONS) >= ANSWERED
    assert texts_of_all >= ANSWERED


def test_the_reference_lists_every_code_with_its_reaction() -> None:
    listed: dict[str, Reaction] = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        row = re.fullmatch(r"\| (\w+) \| (`.*`) \|", line)
        if row is not None and row[1] in {each.value for each in Reaction}:
            listed |= dict.fromkeys(re.findall(r"`(\w+)`", row[2]), Reaction(row[1]))
    assert listed == REACTIONS
