"""Faults in SQL and Lua: conditions that are not asked, comparisons that are off."""

from __future__ import annotations

import re
from collections.abc import Iterator

Edit = tuple[int, int, str]

NAME = re.compile(r"^-- name: (\w+)@(\w+)$", re.MULTILINE)
COMMENT = re.compile(r"--[^\n]*")
STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
# What a condition begins after, and what ends it when no parenthesis does.
BEGINS = re.compile(r"\b(?:WHERE|AND|OR|ON)\b(?!\s+CONFLICT)")
ENDS = re.compile(
    r"\b(?:AND|OR|WHERE|ORDER|GROUP|LIMIT|UNION|RETURNING|FROM|SET|THEN|ELSE|WHEN|FOR|ON|DO|LEFT"
    r"|CROSS|JOIN|HAVING|WINDOW)\b|;|\Z"
)
SQL_COMPARED = re.compile(r"<>|<=|>=|(?<![<>!:=-])[<>](?![<>=@])")
SQL_SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "<>": "="}
LUA_COMPARED = re.compile(r"==|~=|<=|>=|<|>|\band\b|\bor\b|\bnot\b ?")
LUA_SWAPPED = {
    "==": "~=",
    "~=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "and": "or",
    "or": "and",
    "not": "",
    "not ": "",
}


def blanked(text: str) -> str:
    """The same length, without what only looks like code."""
    blank = re.compile(f"{COMMENT.pattern}|{STRING.pattern}")
    return blank.sub(lambda match: _blank(match[0]), text)


def _blank(text: str) -> str:
    """A comment is nothing, a string stays one."""
    return " " * len(text) if text.startswith("--") else f"'{'_' * (len(text) - 2)}'"


def sql_edits(text: str) -> Iterator[tuple[str, Edit]]:
    """Every fault, with the dialect of the statement that it is in."""
    code = blanked(text)
    names = list(NAME.finditer(text))
    for name, following in zip(names, [*names[1:], None], strict=True):
        start = name.end()
        end = following.start() if following else len(text)
        for first, last in _conditions(code, start, end):
            yield name[2], (first, last, "1 = 1")
        for match in SQL_COMPARED.finditer(code, start, end):
            yield name[2], (match.start(), match.end(), SQL_SWAPPED[match[0]])


def _conditions(code: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in BEGINS.finditer(code, start, end):
        if _is_between(code, match):
            continue
        first = match.end() + len(code[match.end() :]) - len(code[match.end() :].lstrip())
        last = _end_of_condition(code, first, end)
        if code[first:last].strip():
            yield first, first + len(code[first:last].rstrip())


def _is_between(code: str, match: re.Match[str]) -> bool:
    """The AND of `BETWEEN a AND b` belongs to the condition before it."""
    before = code[max(match.start() - 80, 0) : match.start()]
    return match[0] == "AND" and "BETWEEN" in before.rpartition("AND")[2]


def _end_of_condition(code: str, first: int, end: int) -> int:
    depth = 0
    for place in range(first, end):
        sign = code[place]
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return place
        is_word = place == first or not (code[place - 1].isalnum() or code[place - 1] == "_")
        if depth == 0 and place > first and is_word and ENDS.match(code, place, end):
            return place
    return end


def lua_edits(text: str) -> Iterator[Edit]:
    code = blanked(text)
    for match in LUA_COMPARED.finditer(code):
        yield match.start(), match.end(), LUA_SWAPPED[match[0]]
