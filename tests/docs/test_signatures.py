"""The page of signatures is what the code says, and it has every public method."""

from __future__ import annotations

import flowfabric
from tools import reference

PAGE = reference.PAGE.read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    assert reference.rendered() == PAGE


def test_every_option_of_an_app_is_there() -> None:
    assert "## App\n" in PAGE
    for name in ("App.task", "App.running", "App.work", "Handle.result"):
        assert f"### `{name}`" in PAGE
    assert "    attempt_timeout: Span | None = None,\n" in PAGE


def test_marks_and_defaults_are_written_as_in_the_source() -> None:
    def example(one: int, /, two: str = "x", *rest: int, three: float, **more: str) -> bool:
        return bool(one)

    expected = "f.x(one: int, /, two: str = 'x', *rest: int, three: float, **more: str) -> bool"
    assert reference.signature("f.x", example) == expected


def test_no_public_class_is_left_out() -> None:
    named = {name: getattr(flowfabric, name) for name in flowfabric.__all__}
    errors = {
        name
        for name, value in named.items()
        if isinstance(value, type) and issubclass(value, flowfabric.FlowFabricError)
    }
    kinds = {kind.__name__ for kind in reference.public_classes()}
    assert named.keys() - kinds - errors == {"__version__"}
