"""Mistakes in how an app is set up are named with the field and the remedy, before anything is
opened or written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from flowfabric import App, InvalidInput, Refused
from flowfabric.errors import FlowFabricError, MissingExtra
from tests.app.stage import running

BAD_URLS = {
    "mysql://host/db": ("url", "unknown scheme mysql://", "sqlite:///file.db"),
    "flows.db": ("url", "unknown scheme in 'flows.db'", "sqlite:///file.db"),
    "": ("url", "unknown scheme", "sqlite:///file.db"),
    "sqlite://flows.db": ("url", "names no file", "three slashes"),
    "sqlite:///": ("url", "names no file", "three slashes"),
    "sqlite:///flows.db?synchronous=OFF": ("synchronous", "unknown value 'OFF'", "FULL"),
    "sqlite:///flows.db?journal=WAL": ("url", "unknown option 'journal'", "synchronous"),
    "memory://?size=3": ("url", "unknown option 'size'", "none"),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_named(url: str, tmp_path: Path) -> None:
    field, told, remedy = BAD_URLS[url]
    with pytest.raises(InvalidInput) as refused:
        App(url)
    assert refused.value.field == field
    assert told in refused.value.message
    assert remedy in refused.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", [5, Path("flows.db")])
def test_a_url_is_text(url: object) -> None:
    with pytest.raises(InvalidInput, match="expected text") as refused:
        App(cast(str, url))
    assert refused.value.field == "url"


SERVER_STORES = ("flowfabric.store.postgres", "flowfabric.store.valkey")


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("postgresql://host/db", "postgres"),
        ("postgres://host/db", "postgres"),
        ("valkey://host", "valkey"),
        ("valkey+cluster://host", "valkey"),
        ("redis://host", "valkey"),
    ],
)
def test_a_missing_extra_is_one_sentence(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in ("asyncpg", "hiredis"):
        monkeypatch.setitem(sys.modules, driver, None)
    for name in [name for name in sys.modules if name.startswith(SERVER_STORES)]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra) as missing:
        App(url)
    assert missing.value.hint == f"pip install 'flowfabric[{extra}]'"
    assert "\n" not in str(missing.value)


def _app(**options: object) -> Callable[[], App]:
    return lambda: cast(Callable[..., App], App)("memory://", **options)


BAD_OPTIONS: dict[str, tuple[Callable[[], App], str]] = {
    "no concurrency": (_app(concurrency=0), "concurrency"),
    "negative concurrency": (_app(concurrency=-3), "concurrency"),
    "half a slot": (_app(concurrency=1.5), "concurrency"),
    "concurrency of truth": (_app(concurrency=True), "concurrency"),
    "a lease too short": (_app(lease_ttl="4s"), "lease_ttl"),
    "a lease of nothing": (_app(lease_ttl=0), "lease_ttl"),
    "a lease without a unit": (_app(lease_ttl="soon"), "lease_ttl"),
    "an endless lease": (_app(lease_ttl=float("inf")), "lease_ttl"),
    "a lease that is no number": (_app(lease_ttl=float("nan")), "lease_ttl"),
    "a negative drain": (_app(drain=-1), "drain"),
    "a drain of a hundred and one years": (_app(drain="36890d"), "drain"),
    "an empty namespace": (_app(namespace=""), "namespace"),
    "a namespace too long": (_app(namespace="n" * 65), "namespace"),
    "a namespace with a bell": (_app(namespace="a\a"), "namespace"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_named(name: str) -> None:
    make, field = BAD_OPTIONS[name]
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.field == field
    assert refused.value.hint
    assert str(refused.value).startswith(f"{field}: ")


BAD_RUNS: dict[str, tuple[dict[str, object], str]] = {
    "one lane as text": ({"lanes": "llm"}, "lanes"),
    "a lane without a name": ({"lanes": [""]}, "lane"),
    "a lane too long": ({"lanes": ["x" * 65]}, "lane"),
    "a lane that cannot be printed": ({"lanes": ["a\n"]}, "lane"),
    "a lane that is no text": ({"lanes": [3]}, "lane"),
    "a worker with a space": ({"worker": "my worker"}, "worker"),
    "a worker too long": ({"worker": "w" * 257}, "worker"),
}


@pytest.mark.parametrize("name", BAD_RUNS)
async def test_a_bad_worker_is_named_and_the_app_is_still_good(name: str, url: str) -> None:
    options, field = BAD_RUNS[name]
    app = App(url)

    @app.task
    async def work() -> int:
        return 1

    with pytest.raises(InvalidInput) as refused:
        async with cast(Callable[..., object], app.running)(**options):  # type: ignore[attr-defined]
            pass
    assert refused.value.field == field
    assert refused.value.hint
    async with running(app):
        assert await (await work.start()).result() == 1


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/none/flows.db")
    with pytest.raises(InvalidInput, match="there is no folder") as refused:
        await app.connect()
    assert (refused.value.field, refused.value.hint) == ("url", "create it first")
    (tmp_path / "none").mkdir()
    await app.connect()
    await app.close()


async def test_an_app_that_could_not_be_opened_holds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "flows.db"
    file.write_text("not a database at all, but long enough to look like one" * 20)
    app = App(f"sqlite:///{file}")
    for _ in range(2):
        with pytest.raises(FlowFabricError, match="not a database"):
            await app.connect()
    file.unlink()
    await app.connect()
    await app.close()


async def test_an_app_runs_once_at_a_time(app: App) -> None:
    async with running(app):
        with pytest.raises(Refused, match="already running") as refused:
            async with app.running():
                pass
        assert refused.value.hint
        with pytest.raises(Refused, match="is running") as refused:
            await app.close()
        assert "running()" in refused.value.hint


@pytest.mark.parametrize(
    "id",
    ["", "x", "{fp:7}", "{fp:-1}:01890000-0000-7000-8000-000000000000", "{fp:7}:not-a-uuid", None],
)
async def test_a_bad_id_is_named_before_the_store_is_opened(id: str, tmp_path: Path) -> None:
    app = App("sqlite:///unopened.db")
    with pytest.raises(InvalidInput) as refused:
        app.handle(id)
    assert refused.value.field == "execution_id"
    assert refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_remedy_for_a_time_without_a_zone_is_code() -> None:
    app = App("memory://")

    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="no time zone") as refused:
        work.options(deadline=datetime(2030, 1, 1)).bind()  # noqa: DTZ001
    assert refused.value.field == "deadline"
    assert "tzinfo=UTC" in refused.value.hint
