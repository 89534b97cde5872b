"""What a URL says, and what is wrong with it."""

from __future__ import annotations

import pytest

from flowfabric.errors import InvalidInput
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.address import Address, Place


def address(url: str) -> Address:
    store = open_store(url)
    assert isinstance(store, ValkeyStore)
    return store.address


def test_a_host_is_enough() -> None:
    assert address("valkey://db") == Address(places=(Place("db", 6379),))
    assert address("redis://") == Address(places=(Place("localhost", 6379),))


def test_everything_can_be_said() -> None:
    found = address(
        "rediss://us%40er:p%2Fw@db:7000/3?prefix=app.one&replicas=2&timeout=1.5&ca=/ca.pem"
    )
    assert found == Address(
        places=(Place("db", 7000),),
        username="us@er",
        password="p/w",
        database=3,
        is_secure=True,
        prefix="app.one",
        replicas=2,
        timeout_seconds=1.5,
        authority="/ca.pem",
    )


@pytest.mark.parametrize(
    ("scheme", "is_secure", "is_cluster"),
    [
        ("valkey", False, False),
        ("valkeys", True, False),
        ("redis", False, False),
        ("rediss", True, False),
        ("valkey+cluster", False, True),
        ("rediss+cluster", True, True),
    ],
)
def test_the_scheme_says_how_to_connect(scheme: str, is_secure: bool, is_cluster: bool) -> None:
    found = address(f"{scheme}://db")
    assert (found.is_secure, found.is_cluster) == (is_secure, is_cluster)


def test_a_cluster_can_be_asked_about_at_several_places() -> None:
    found = address("valkey+cluster://:pw@a:1,b:2,[::1]:3")
    assert found.places == (Place("a", 1), Place("b", 2), Place("::1", 3))
    assert found.password == "pw"


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(address("valkey://me:secret@db"))


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("valkey://db?unknown=1", "url"),
        ("valkey://db:port", "url"),
        ("valkey://db/one", "url"),
        ("valkey+cluster://db/1", "url"),
        ("valkey://db?prefix=a{b}", "prefix"),
        ("valkey://db?prefix=", "prefix"),
        ("valkey://db?prefix=*", "prefix"),
        ("valkey://db?replicas=-1", "url"),
        ("valkey://db?timeout=soon", "timeout"),
        ("valkey://db?timeout=0", "timeout"),
    ],
)
def test_what_cannot_be_is_refused(url: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_store(url)
    assert refused.value.field == field
    assert refused.value.hint
