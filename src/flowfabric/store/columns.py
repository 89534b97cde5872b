"""The columns of the tables, in the order of the records: the same in every SQL dialect."""

from __future__ import annotations

import msgspec

from flowfabric.core.model import Attempt, Execution

COLUMNS: tuple[str, ...] = tuple(field.name for field in msgspec.structs.fields(Execution))
ATTEMPT_COLUMNS = tuple(
    field.name for field in msgspec.structs.fields(Attempt) if field.name != "execution"
)
# What a submit can set; every other column starts from its default.
INSERT_COLUMNS = (
    "id",
    "namespace",
    "lane",
    "kind",
    "route",
    "creator",
    "created_ms",
    "policy",
    "state",
    "reason",
    "priority",
    "updated_ms",
    "attempt_left_ms",
    "not_before_ms",
    "deadline_ms",
    "due_ms",
)
# A member of a flow is submitted with these as well.
MEMBER_COLUMNS = (*INSERT_COLUMNS, "flow", "deps_open")
