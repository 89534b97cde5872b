"""Whatever is wrong with a URL: a typed error that shows no part of a password, however it is
printed, and whatever it is chained to."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowfabric import App
from flowfabric.cli.exits import sentence
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.printing import public_url
from flowfabric.store import Store, open_store
from flowfabric.store.postgres.problems import strange_server

# Both ends of a password: a mistake can cut it in two.
HEAD, TAIL = "Hunter2", "sEcret9"
SCHEMES = (
    *("sqlite", "memory", "postgres", "postgresql", "valkey", "valkeys", "redis", "rediss"),
    *("valkey+cluster", "mysql", ""),
)
URLS = st.builds(
    "{}{}{}:{}{}{}{}{}".format,
    st.sampled_from(SCHEMES),
    st.sampled_from(["://", ":", "//", ""]),
    st.sampled_from(["u", "", "u@v", "ü", "[", "1"]),
    st.text(st.sampled_from("/?#@:[]%&= \\,\u2100\n1"), max_size=3).map(
        lambda t: f"{HEAD}{t}{TAIL}"
    ),
    st.sampled_from(["@", "", "@@", "%40"]),
    st.sampled_from(["h", "[bad", "[::1]", "h:1", "h:x", "h:99999", "", "h,g:2", "\u2100"]),
    st.sampled_from(["/db", "", "/", "/1", "/x.db", "//etc/x.db"]),
    st.sampled_from(
        ["", "?", "?a=b", "?timeout=x", "?schema=1", "?replicas=x", "?synchronous=x", "#f"]
    ),
)


def leaks(*texts: object) -> list[str]:
    return [str(text) for text in texts if HEAD in str(text) or TAIL in str(text)]


def chained(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        yield from chained(error.__cause__)
        error = error.__context__


def refusal(url: str) -> FlowFabricError | Store:
    try:
        return open_store(url)
    except FlowFabricError as error:
        return error


@given(URLS)
@example(f"sqlite://u:{HEAD}@h/x")
@example(f"postgresql://u:{HEAD}@[bad/db")
@example(f"valkey://u:{HEAD}")
@example(f"{HEAD}@h/x")
def test_no_part_of_a_password_is_ever_shown(url: str) -> None:
    found = refusal(url)
    if isinstance(found, FlowFabricError):
        assert isinstance(found, InvalidInput)
        for error in chained(found):
            assert leaks(error, repr(error), vars(error), error.args) == []
        assert leaks(sentence(found), *traceback.format_exception(found)) == []
    elif not url.startswith("sqlite"):
        # A path of a file is no password, nor is what follows the last '@' of a host.
        shown = (repr(found), repr(getattr(found, "address", "")), public_url(url))
        assert not any(HEAD in text for text in shown)


@pytest.mark.parametrize("url", ["postgresql://u:p@[bad/db", "valkey://[bad", "sqlite://[", "[://"])
def test_a_url_that_cannot_be_read_is_a_typed_error(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        App(url)
    assert refused.value.field == "url"


def test_what_a_driver_could_not_read_is_not_repeated() -> None:
    error = strange_server(f"invalid literal: {HEAD}", "h")
    assert leaks(error, error.__context__) == []
