"""What is public is documented: every name, every option, every error."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import flowfabric
from flowfabric import App, Context, Engine, Handle, Task, errors
from flowfabric.engine.overseeing import Overseeing

ROOT = Path(__file__).resolve().parents[2]


def reference() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "reference").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


REFERENCE = reference()


def is_told(word: str) -> bool:
    """Named in code style, alone or with what it belongs to, or at the head of a call."""
    return re.search(rf"`(?:[\w.@]+\.)?{re.escape(word)}(?:`|\()", REFERENCE) is not None


@pytest.mark.parametrize("name", [name for name in flowfabric.__all__ if name != "__version__"])
def test_a_public_name_is_documented(name: str) -> None:
    assert is_told(name)


def public_methods(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


METHODS = [
    (kind, name)
    for kind in (App, Task, Handle, Context, Engine, Overseeing)
    for name in public_methods(kind)
]


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_public_method_is_documented(kind: type, name: str) -> None:
    assert is_told(name)


OPTIONS = sorted(
    {
        name
        for function in (App.task, Task.options)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_documented(name: str) -> None:
    assert is_told(name)


ERRORS = sorted(
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.FlowFabricError)
)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_documented(name: str) -> None:
    assert is_told(name)
    assert getattr(errors, name).__doc__
