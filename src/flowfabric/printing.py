"""Texts of users in lines for people: nothing in them may end a line, steer a terminal, or turn
around the order in which the rest is read. Everything that prints or logs uses this."""

from __future__ import annotations

import unicodedata
from urllib.parse import urlsplit

_HIDDEN = "***"


def one_line(text: str) -> str:
    """The text with every character escaped that is not seen as itself."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


def public_url(url: str) -> str:
    """The URL of a store as it may be shown: without the password."""
    place = urlsplit(url).netloc
    account, mark, host = place.rpartition("@")
    user, colon, _ = account.partition(":")
    return url.replace(place, f"{user}:{_HIDDEN}{mark}{host}", 1) if colon else url
