"""Results of tasks that are not known here: plain JSON, without the types of an annotation."""

from __future__ import annotations

import msgspec

from flowfabric.errors import InvalidInput


def decode_plain(body: bytes) -> object:
    """A result of a task that is not known here."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"the result is not JSON: {error}",
            field="result",
            hint="read it with `app.engine.read.result`",
        ) from error
