"""Writes docs/reference/signatures.md: every public class with its methods, as the code has them.

python tools/reference.py            write the page again
python tools/reference.py --check    say whether the page is current; exit 1 if it is not
"""

from __future__ import annotations

import argparse
import enum
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_overloads

import flowfabric

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "signatures.md"
WIDTH = 100
HEAD = """# Signatures

Every class of `flowfabric.__all__` with its public methods and their docstrings, written by
`python tools/reference.py` from the code and compared with it by the tests. [The Python
names](api.md) says what each is for; [errors](errors.md) has the error classes.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="compare and write nothing")
    options = arguments.parse_args()
    current = rendered()
    if not options.check:
        PAGE.write_text(current, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != current:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what the code says: run tools/reference.py")


def rendered() -> str:
    return "\n".join([HEAD, *(_section(kind) for kind in public_classes())])


def public_classes() -> list[type]:
    """Without the errors, which have a page of their own."""
    named = (getattr(flowfabric, name) for name in flowfabric.__all__)
    return [
        value for value in named if isinstance(value, type) and not issubclass(value, BaseException)
    ]


def _section(kind: type) -> str:
    parts = [f"## {kind.__name__}\n"]
    if issubclass(kind, enum.Enum):
        words = ", ".join(f"`{member.value}`" for member in kind)
        return "\n".join([*parts, f"{_prose(kind)}{words}\n"])
    if _is_made_by_callers(kind):
        parts.append(_block([signature(kind.__name__, kind)]))
    parts.append(_prose(kind))
    parts.extend(_member(kind, name) for name in public_members(kind))
    return "\n".join(parts)


def _is_made_by_callers(kind: type) -> bool:
    return kind is flowfabric.App or hasattr(kind, "__struct_fields__")


def public_members(kind: type) -> Iterator[str]:
    """Those that the class or a base of this package defines, in the order of the source."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("flowfabric"):
            for name, value in vars(base).items():
                is_method = callable(value) or isinstance(value, property | classmethod)
                if not name.startswith("_") and is_method and name not in seen:
                    seen.add(name)
                    yield name


def _member(kind: type, name: str) -> str:
    found = inspect.getattr_static(kind, name)
    full = f"{kind.__name__}.{name}"
    if isinstance(found, property):
        getter = found.fget
        answer = _annotation(inspect.signature(getter).return_annotation) if getter else ""
        return f"### `{full}`\n\n{_block([f'{full}: {answer}'])}\n{_prose(found)}"
    function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    forms = get_overloads(function) or [function]
    lines = [signature(full, form) for form in forms]
    return f"### `{full}`\n\n{_block(lines)}\n{_prose(function)}"


def signature(name: str, function: Callable[..., object]) -> str:
    """On one line, or one parameter to a line where that is too long."""
    found = inspect.signature(function)
    head = f"async {name}" if inspect.iscoroutinefunction(function) else name
    is_class = "." not in name
    answer = "" if is_class else f" -> {_annotation(found.return_annotation)}"
    parts = list(_parameters(found))
    line = f"{head}({', '.join(parts)}){answer}"
    if len(line) <= WIDTH:
        return line
    return f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"


def _parameters(found: inspect.Signature) -> Iterator[str]:
    """As they are written, with the marks that end and begin kinds of them."""
    shown = [each for each in found.parameters.values() if each.name != "self"]
    kind = inspect.Parameter
    is_marked = any(each.kind is kind.VAR_POSITIONAL for each in shown)
    for place, each in enumerate(shown):
        if each.kind is kind.KEYWORD_ONLY and not is_marked:
            is_marked = True
            yield "*"
        yield _parameter(each)
        following = shown[place + 1].kind if place + 1 < len(shown) else None
        if each.kind is kind.POSITIONAL_ONLY and following is not kind.POSITIONAL_ONLY:
            yield "/"


def _parameter(each: inspect.Parameter) -> str:
    kinds: dict[object, str] = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}
    stars = kinds.get(each.kind, "")
    default = "" if each.default is each.empty else f" = {each.default!r}"
    return f"{stars}{each.name}: {_annotation(each.annotation)}{default}"


def _annotation(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def _block(lines: list[str]) -> str:
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _prose(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return f"{text}\n" if text else ""


if __name__ == "__main__":
    main()
