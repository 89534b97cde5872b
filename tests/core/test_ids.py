"""Execution ids and time-ordered uuids: one spelling each, and a partition that stays."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.ids import (
    COUNT_MAX,
    INDEX_MAX,
    RANDOM_BITS,
    Family,
    FlowId,
    Partition,
    PartitionCounts,
    execution_id,
    flow_execution_id,
    flow_partition,
    parse_execution_id,
    parse_uuid,
    partition_of,
    public_id,
    run_of_uuids,
    stored_execution_id,
    uuid7,
)
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.printing import with_public_ids

SAMPLE = "550e8400-e29b-41d4-a716-446655440000"
NIL = "00000000-0000-0000-0000-000000000000"
DEFAULTS = PartitionCounts()

# Pure functions need few examples, and a slow machine must not fail them.
quick = settings(max_examples=30, deadline=None)
any_counts = st.builds(PartitionCounts, flow=st.integers(1, COUNT_MAX))
any_uuid = st.uuids(allow_nil=True).map(str)
any_time = st.integers(0, 2**48 - 1)
any_chance = st.integers(0, 2**RANDOM_BITS - 1)


def refusal(action: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value


# Execution ids


@pytest.mark.case("PA-010")
@pytest.mark.parametrize("index", [0, 7, 42, 255, 256, 65535])
def test_a_canonical_execution_id_round_trips_unchanged(index: int) -> None:
    text = f"{{fp:{index}}}:{SAMPLE}"
    parsed = parse_execution_id(text)
    assert parsed == text
    assert partition_of(parsed) == index
    assert execution_id(index, SAMPLE) == text


def test_the_partition_is_read_from_the_id_and_never_hashed_again() -> None:
    parsed = parse_execution_id(f"{{fp:0}}:{SAMPLE}")
    assert flow_partition(FlowId(SAMPLE), DEFAULTS) == 24
    assert partition_of(parsed) == 0


@pytest.mark.parametrize("uuid", [SAMPLE, NIL, "01890000-0000-7000-8000-000000000000"])
def test_a_bare_uuid_is_not_an_execution_id(uuid: str) -> None:
    error = refusal(lambda: parse_execution_id(uuid, "id"))
    assert (error.code, error.field) == ("missing_tag", "id")
    assert isinstance(error, FlowFabricError)


@quick
@given(st.integers(0, INDEX_MAX), any_uuid)
def test_what_people_see_is_read_again_as_what_is_stored(index: int, uuid: str) -> None:
    stored = execution_id(index, uuid)
    assert public_id(stored) == f"{index}-{uuid}" == quote(f"{index}-{uuid}", safe="")
    assert parse_execution_id(public_id(stored)) == stored
    assert with_public_ids(f"execution {stored} and {stored}.") == (
        f"execution {index}-{uuid} and {index}-{uuid}."
    )


def test_only_the_stored_spelling_may_be_stored() -> None:
    stored = f"{{fp:7}}:{SAMPLE}"
    assert stored_execution_id(stored) == stored
    assert refusal(lambda: stored_execution_id(f"7-{SAMPLE}")).code == "missing_tag"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "missing_tag"),
        (None, "missing_tag"),
        (42, "missing_tag"),
        (SAMPLE.encode(), "missing_tag"),
        (f"{{b:1}}:{SAMPLE}", "missing_tag"),
        (f" {{fp:1}}:{SAMPLE}", "missing_tag"),
        (f"{{fp:1}}{SAMPLE}", "missing_tag"),
        (f"{{fp:1:{SAMPLE}", "missing_tag"),
        (f"{{fp:xx}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:65536}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:007}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:00}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:+7}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:-0}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp: 7}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:1_0}}:{SAMPLE}", "invalid_partition_index"),
        (f"{{fp:\u0667}}:{SAMPLE}", "invalid_partition_index"),
        ("{fp:0}:not-a-uuid", "invalid_uuid"),
        ("{fp:0}:", "invalid_uuid"),
        (f"{{fp:0}}:{SAMPLE.upper()}", "invalid_uuid"),
        (f"{{fp:0}}:{SAMPLE}\n", "invalid_uuid"),
        (f"{{fp:0}}:{{{SAMPLE}}}", "invalid_uuid"),
        (f"{{fp:0}}:urn:uuid:{SAMPLE}", "invalid_uuid"),
        (f"{{fp:0}}:{SAMPLE.replace('-', '')}", "invalid_uuid"),
        (f"{{fp:0}}:{SAMPLE[:-3]}0_0", "invalid_uuid"),
        (f"{{fp:0}}:{{fp:0}}:{SAMPLE}", "invalid_uuid"),
        (f"65536-{SAMPLE}", "invalid_partition_index"),
        (f"007-{SAMPLE}", "invalid_partition_index"),
        (f"{'9' * 5000}-{SAMPLE}", "invalid_partition_index"),
        (f"\u0667-{SAMPLE}", "missing_tag"),
        (f"-{SAMPLE}", "missing_tag"),
        (f"7:{SAMPLE}", "missing_tag"),
        (f"7-{SAMPLE.upper()}", "invalid_uuid"),
        (f"7-{SAMPLE}\n", "invalid_uuid"),
        (f"7-7-{SAMPLE}", "invalid_uuid"),
    ],
)
def test_any_other_spelling_of_an_execution_id_is_refused(text: object, code: str) -> None:
    error = refusal(lambda: parse_execution_id(text))
    assert (error.code, error.field) == (code, "execution_id")
    assert error.hint


@quick
@given(st.text("{}:fp0179aF-_+ \u0667\ud800", max_size=40))
def test_arbitrary_text_is_never_an_execution_id_and_never_another_error(text: str) -> None:
    for candidate in (text, f"{{fp:{text}", f"{{fp:{text}}}:{SAMPLE}", f"{{fp:1}}:{text}"):
        try:
            parsed = parse_execution_id(candidate)
        except InvalidInput:
            continue
        assert execution_id(partition_of(parsed), parsed[-36:]) == candidate


@quick
@given(st.integers(0, INDEX_MAX), any_uuid)
def test_what_is_minted_can_be_parsed(index: int, uuid_text: str) -> None:
    minted = execution_id(index, uuid_text)
    assert parse_execution_id(minted) == minted
    assert partition_of(minted) == index


def test_a_uuid_that_is_not_text_is_refused_by_field() -> None:
    error = refusal(lambda: parse_uuid(UUID(SAMPLE), "flow_id"))
    assert (error.code, error.field) == ("invalid_uuid", "flow_id")


# Ids of members and of lanes


@pytest.mark.case("PA-006")
@quick
@given(any_uuid, any_time, any_chance)
def test_members_carry_the_partition_of_their_flow(flow: str, now_ms: int, chance: int) -> None:
    flow_id = FlowId(flow)
    member = flow_execution_id(flow_id, uuid7(now_ms, chance), DEFAULTS)
    tag = Partition(Family.FLOW, flow_partition(flow_id, DEFAULTS)).tag
    assert member.startswith(f"{tag}:")
    assert partition_of(member) == flow_partition(flow_id, DEFAULTS)


@quick
@given(any_uuid, any_uuid, any_counts)
def test_the_id_of_a_member_repeats_and_keeps_the_uuid(
    flow: str, uuid_text: str, counts: PartitionCounts
) -> None:
    flow_id, other = FlowId(flow), uuid7(1_700_000_000_000, 5)
    member = flow_execution_id(flow_id, uuid_text, counts)
    assert member == flow_execution_id(flow_id, uuid_text, counts)
    assert member.endswith(f"}}:{uuid_text}")
    assert partition_of(member) == partition_of(flow_execution_id(flow_id, other, counts))


@pytest.mark.parametrize("text", ["", "x", SAMPLE.upper(), f"urn:uuid:{SAMPLE}", "1" * 32])
def test_the_id_of_a_member_refuses_a_uuid_spelled_otherwise(text: str) -> None:
    assert refusal(lambda: flow_execution_id(FlowId(NIL), text, DEFAULTS)).code == "invalid_uuid"


# Time-ordered uuids


def test_a_uuid7_matches_the_published_example() -> None:
    chance = 0xCC3 << 62 | 0x18C4DC0C0C07398F
    assert uuid7(0x017F22E279B0, chance) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


def test_every_bit_of_chance_and_time_has_its_own_place() -> None:
    singles = [uuid7(0, 1 << bit) for bit in range(RANDOM_BITS)]
    singles += [uuid7(1 << bit, 0) for bit in range(48)]
    assert sorted(singles) == singles
    assert len({uuid7(0, 0), *singles}) == RANDOM_BITS + 48 + 1


@quick
@given(any_time, any_chance)
def test_a_uuid7_is_canonical_and_carries_its_time_and_chance(now_ms: int, chance: int) -> None:
    text = uuid7(now_ms, chance)
    parsed = UUID(parse_uuid(text, "uuid"))
    assert (parsed.version, parsed.variant) == (7, RFC_4122)
    assert parsed.int >> 80 == now_ms
    assert (parsed.int >> 64 & 0xFFF) << 62 | parsed.int & (1 << 62) - 1 == chance


@quick
@given(st.lists(st.tuples(any_time, any_chance), min_size=2, max_size=20))
def test_uuid7s_sort_and_differ_exactly_as_their_arguments(pairs: list[tuple[int, int]]) -> None:
    assert [uuid7(*pair) for pair in sorted(pairs)] == sorted(uuid7(*pair) for pair in pairs)
    assert len({uuid7(*pair) for pair in pairs}) == len(set(pairs))


@pytest.mark.parametrize("chance", [0, 1 << 62, (1 << RANDOM_BITS) - 1])
def test_a_run_of_uuids_is_canonical_and_sorts_as_it_comes(
    chance: int,
) -> None:
    texts = run_of_uuids(uuid7(1_700_000_000_000, chance), 1_000)
    assert texts == sorted(set(texts))
    assert len(texts) == 1_000
    assert all(parse_uuid(text, "uuid")[:15] == texts[0][:15] for text in texts)
    assert {UUID(text).version for text in texts} == {7}
    assert {UUID(text).variant for text in texts} == {RFC_4122}


@pytest.mark.parametrize(
    ("now_ms", "chance", "field"),
    [
        (-1, 0, "now_ms"),
        (2**48, 0, "now_ms"),
        (0, -1, "random_bits"),
        (0, 2**RANDOM_BITS, "random_bits"),
    ],
)
def test_a_uuid7_never_cuts_off_what_does_not_fit(now_ms: int, chance: int, field: str) -> None:
    assert refusal(lambda: uuid7(now_ms, chance)).field == field


# Numbers
