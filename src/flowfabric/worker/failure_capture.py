"""Turn an exception of a task into a report: type, message, traceback, notes, members of a group.

The traceback is the one that Python prints, without the frames of the worker. Where a stack is too
deep, the frames of the user's own code are kept first.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

from flowfabric.core.failures import (
    MEMBERS,
    MEMBERS_DEEP,
    MESSAGE_CHARS,
    NOTE_CHARS,
    NOTES,
    TRACEBACK_CHARS,
    TYPE_CHARS,
    FailureReport,
    shortened,
)
from flowfabric.errors import TaskError

FRAMES = 30
CHAIN = 10

_WORKER = str(Path(__file__).parent)
_PACKAGE = str(Path(__file__).parent.parent)
_PATHS = sysconfig.get_paths()
_FOREIGN = (_PACKAGE, _PATHS["stdlib"], _PATHS["platstdlib"], _PATHS["purelib"], _PATHS["platlib"])
_GAP = "…"


def report_of(error: BaseException) -> FailureReport:
    """What to keep of it. Never raises: whatever the exception cannot say is left out."""
    try:
        return _report(error, deep=0)
    except Exception as problem:
        # Reading an exception runs code of the user's: its text, its notes, its members.
        lost = f"the exception cannot be shown: {type(problem).__name__}"
        return FailureReport(type_name(error), lost)


def type_name(error: BaseException) -> str:
    """`KeyError`, `TaskError`, `shop.errors.OutOfStock`: as people know it."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__", "__mp_main__", TaskError.__module__):
        name = f"{kind.__module__}.{name}"
    return shortened(name, TYPE_CHARS)


def _report(error: BaseException, *, deep: int) -> FailureReport:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    shown = inner[:MEMBERS] if deep < MEMBERS_DEEP else ()
    return FailureReport(
        type_name(error),
        shortened(_text(error), MESSAGE_CHARS),
        traceback=_traceback(error) if deep == 0 else "",
        notes=_notes(error),
        members=tuple(_report(member, deep=deep + 1) for member in shown),
        left_out=len(inner) - len(shown),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<the text of this exception cannot be read>"


def _notes(error: BaseException) -> tuple[str, ...]:
    found: object = getattr(error, "__notes__", ())
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return ()
    return tuple(shortened(str(note), NOTE_CHARS) for note in found[:NOTES])


def _traceback(error: BaseException) -> str:
    shown = TracebackException.from_exception(_narrowed(error), compact=True)
    _trim(shown, CHAIN)
    return shortened("".join(shown.format()), TRACEBACK_CHARS)


def _narrowed(error: BaseException) -> BaseException:
    """A group of thousands, with the first few: each member costs a look at its stack."""
    if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) <= MEMBERS:
        return error
    few = BaseExceptionGroup(error.message, error.exceptions[:MEMBERS])
    few.add_note(f"and {len(error.exceptions) - MEMBERS} more")
    few.__cause__, few.__context__ = error.__cause__, error.__context__
    few.__suppress_context__ = error.__suppress_context__
    return few.with_traceback(error.__traceback__)


def _trim(shown: TracebackException, chain: int) -> None:
    """Shorten every stack of it; a chain of causes is cut where it is too long."""
    shown.stack = _without_the_middle(_without_the_worker(shown.stack))
    if chain == 0:
        shown.__cause__ = shown.__context__ = None
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _trim(other, chain - 1)


def _without_the_worker(stack: StackSummary) -> StackSummary:
    """From where the user's function was called."""
    first = next((n for n, frame in enumerate(stack) if not frame.filename.startswith(_WORKER)), 0)
    return StackSummary.from_list(stack[first:])


def _without_the_middle(stack: StackSummary) -> StackSummary:
    if len(stack) <= FRAMES:
        return stack
    own = [place for place, frame in enumerate(stack) if is_own_file(frame.filename)]
    chosen = {*own[: FRAMES // 3], *own[-(FRAMES - FRAMES // 3 - 1) :], len(stack) - 1}
    others = reversed([place for place in range(len(stack)) if place not in chosen])
    chosen |= {place for place, _ in zip(others, range(FRAMES - len(chosen)), strict=False)}
    kept: list[FrameSummary] = []
    before = -1
    for place in sorted(chosen):
        if place > before + 1:
            gap = f"{place - before - 1} frames left out"
            kept.append(FrameSummary(_GAP, None, gap, lookup_line=False, line=""))
        kept.append(stack[place])
        before = place
    return StackSummary.from_list(kept)


def is_own_file(filename: str) -> bool:
    """Whether this is code of the user's, not of Python, an installed package or this one."""
    return not filename.startswith((*_FOREIGN, "<frozen"))
