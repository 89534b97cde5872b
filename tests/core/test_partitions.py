"""Hashes, partitions and placement: every published vector, and what holds for all inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.ids import (
    COUNT_MAX,
    INDEX_MAX,
    BudgetId,
    Family,
    FlowId,
    Namespace,
    Partition,
    PartitionCounts,
    QuotaId,
    budget_partition,
    crc16,
    flow_partition,
    fnv1a64,
    key_partition,
    parse_partition,
    quota_partition,
    run_partition,
    u16_mod,
    xor8hex,
)
from flowfabric.errors import InvalidInput

SAMPLE = "550e8400-e29b-41d4-a716-446655440000"
NIL = "00000000-0000-0000-0000-000000000000"
DEFAULTS = PartitionCounts()

# Pure functions need few examples, and a slow machine must not fail them.
quick = settings(max_examples=30, deadline=None)
any_counts = st.builds(
    PartitionCounts,
    flow=st.integers(1, COUNT_MAX),
    budget=st.integers(1, COUNT_MAX),
    quota=st.integers(1, COUNT_MAX),
)
any_uuid = st.uuids(allow_nil=True).map(str)
any_text = st.text("ab:,-\0\n\u00e9\u20ac\U0001f600", max_size=40)


def refusal(action: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value


# Hashes


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0x31C3),
        (b"default", 54870),
        (b"workers-a", 11969),
        (b"workers-b", 7842),
        (b"pick-me", 42682),
        (b"hot", 6093),
        (b"lane-2", 2766),
        (b"worker-pool-1", 38989),
        (UUID("11111111-1111-1111-1111-111111111111").bytes, 20486),
        (UUID(SAMPLE).bytes, 36888),
        (UUID("00000000-0000-4000-8000-000000000000").bytes, 36763),
        (UUID("11111111-2222-4333-8444-555555555555").bytes, 37221),
        (UUID("ffffffff-ffff-4fff-8fff-ffffffffffff").bytes, 63970),
        (UUID(NIL).bytes, 0),
    ],
)
def test_crc16_matches_the_published_vectors(data: bytes, expected: int) -> None:
    assert crc16(data) == expected


@pytest.mark.case("PA-023")
def test_fnv_digests_match_the_published_vectors() -> None:
    assert fnv1a64(b"") == 0xCBF29CE484222325
    assert fnv1a64(b"gpu,cuda") == 0x32511BB2804B7648
    assert xor8hex("gpu,cuda") == "b21a6dfa"
    assert xor8hex("cuda,gpu") == "c952a6c4"
    assert [u16_mod(text, 256) for text in ("gpu,cuda", "worker-a", "worker-b")] == [72, 253, 228]
    assert u16_mod("worker-a", 0) == 0


@quick
@given(any_text, st.integers(1, COUNT_MAX))
def test_fnv_results_keep_their_shape(text: str, modulus: int) -> None:
    assert len(xor8hex(text)) == 8
    assert int(xor8hex(text), 16) >= 0
    assert 0 <= u16_mod(text, modulus) < modulus


# Partitions


@pytest.mark.case("PA-001")
def test_tags_name_family_and_index_and_executions_share_the_tag_of_flows() -> None:
    cases = [(Family.FLOW, 7), (Family.EXECUTION, 7), (Family.BUDGET, 0), (Family.QUOTA, 31)]
    assert [Partition(*case).tag for case in cases] == ["{fp:7}", "{fp:7}", "{b:0}", "{q:31}"]
    assert len({Partition(family, 7).tag for family in Family}) == 3
    assert Partition(Family.EXECUTION, 42).tag == "{fp:42}"
    for index in (0, 1, 7, 42, 255, 65535):
        assert Partition(Family.EXECUTION, index) == Partition(Family.FLOW, index)


def test_a_partition_travels_as_its_tag_in_json() -> None:
    text = json.dumps(Partition(Family.FLOW, 9).tag)
    assert text == '"{fp:9}"'
    assert parse_partition(json.loads(text)) == Partition(Family.FLOW, 9)


@quick
@given(st.sampled_from(list(Family)), st.integers(0, INDEX_MAX))
def test_every_partition_is_read_back_from_its_tag(family: Family, index: int) -> None:
    partition = Partition(family, index)
    assert parse_partition(partition.tag) == partition


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("fp:0", "missing_braces"),
        ("", "missing_braces"),
        ("{", "missing_braces"),
        ("{fp:0", "missing_braces"),
        ("fp:0}", "missing_braces"),
        ("{fp:0}\n", "missing_braces"),
        (None, "missing_braces"),
        (7, "missing_braces"),
        ("{fp0}", "malformed_body"),
        ("{}", "malformed_body"),
        ("{zz:0}", "unknown_family_prefix"),
        ("{:0}", "unknown_family_prefix"),
        ("{FP:0}", "unknown_family_prefix"),
        ("{fp:xx}", "invalid_index"),
        ("{fp:65536}", "invalid_index"),
        ("{fp:}", "invalid_index"),
        ("{fp:-1}", "invalid_index"),
        ("{fp:+7}", "invalid_index"),
        ("{fp:007}", "invalid_index"),
        ("{fp: 7}", "invalid_index"),
        ("{fp:7_0}", "invalid_index"),
        ("{fp:1:2}", "invalid_index"),
        ("{fp:\u0667}", "invalid_index"),
        ("{fp:\u00b2}", "invalid_index"),
        pytest.param("{fp:" + "9" * 5000 + "}", "invalid_index", id="huge"),
    ],
)
def test_a_bad_partition_is_refused_with_its_own_reason(text: object, code: str) -> None:
    error = refusal(lambda: parse_partition(text))
    assert (error.code, error.field) == (code, "partition")
    assert "{fp:7}" in error.hint


@pytest.mark.parametrize("index", [-1, INDEX_MAX + 1])
def test_a_partition_outside_sixteen_bits_cannot_be_made(index: int) -> None:
    assert refusal(lambda: Partition(Family.FLOW, index)).code == "invalid_index"


@pytest.mark.case("PA-002")
def test_default_counts_are_256_32_32() -> None:
    assert (DEFAULTS.flow, DEFAULTS.budget, DEFAULTS.quota) == (256, 32, 32)


@pytest.mark.parametrize("name", ["flow", "budget", "quota"])
@pytest.mark.parametrize("count", [0, -1, COUNT_MAX + 1, True, 1.5, "256", None])
def test_counts_out_of_range_are_refused_by_name(name: str, count: object) -> None:
    arguments: dict[str, object] = {name: count}
    error = refusal(lambda: PartitionCounts(**arguments))  # type: ignore[arg-type]
    assert error.field == f"partitions.{name}"
    assert str(COUNT_MAX) in error.hint


def test_counts_may_reach_both_bounds() -> None:
    assert PartitionCounts(flow=1, budget=COUNT_MAX).budget == COUNT_MAX


# Placement


@pytest.mark.case("PA-004")
@pytest.mark.parametrize(
    ("uuid_text", "of_256", "of_32"),
    [
        ("11111111-1111-4111-8111-111111111111", 191, 31),
        ("22222222-2222-4222-8222-222222222222", 242, 18),
        ("11111111-1111-1111-1111-111111111111", 6, 6),
        (SAMPLE, 24, 24),
        ("00000000-0000-4000-8000-000000000000", 155, 27),
        ("11111111-2222-4333-8444-555555555555", 101, 5),
        ("ffffffff-ffff-4fff-8fff-ffffffffffff", 226, 2),
        (NIL, 0, 0),
    ],
)
def test_uuids_are_placed_by_the_crc_of_their_bytes(
    uuid_text: str, of_256: int, of_32: int
) -> None:
    assert crc16(b"123456789") == 0x31C3
    assert flow_partition(FlowId(uuid_text), DEFAULTS) == of_256
    assert budget_partition(BudgetId(uuid_text), DEFAULTS) == of_32
    assert quota_partition(QuotaId(uuid_text), DEFAULTS) == of_32


@pytest.mark.case("PA-003")
@quick
@given(any_uuid, any_counts)
def test_placement_is_stable_and_below_the_count(uuid_text: str, counts: PartitionCounts) -> None:
    def place() -> tuple[int, int, int]:
        return (
            flow_partition(FlowId(uuid_text), counts),
            budget_partition(BudgetId(uuid_text), counts),
            quota_partition(QuotaId(uuid_text), counts),
        )

    first = place()
    assert first == place()
    limits = (counts.flow, counts.budget, counts.quota)
    assert all(0 <= index < limit for index, limit in zip(first, limits, strict=True))


def test_a_malformed_flow_id_is_refused_before_it_is_placed() -> None:
    error = refusal(lambda: flow_partition(FlowId("not-a-uuid"), DEFAULTS))
    assert (error.code, error.field) == ("invalid_uuid", "flow_id")


def test_a_key_is_placed_by_namespace_nul_and_key() -> None:
    assert key_partition(Namespace("acme"), "q-42", DEFAULTS) == crc16(b"acme\0q-42") % 256
    assert key_partition(Namespace("acme"), "b", PartitionCounts(flow=COUNT_MAX)) != key_partition(
        Namespace("acm"), "eb", PartitionCounts(flow=COUNT_MAX)
    )


@quick
@given(any_text, any_text, any_counts)
def test_a_key_always_lands_below_the_count(
    namespace: str, key: str, counts: PartitionCounts
) -> None:
    index = key_partition(Namespace(namespace), key, counts)
    assert index == key_partition(Namespace(namespace), key, counts)
    assert 0 <= index < counts.flow


def test_executions_minted_one_after_another_share_partitions_in_runs_of_a_hundred() -> None:
    partitions = [run_partition(position, DEFAULTS) for position in range(25_350, 25_650)]
    assert partitions == [253] * 50 + [254] * 100 + [255] * 100 + [0] * 50
