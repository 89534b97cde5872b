"""Ids, partitions, hash tags, and the two hashes that place things.

An execution id carries its partition (`{fp:7}:<uuid>`); nobody computes it again from anything
else. Every stored text has exactly one spelling, so that equal ids are equal texts on every store.
People see and type another one, `7-<uuid>`, which a shell and a URL take without quotes: it is
written by `public_id` and read by `parse_execution_id`, and no store ever sees it.
Chance and time are arguments here; names that people choose are judged in `names.py`.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import NewType

from flowfabric.errors import InvalidInput

ExecutionId = NewType("ExecutionId", str)
FlowId = NewType("FlowId", str)
BudgetId = NewType("BudgetId", str)
QuotaId = NewType("QuotaId", str)
Namespace = NewType("Namespace", str)
Lane = NewType("Lane", str)
TaskName = NewType("TaskName", str)
WorkerName = NewType("WorkerName", str)

INDEX_MAX = 0xFFFF
COUNT_MAX = INDEX_MAX + 1
RUN_LENGTH = 100
RANDOM_BITS = 74

_EXECUTION_PREFIX = "{fp:"
_INDEX_START = len(_EXECUTION_PREFIX)
_INDEX_DIGITS_MAX = len(str(INDEX_MAX))
_EXECUTION_ID_HINT = "an execution id looks like 7-018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f"
_PARTITION_HINT = "a partition looks like {fp:7}, {b:0} or {q:31}"
_UUID_HINT = "use the lower-case form with four hyphens"

# A whole UUID follows the partition: a UUID alone is too short to be read as such an id.
_PUBLIC_ID = re.compile(r"([0-9]+)-(.{36,})", re.DOTALL)
_CANONICAL_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_MASK_32 = 0xFFFF_FFFF
_MASK_16 = 0xFFFF

_RANDOM_LOW_BITS = 62
_RANDOM_LOW_MASK = (1 << _RANDOM_LOW_BITS) - 1
_UUID_VERSION = 0x7 << 76
_UUID_VARIANT = 0b10 << 62
_TIME_BITS = 48


class Family(StrEnum):
    """Who shares a partition. Executions live with their flow: EXECUTION is the same member."""

    FLOW = "fp"
    EXECUTION = FLOW
    BUDGET = "b"
    QUOTA = "q"


@dataclass(frozen=True, slots=True)
class Partition:
    """One atomic scope; its tag keeps all its keys in one slot of a cluster."""

    family: Family
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index <= INDEX_MAX:
            raise _invalid("partition", "invalid_index", f"the index must be 0..{INDEX_MAX}")

    @property
    def tag(self) -> str:
        return f"{{{self.family}:{self.index}}}"


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """How many partitions each family has; fixed when a store is first used."""

    flow: int = 256
    budget: int = 32
    quota: int = 32

    def __post_init__(self) -> None:
        for item in fields(self):
            count: object = getattr(self, item.name)
            if type(count) is not int or not 0 < count <= COUNT_MAX:
                raise _invalid(
                    f"partitions.{item.name}",
                    "invalid_input",
                    "the number of partitions is out of range",
                    hint=f"use a whole number from 1 to {COUNT_MAX}",
                )


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, the hash that Valkey Cluster uses for slots."""
    return crc_hqx(data, 0)


def fnv1a64(data: bytes) -> int:
    """FNV-1a, 64 bits: for digests and jitter, never for placing records."""
    digest = _FNV_OFFSET
    for byte in data:
        digest = (digest ^ byte) * _FNV_PRIME & _MASK_64
    return digest


def xor8hex(text: str) -> str:
    """A digest of eight hex digits, short enough for a log line."""
    digest = fnv1a64(text.encode())
    return f"{digest & _MASK_32 ^ digest >> 32:08x}"


def u16_mod(text: str, modulus: int) -> int:
    """A stable number below `modulus` for this text; 0 when there is nothing to choose from."""
    return (fnv1a64(text.encode()) & _MASK_16) % modulus if modulus else 0


def parse_partition(text: object, field: str = "partition") -> Partition:
    """The partition behind a tag such as `{fp:7}`; refuses every other spelling."""
    if not (isinstance(text, str) and text.startswith("{") and text.endswith("}")):
        raise _invalid(field, "missing_braces", "a partition stands in braces", _PARTITION_HINT)
    prefix, colon, digits = text[1:-1].partition(":")
    if not colon:
        raise _invalid(
            field, "malformed_body", "a colon must separate family and index", _PARTITION_HINT
        )
    try:
        family = Family(prefix)
    except ValueError:
        raise _invalid(
            field, "unknown_family_prefix", "this family does not exist", _PARTITION_HINT
        ) from None
    index = _parse_index(digits)
    if index is None:
        raise _invalid(field, "invalid_index", f"the index must be 0..{INDEX_MAX}", _PARTITION_HINT)
    return Partition(family, index)


def parse_execution_id(text: object, field: str = "execution_id") -> ExecutionId:
    """The stored spelling of an id that was given in either spelling; a UUID alone is refused."""
    if isinstance(text, str) and (parts := _PUBLIC_ID.fullmatch(text)):
        return ExecutionId(_joined(parts[1], parts[2], field))
    return stored_execution_id(text, field)


