"""Context that travels from the one who submits to the attempt: trace ids, tenants, locales.

A `Carrier` is a hook of the user's. What it saves is kept as tags `context.<name>`, so that it can
also be searched for; it is not part of what an idempotency key or a flow's key stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from flowfabric.core import names

PREFIX = "context."


class Carrier(Protocol):
    """Carries context variables. Keys are lower-case names, values short texts."""

    def save(self) -> Mapping[str, str]:
        """Return the context of the submitter; called for each submit, in the submitter."""
        ...

    def restore(self, saved: Mapping[str, str]) -> AbstractContextManager[object]:
        """A context manager, entered before an attempt, in its context, and left after it."""
        ...


def as_tags(saved: Mapping[str, str]) -> dict[str, str]:
    """Refuses names and values that cannot be kept."""
    return names.tags({f"{PREFIX}{name}": value for name, value in saved.items()})


def from_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)
    }


def without_context(tags: Mapping[str, str]) -> dict[str, str]:
    """What the tags say about the work itself."""
    return {key: value for key, value in tags.items() if not key.startswith(PREFIX)}
