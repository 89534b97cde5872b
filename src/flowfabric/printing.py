"""Texts of users in lines for people: nothing in them may end a line, steer a terminal, or turn
around the order in which the rest is read. Everything that prints or logs uses this."""

from __future__ import annotations

import unicodedata


def one_line(text: str) -> str:
    """The text with every character escaped that is not seen as itself."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
