"""Names and tags: what is accepted, and that a refusal names the field and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.names import (
    PRIORITY_MAX,
    TAG_KEY_BYTES_MAX,
    TAGS_MAX,
    idempotency_key,
    lane_name,
    namespace_name,
    priority,
    tag_key,
    tags,
    task_name,
    worker_name,
)
from flowfabric.errors import InvalidInput

Validator = Callable[[object], object]

# Pure functions need few examples, and a slow machine must not fail them.
quick = settings(max_examples=30, deadline=None)
NOT_TEXT = [None, 7, 1.5, True, b"bytes", ["a"]]
LONE_SURROGATE = "a\ud800b"


def refusal(action: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        action()
    assert caught.value.field
    assert caught.value.hint
    return caught.value


# Lanes


@pytest.mark.parametrize("name", ["default", "worker-pool-1", "a", "a" * 64, " ", "~", "a b"])
def test_a_lane_may_be_any_printable_ascii_of_1_to_64_bytes(name: str) -> None:
    assert lane_name(name) == name


@pytest.mark.parametrize(
    ("name", "byte_index"),
    [
        ("bad\nlane", 3),
        ("lane\0x", 4),
        ("\tlane", 0),
        ("la\x7fne", 2),
        ("laneé", 4),
        ("é\n", 0),
        ("lane\u2028", 4),
        (LONE_SURROGATE, 1),
    ],
)
def test_a_lane_that_cannot_be_printed_is_refused_at_its_first_bad_byte(
    name: str, byte_index: int
) -> None:
    error = refusal(lambda: lane_name(name))
    assert (error.code, error.field) == ("lane_not_printable", "lane")
    assert f"byte {byte_index} " in error.message
    assert error.details == {"byte_index": byte_index}
    assert error.message.isascii()
    assert error.message.isprintable()


@pytest.mark.parametrize(("name", "length"), [("a" * 65, 65), ("é" * 33, 66), ("\n" * 70, 70)])
def test_a_lane_that_is_too_long_is_refused_with_its_length(name: str, length: int) -> None:
    error = refusal(lambda: lane_name(name))
    assert error.code == "lane_too_long"
    assert f"{length} bytes" in error.message
    assert error.details == {"length_bytes": length}


def test_an_empty_lane_is_refused_under_the_field_of_the_caller() -> None:
    error = refusal(lambda: lane_name("", field="target_lane"))
    assert (error.code, error.field) == ("lane_empty", "target_lane")


@quick
@given(st.text("aZ ~\n\0\x7f\u00e9\u2028\ud800", max_size=80) | st.text("aZ ~", max_size=80))
def test_a_lane_passes_exactly_when_all_its_bytes_are_in_range(name: str) -> None:
    raw = name.encode("utf-8", "surrogatepass")
    legal = 1 <= len(raw) <= 64 and all(0x20 <= byte <= 0x7E for byte in raw)
    try:
        assert lane_name(name) == name
        accepted = True
    except InvalidInput:
        accepted = False
    assert accepted == legal


# Tags


@pytest.mark.case("LI-033")
@pytest.mark.parametrize(
    "key", ["cairn.session_id", "cairn.project", "a.b", "a1_2.x", "app.sub.field", "x.y_z"]
)
def test_a_dotted_lower_case_tag_key_is_accepted(key: str) -> None:
    assert tag_key(key) == key
    assert tags({key: "v"}) == {key: "v"}


@pytest.mark.case("LI-034")
@pytest.mark.parametrize(
    "key",
    [
        "",
        "Cairn.x",
        "1cairn.x",
        "cairn",
        "cairn.",
        "cairn..x",
        ".cairn",
        "cair n.x",
        "ca-irn.x",
        "cairn.Foo",
        "cairn.foo bar",
        'cairn.foo"bar',
        "cairn.foo-bar",
        "cairn.foo\\bar",
        "cairn.x\n",
        "caïrn.x",
        "cairn.\u0663",
    ],
)
def test_any_other_tag_key_is_refused(key: str) -> None:
    for error in (refusal(lambda: tag_key(key)), refusal(lambda: tags({key: "v"}))):
        assert (error.code, error.field) == ("invalid_tag_key", "tags")
        assert "group.name" in error.hint


def test_a_tag_key_has_a_longest_length() -> None:
    longest = "a." + "b" * (TAG_KEY_BYTES_MAX - 2)
    assert tag_key(longest) == longest
    assert f"{TAG_KEY_BYTES_MAX + 1} bytes" in refusal(lambda: tag_key(longest + "b")).message


def test_tags_are_copied_and_values_may_be_any_text() -> None:
    given_tags = {"demo.tenant": "acmé \n", "demo.empty": "", "demo.long": "x" * 256}
    checked = tags(given_tags)
    assert checked == given_tags
    assert checked is not given_tags


@pytest.mark.parametrize("value", [*NOT_TEXT, "x" * 257, "é" * 129, "a\0b", LONE_SURROGATE])
def test_a_bad_tag_value_is_refused_by_its_key(value: object) -> None:
    error = refusal(lambda: tags({"demo.fine": "x", "demo.bad": value}))
    assert error.field == "tags[demo.bad]"


def test_more_than_64_tags_are_refused() -> None:
    many = {f"demo.t{number}": "x" for number in range(TAGS_MAX)}
    assert len(tags(many)) == TAGS_MAX
    error = refusal(lambda: tags({**many, "demo.more": "x"}, field="labels"))
    assert error.field == "labels"
    assert str(TAGS_MAX) in error.hint


@pytest.mark.parametrize("value", [None, "demo.a=b", [("demo.a", "b")], 7])
def test_tags_must_be_a_mapping(value: object) -> None:
    assert "mapping" in refusal(lambda: tags(value)).message


def test_a_tag_key_that_is_not_text_is_refused() -> None:
    assert "got int" in refusal(lambda: tags({7: "x"})).message


# Namespaces, tasks, workers, keys


@pytest.mark.parametrize("name", ["default", "acme corp", "mandantenfähig", "a" * 64, "é" * 32])
def test_a_namespace_may_be_printable_text_in_any_script(name: str) -> None:
    assert namespace_name(name) == name


@pytest.mark.parametrize("name", ["", "a" * 65, "é" * 33, "a\0b", "a\nb", "\x7f", LONE_SURROGATE])
def test_a_bad_namespace_is_refused(name: str) -> None:
    assert refusal(lambda: namespace_name(name)).field == "namespace"


@pytest.mark.parametrize("check", [task_name, worker_name])
@pytest.mark.parametrize(
    "name", ["w", "host-1:4711", "pkg.mod:fn.<locals>.inner", "größe", "x" * 256]
)
def test_a_task_or_worker_name_may_be_one_word(check: Validator, name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(("check", "field"), [(task_name, "task"), (worker_name, "worker")])
@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 257,
        "é" * 129,
        "a b",
        "a\tb",
        "a\nb",
        "a\0b",
        "a\x1b",
        "a\x7f",
        "a\x85",
        "a\x9f",
        "a\u00a0b",
    ],
)
def test_a_bad_task_or_worker_name_is_refused(check: Validator, field: str, name: str) -> None:
    assert refusal(lambda: check(name)).field == field


def test_a_refusal_points_at_the_first_bad_character() -> None:
    assert "position 3" in refusal(lambda: worker_name("abc d\te")).message


@pytest.mark.parametrize(
    "check", [lane_name, tag_key, namespace_name, task_name, worker_name], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("value", NOT_TEXT, ids=repr)
def test_what_is_not_text_is_refused_with_its_type(check: Validator, value: object) -> None:
    kind = "nothing" if value is None else type(value).__name__
    error = refusal(lambda: check(value))
    assert error.code == "invalid_input"
    assert error.message == f"expected text, got {kind}"


@pytest.mark.parametrize("key", ["k", "a b", "q-42", "x" * 512, "é" * 256, "line\nbreak"])
def test_an_idempotency_key_may_be_any_text_up_to_512_bytes(key: str) -> None:
    assert idempotency_key(key) == key


@pytest.mark.parametrize("value", ["", None])
def test_an_empty_idempotency_key_means_no_key(value: str | None) -> None:
    assert idempotency_key(value) is None


@pytest.mark.parametrize("value", ["x" * 513, "é" * 257, "a\0b", LONE_SURROGATE, 7, b"k", False])
def test_a_bad_idempotency_key_is_refused(value: object) -> None:
    assert refusal(lambda: idempotency_key(value)).field == "idempotency_key"


def test_a_refusal_shows_only_the_beginning_of_a_long_text() -> None:
    assert len(refusal(lambda: worker_name("x" * 100_000)).message) < 120


# Priority


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (1, 1), (9000, 9000), (9001, 9000), (-1, 0), (10**30, 9000), (-(10**30), 0)],
)
def test_priority_is_clamped_to_its_bounds(value: int, expected: int) -> None:
    assert priority(value) == expected


@quick
@given(st.integers(), st.integers())
def test_clamping_keeps_the_order_of_priorities(left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert 0 <= priority(low) <= priority(high) <= PRIORITY_MAX


@pytest.mark.parametrize("value", [True, False, 1.0, "5", None])
def test_a_priority_that_is_not_a_whole_number_is_refused(value: object) -> None:
    error = refusal(lambda: priority(value, field="options.priority"))
    assert error.field == "options.priority"
    assert str(PRIORITY_MAX) in error.hint
