"""Documents: what may be put, and what a put leaves."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric.core.documents import (
    DUE_MS_MAX,
    UNREADABLE_REV,
    WORDS_MAX,
    DamagedDocument,
    Document,
    PutDone,
    PutRefused,
    change,
    create,
    remove,
    rev_after,
    scope_of,
    was_done,
    written,
)
from flowfabric.errors import InvalidInput, PayloadTooLarge

SEEN = Document("kind", "default", "name", 7, 5, ("a",), b"1")


def made(**more: Any) -> Any:
    named = {"kind": "kind", "namespace": "default", "name": "name", "body": b"", **more}
    return create(**named)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", ""),
        ("kind", "two words"),
        ("kind", "x" * 65),
        ("namespace", ""),
        ("namespace", "x" * 65),
        ("name", ""),
        ("name", "a\0b"),
        ("name", "é" * 129),
        ("name", "\ud800"),
        ("name", 5),
        ("words", ["a", ""]),
        ("words", ["x" * 257]),
        ("words", [str(n) for n in range(WORDS_MAX + 1)]),
        ("due_ms", -1),
        ("due_ms", DUE_MS_MAX + 1),
        ("due_ms", 1.5),
        ("body", "text"),
    ],
)
def test_what_no_store_could_keep_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(**{field: value})
    assert refused.value.field == field


def test_a_body_that_is_too_large_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        made(body=b"x" * ((1 << 20) + 1))
    with pytest.raises(PayloadTooLarge):
        change(SEEN, body=b"x" * ((1 << 20) + 1), words=(), due_ms=None)


def test_words_are_in_order_and_each_once() -> None:
    assert made(words=["b", "a", "b"]).words == ("a", "b")


def test_a_new_document_begins_with_the_instant_of_its_creation() -> None:
    assert rev_after(made(), 99) == 99
    assert rev_after(change(SEEN, body=b"", words=(), due_ms=None), 99) == 8
    assert rev_after(remove(SEEN), 99) == 0
    lost = DamagedDocument("kind", "default", "name", UNREADABLE_REV, "column rev: melted")
    assert rev_after(change(lost, body=b"", words=(), due_ms=None), 99) == 99


def test_a_put_that_was_written_by_an_earlier_call_is_known() -> None:
    put = change(SEEN, body=b"2", words=("b",), due_ms=None)
    mine = written(put, 99)
    theirs = Document("kind", "default", "name", 8, None, ("b",), b"3")
    later = Document("kind", "default", "name", 9, None, ("b",), b"2")
    assert was_done(put, PutDone(8))
    told = [PutRefused(there) for there in (mine, theirs, later, SEEN, None)]
    assert [was_done(put, each) for each in told] == [True, False, False, False, False]
    assert was_done(remove(SEEN), PutRefused(None))
    assert not was_done(remove(SEEN), PutRefused(mine))


def test_documents_of_one_kind_and_namespace_share_a_scope() -> None:
    scopes = {(kind, space): scope_of(kind, space, 256) for kind in "ab" for space in "cd"}
    assert len(set(scopes.values())) == 4
    assert all(0 <= scope < 256 for scope in scopes.values())
