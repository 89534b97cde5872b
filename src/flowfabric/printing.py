"""Texts in lines for people. Everything that prints or logs uses this.

Nothing in a text of users may end a line, steer a terminal, or turn around the order in which the
rest is read. Ids of executions are shown as people type them: `7-<uuid>`, not as they are stored.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import urlsplit

_HIDDEN = "***"
_STORED_ID = re.compile(r"\{fp:([0-9]{1,5})\}:(?=[0-9a-f]{8}-)")


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


def with_public_ids(text: str) -> str:
    """The text with every id of an execution as people see and type it."""
    return _STORED_ID.sub(r"\1-", text) if "{fp:" in text else text


def value_with_public_ids(value: object) -> object:
    """The same for what is told beside a text: texts and what they are in; others as they are."""
    if isinstance(value, str):
        return with_public_ids(value)
    if isinstance(value, dict):
        return {value_with_public_ids(k): value_with_public_ids(each) for k, each in value.items()}
    if type(value) is list:
        return [value_with_public_ids(each) for each in value]
    if type(value) is tuple:
        return tuple(value_with_public_ids(each) for each in value)
    return value
