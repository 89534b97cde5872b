"""Starting on a server: which one it is, whether it will do, and what its keys look like."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.errors import StoreMismatch, StoreUnavailable
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.address import Place, parse_address
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.connecting import Facts, read_facts, require_fit
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import PARTITION, order
from flowfabric.testing.conformance.steps import apply, put_and_take
from flowfabric.testing.servers.ports import free_port
from tests.servers import store_url

CLUSTER = {"valkey": "", "valkey-cluster": "+cluster"}


def facts(*lines: str) -> Facts:
    return read_facts("\r\n".join(("# Server", *lines)).encode())


@pytest.mark.case("BC-001")
def test_the_version_of_valkey_goes_before_that_of_redis() -> None:
    told = facts("redis_version:7.2.4", "valkey_version:9.0.3")
    assert (told.name, told.version) == ("valkey", "9.0.3")


@pytest.mark.case("BC-002")
@pytest.mark.parametrize("name", ["valkey", "Valkey", "VALKEY"])
def test_an_early_valkey_tells_only_the_version_of_redis(name: str) -> None:
    told = facts("redis_version:7.2.4", f"server_name:{name}")
    assert (told.name, told.version) == ("valkey", "7.2.4")


@pytest.mark.parametrize("version", ["", "unstable", "v9", "9", "nine.two", "9.x", "-1.0"])
def test_a_version_that_cannot_be_read_is_refused_by_its_name(version: str) -> None:
    told = facts(f"valkey_version:{version}")
    with pytest.raises(StoreMismatch) as refused:
        require_fit(told, parse_address("valkey://host"), Place("host", 6379))
    assert f"valkey {version!r}, which cannot be read" in refused.value.message
    assert "Valkey 7.2" in refused.value.hint


@pytest.mark.parametrize("version", ["9.0.0-rc1", "8.1", "7.2.4.99"])
def test_a_version_with_more_behind_it_is_read(version: str) -> None:
    told = facts(f"valkey_version:{version}")
    require_fit(told, parse_address("valkey://host"), Place("host", 6379))


@pytest.mark.case("BC-006")
@pytest.mark.parametrize("line", ["redis_version:6.2.14", "valkey_version:7.1.0"])
def test_a_server_that_is_too_old_is_refused_with_both_versions(line: str) -> None:
    found = line.partition(":")[2]
    with pytest.raises(StoreMismatch) as refused:
        require_fit(facts(line), parse_address("valkey://host"), Place("host", 6379))
    assert not refused.value.retryable
    assert found in refused.value.message
    assert "Valkey 7.2 or Redis 7.0" in refused.value.message


@pytest.mark.case("BC-007")
@pytest.mark.parametrize("kind", CLUSTER)
async def test_what_a_start_would_do_is_told_until_it_is_done(kind: str, tmp_path: Path) -> None:
    store = open_store(store_url(kind, tmp_path / "store"))
    assert isinstance(store, ValkeyStore)
    planned = await store.unmigrated()
    assert planned
    await store.migrate()
    assert await store.unmigrated() == []
    await store.drop()
    await store.close()


@pytest.mark.case("BC-013")
@pytest.mark.parametrize("mode", CLUSTER.values())
async def test_a_closed_port_is_told_in_time(mode: str) -> None:
    port = free_port()
    store = open_store(f"valkey{mode}://127.0.0.1:{port}")
    with pytest.raises(StoreUnavailable) as refused:
        async with asyncio.timeout(30):
            await store.migrate()
    assert f"127.0.0.1:{port}" in refused.value.message
    assert (refused.value.code, refused.value.details["backend"]) == ("transport", "valkey")


@pytest.mark.case("PA-019", "PA-020")
async def test_every_key_has_one_tag_and_those_of_an_execution_its_partition(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = open_store(store_url("valkey", tmp_path / "store"), clock=clock)
    assert isinstance(store, ValkeyStore)
    await store.migrate()
    wanted = order(0, key="k", digest="d", tags={"a.b": "c"}, payload=b"x" * 1_000)
    lease = await put_and_take(store, clock, wanted)
    await apply(store, clock, complete(lease, clock.now_ms(), b"1" * 1_000))
    found = await store.caller.one(command("any", "KEYS", f"{store.keys.prefix}*"))
    assert isinstance(found, list)
    keys = [key.decode() for key in found if isinstance(key, bytes)]
    tags = {key: re.findall(r"{[^}]*}", key) for key in keys}
    assert all(len(tag) == 1 for tag in tags.values())
    uuid = lease.id.rpartition(":")[2]
    mine = {key for key in keys if uuid in key}
    assert len(mine) >= 4
    assert {tuple(tags[key]) for key in mine} == {(f"{{fp:{PARTITION}}}",)}
    await store.drop()
    await store.close()
