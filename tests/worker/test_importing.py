"""How a process of its own finds a task: what it can import, and what is refused with the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flowfabric import App, InvalidInput
from flowfabric.worker.child import importing
from tests.worker import isolating

SCRIPT = """
import asyncio, sys
import flowfabric as ff

app = ff.App(f"sqlite:///{{sys.argv[1]}}")


class Sold(Exception):
    pass


@app.task(isolate="process")
def add(a: int, b: int) -> int:
    if not a:
        raise Sold("out")
    return a + b


async def main() -> None:
    async with app.running():
        for a in (1, 0):
            try:
                print(await (await add.start(a, 2)).result())
            except ff.ExecutionFailed as error:
                print(error.details["type"], error.details["message"])
        assert len(app._handlers) == 1


{guard}asyncio.run(main())
"""


def closure() -> Callable[[], None]:
    def inside() -> None: ...

    return inside


class Called:
    __name__ = "called"

    def __call__(self) -> None: ...


UNREACHABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "a lambda": (lambda: lambda: None, "<lambda> is a lambda, or defined inside a function"),
    "a function in another": (closure, "closure.<locals>.inside is a lambda, or defined"),
    "a partial": (lambda: partial(isolating.raised, "x"), "is not a function of a module"),
    "an object": (Called, "is not a function of a module"),
}


@pytest.mark.parametrize("name", UNREACHABLE)
def test_what_no_process_can_import_is_refused_when_it_is_defined(name: str) -> None:
    make, told = UNREACHABLE[name]
    with pytest.raises(InvalidInput, match="cannot run in a process of its own") as refused:
        App("memory://").task(name="work", isolate="process")(make())
    assert told in refused.value.message
    assert refused.value.field == "isolate"
    assert "top level of a module" in refused.value.hint


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown isolation 'thread'") as refused:
        App("memory://").task(isolate="thread")(isolating.raised)  # type: ignore[call-overload]
    assert "'process'" in refused.value.hint


async def test_a_task_that_is_not_where_its_function_is_is_refused_when_its_worker_starts() -> None:
    app = App("memory://")
    app.task(isolate="process")(isolating.raised)
    with pytest.raises(InvalidInput, match=r"isolating:raised is <function raised"):
        async with app.running():
            pass


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({}, {}),
        ({"__file__": "/nowhere/cell.py"}, {}),
        ({"__file__": __file__}, {"init_main_from_path": __file__}),
        ({"spec": "shop.run"}, {"init_main_from_name": "shop.run"}),
        ({"spec": "shop.__main__", "__file__": __file__}, {}),
    ],
)
def test_a_main_module_is_found_by_its_name_or_its_file(
    facts: dict[str, str], wanted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    for name, value in facts.items():
        if name == "spec":
            main.__spec__ = ModuleSpec(value, None)
        else:
            setattr(main, name, value)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert importing.main_place() == wanted
    work: Any = partial(int)
    work.__module__, work.__qualname__ = "__main__", "work"
    if wanted:
        assert importing.origin_of("work", work).module == "__main__"
    else:
        with pytest.raises(InvalidInput, match="a notebook or an interactive session"):
            importing.origin_of("work", work)


def ran(*command: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", *command, str(folder / "work.db")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", [("shop.py",), ("-m", "shop")])
def test_a_task_of_a_script_is_found(command: tuple[str, ...], tmp_path: Path) -> None:
    text = SCRIPT.format(guard='if __name__ == "__main__":\n    ')
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    assert ran(*command, folder=tmp_path) == ["3", "Sold out"]


def test_a_script_without_guard_does_not_begin_again_in_the_child(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT.format(guard=""), encoding="utf-8")
    first, second = ran("shop.py", folder=tmp_path)
    assert first.startswith("Refused module '__main__' starts work while process")
    assert "if __name__ == '__main__':" in first
    assert second.startswith("Refused")
