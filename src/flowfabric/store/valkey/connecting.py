"""Opening a connection: who we are, which database, and what kind of server answers.

A server that could lose or evict what it is given, or that cannot run our functions, is refused
here with what to do about it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import NamedTuple

from flowfabric.errors import InvalidInput, StoreMismatch, StoreUnavailable
from flowfabric.loggers import logger_of
from flowfabric.store.valkey.address import Address, Place
from flowfabric.store.valkey.link import Link, Reply, ReplyError, pack
from flowfabric.store.valkey.trouble import unavailable

logger = logger_of("flowfabric.store.valkey")

CONNECT_SECONDS = 3.0
MIN_REPLICAS = "min-replicas-to-write"
_OLDEST = {"valkey": (7, 2), "redis": (7, 0)}
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})")


class Facts(NamedTuple):
    """What a server says of itself. `life` changes when it begins anew or is another one."""

    name: str
    version: str
    life: str
    is_replica: bool
    is_cluster: bool
    policy: str
    is_persistent: bool


async def connect(
    address: Address, place: Place, on_push: Callable[[list[Reply]], None] | None = None
) -> tuple[Link, Facts]:
    """A link that is ready to be asked, and what is at its other end."""
    loop = asyncio.get_running_loop()
    secure = _context(address) if address.is_secure else None
    patience = min(CONNECT_SECONDS, address.timeout_seconds)
    try:
        async with asyncio.timeout(patience):
            _, link = await loop.create_connection(
                lambda: Link(address.timeout_seconds, on_push), place.host, place.port, ssl=secure
            )
    except TimeoutError as error:
        raise _unreachable(place, f"no answer within {patience:g} s") from error
    except OSError as error:
        raise _unreachable(place, error.strerror or str(error)) from error
    try:
        return link, await _greet(link, address, place)
    except BaseException:
        link.lose(StoreUnavailable("the connection could not be set up"))
        raise


def _context(address: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=address.authority)
    except OSError as error:
        raise InvalidInput(f"the certificates cannot be read: {error}", field="ca") from error


def _unreachable(place: Place, problem: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{place} cannot be reached: {problem}",
        hint="check host, port, and whether the server runs and speaks TLS (valkeys://)",
        details={"backend": "valkey", "place": str(place)},
    )


async def _greet(link: Link, address: Address, place: Place) -> Facts:
    requests = [pack("CLIENT", "SETNAME", "flowfabric"), pack("INFO")]
    if address.database:
        requests.insert(0, pack("SELECT", address.database))
    if address.password:
        who = (address.username,) if address.username else ()
        requests.insert(0, pack("AUTH", *who, address.password))
    replies = await link.ask(requests)
    for reply in (replies[0], *replies[-1:], *replies):
        if isinstance(reply, ReplyError):
            raise unavailable(reply, place)
    return read_facts(replies[-1])


def read_facts(reply: Reply) -> Facts:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    told = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
    # Valkey also tells the version of Redis that it can stand in for.
    name = "valkey" if "valkey_version" in told else told.get("server_name", "redis").lower()
    version = told.get(f"{name}_version", told.get("redis_version", ""))
    return Facts(
        name=name,
        version=version,
        life=f"{told.get('master_replid', '')}-{told.get('run_id', '')}",
        is_replica=told.get("role") == "slave",
        is_cluster=told.get("cluster_enabled") == "1",
        policy=told.get("maxmemory_policy", "noeviction"),
        is_persistent=told.get("aof_enabled") == "1",
    )


def require_fit(facts: Facts, address: Address, place: Place) -> None:
    """Refuse a server that the store cannot trust with its records."""
    _require_version(facts, place)
    if facts.is_cluster != address.is_cluster:
        wanted = "valkey+cluster://" if facts.is_cluster else "valkey://"
        what = "is a node of a cluster" if facts.is_cluster else "is not part of a cluster"
        raise StoreMismatch(f"{place} {what}", field="url", hint=f"use {wanted}…")
    if facts.policy != "noeviction":
        raise StoreMismatch(
            f"{place} evicts keys when its memory is full ({facts.policy})",
            hint="CONFIG SET maxmemory-policy noeviction",
        )
    if facts.is_replica and not address.is_cluster:
        raise StoreUnavailable(f"{place} is a read-only replica", hint="connect to the primary")


def _require_version(facts: Facts, place: Place) -> None:
    found = _VERSION.match(facts.version)
    if found is None:
        raise StoreMismatch(
            f"{place} reports the version {facts.name} {facts.version!r}, which cannot be read",
            hint="use Valkey 7.2 or Redis 7.0, or newer; allow the user INFO",
        )
    if (int(found[1]), int(found[2])) < _OLDEST.get(facts.name, _OLDEST["redis"]):
        raise StoreMismatch(
            f"{place} is {facts.name} {facts.version}, which is too old: "
            "Valkey 7.2 or Redis 7.0 is required",
            hint="upgrade the server",
        )


async def warn_of_replicas(link: Link, address: Address, place: Place) -> None:
    """With `?replicas=N`: whether a primary that was cut off from its replicas stops taking writes,
    which nobody could confirm any more."""
    (reply,) = await link.ask([pack("CONFIG", "GET", MIN_REPLICAS)])
    if isinstance(reply, ReplyError):
        logger.warning("cannot read %s of %s: allow the user CONFIG GET", MIN_REPLICAS, place)
        return
    cells = reply if isinstance(reply, list) else []
    least = int(cells[1]) if len(cells) > 1 and isinstance(cells[1], bytes) else 0
    if least < address.replicas:
        logger.warning(
            "%s accepts writes with fewer replicas than ?replicas=%d requires: "
            "CONFIG SET %s %d (it is %d)",
            *(place, address.replicas, MIN_REPLICAS, address.replicas, least),
        )


def warn_of_loss(facts: Facts, place: Place) -> None:
    if not facts.is_persistent:
        logger.warning(
            "%s has no append-only file: a restart of the server loses the latest writes", place
        )