def stored_execution_id(text: object, field: str = "execution_id") -> ExecutionId:
    """Accepts the stored spelling alone; any partition index of 16 bits is legal."""
    if not (isinstance(text, str) and text.startswith(_EXECUTION_PREFIX)):
        raise _invalid(field, "missing_tag", "the id has no partition", _EXECUTION_ID_HINT)
    digits, end, uuid_text = text[_INDEX_START:].partition("}:")
    if not end:
        raise _invalid(
            field,
            "missing_tag",
            "the closing brace of the partition is missing",
            _EXECUTION_ID_HINT,
        )
    return ExecutionId(_joined(digits, uuid_text, field))


def _joined(digits: str, uuid_text: str, field: str) -> str:
    if _parse_index(digits) is None:
        message = f"the partition index must be 0..{INDEX_MAX}, without sign or leading zeros"
        raise _invalid(field, "invalid_partition_index", message, _EXECUTION_ID_HINT)
    return f"{_EXECUTION_PREFIX}{digits}}}:{parse_uuid(uuid_text, field)}"


def public_id(id: ExecutionId) -> str:
    """How people see an id that was parsed or minted before; checks nothing."""
    return id[_INDEX_START:].replace("}:", "-", 1)


def parse_flow_id(text: object, field: str = "flow_id") -> FlowId:
    return FlowId(parse_uuid(text, field))


def parse_uuid(text: object, field: str) -> str:
    """Accepts a UUID of any version in its canonical spelling, and nothing else."""
    if not (isinstance(text, str) and _CANONICAL_UUID.fullmatch(text)):
        raise _invalid(field, "invalid_uuid", "the UUID is not in its canonical form", _UUID_HINT)
    return text


def partition_of(execution_id: ExecutionId) -> int:
    """The partition written in an id that was parsed or minted before; checks nothing."""
    return int(execution_id[_INDEX_START : execution_id.index("}")])


def partitions_among(ids: Iterable[ExecutionId]) -> int:
    """In how many partitions these are."""
    return len({id[: id.index("}")] for id in ids})


def execution_id(partition: int, uuid_text: str) -> ExecutionId:
    """Joins a partition and a canonical UUID; both are the minter's own, so neither is checked."""
    return ExecutionId(f"{{fp:{partition}}}:{uuid_text}")


def flow_execution_id(flow_id: FlowId, uuid_text: str, counts: PartitionCounts) -> ExecutionId:
    """The id of a flow's member: same flow, UUID and counts always give the same id."""
    return execution_id(flow_partition(flow_id, counts), parse_uuid(uuid_text, "uuid"))


def uuid7(now_ms: int, random_bits: int) -> str:
    """A UUID of version 7 that sorts by (now_ms, random_bits); equal arguments, equal ids."""
    if now_ms < 0 or now_ms >> _TIME_BITS:
        raise _invalid("now_ms", "invalid_input", f"the time must fit {_TIME_BITS} bits")
    if random_bits < 0 or random_bits >> RANDOM_BITS:
        raise _invalid(
            "random_bits", "invalid_input", f"the random part must fit {RANDOM_BITS} bits"
        )
    high = now_ms << 80 | _UUID_VERSION | random_bits >> _RANDOM_LOW_BITS << 64
    digits = (high | _UUID_VARIANT | random_bits & _RANDOM_LOW_MASK).to_bytes(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def run_of_uuids(first: str, count: int) -> list[str]:
    """UUIDs of one moment that sort as they come: one is drawn, the others are counted from it."""
    # Half of the range is left to count in, so that nothing is ever carried over.
    begin, low = first[:24], int(first[24:], 16) >> 1
    return [f"{begin}{each:012x}" for each in range(low, low + count)]


# All members of a flow are where it is.
@lru_cache(maxsize=1024)
def flow_partition(flow_id: FlowId, counts: PartitionCounts) -> int:
    return _uuid_crc16(flow_id, "flow_id") % counts.flow


def budget_partition(budget_id: BudgetId, counts: PartitionCounts) -> int:
    return _uuid_crc16(budget_id, "budget_id") % counts.budget


def quota_partition(quota_id: QuotaId, counts: PartitionCounts) -> int:
    return _uuid_crc16(quota_id, "quota_id") % counts.quota


def key_partition(namespace: Namespace, key: str, counts: PartitionCounts) -> int:
    """Where an idempotency key and the execution it protects live, so that one insert writes both.

    The NUL keeps ("a", "bc") apart from ("ab", "c"): neither name may contain one.
    """
    return crc16(f"{namespace}\0{key}".encode()) % counts.flow


def run_partition(position: int, counts: PartitionCounts) -> int:
    """Where the execution minted at a position goes: runs share one, so a call carries many."""
    return position // RUN_LENGTH % counts.flow


def _uuid_crc16(text: str, field: str) -> int:
    return crc16(bytes.fromhex(parse_uuid(text, field).replace("-", "")))


def _parse_index(digits: str) -> int | None:
    """The index, unless it is out of range or spelled in another way than we print it."""
    if len(digits) > _INDEX_DIGITS_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    index = int(digits)
    return index if index <= INDEX_MAX and str(index) == digits else None


def _invalid(field: str, code: str, message: str, hint: str = "") -> InvalidInput:
    return InvalidInput(message, field=field, hint=hint, code=code)
