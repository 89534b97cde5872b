"""Sets the stage: a folder, a store, two worker processes; and clears it again."""

from __future__ import annotations

import asyncio
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from flowfabric.cli import event_loop
from flowfabric.cli.demo.crew import Crew
from flowfabric.cli.demo.notes import Notes
from flowfabric.cli.demo.proof import Proof, prove
from flowfabric.cli.demo.screen import open_screen
from flowfabric.cli.demo.story import Story
from flowfabric.cli.demo.tasks import open_shop
from flowfabric.cli.stores import named_store
from flowfabric.errors import FlowFabricError, InvalidInput


def run(store: str | None, *, orders: int, out: TextIO) -> Proof:
    if store is not None and store.partition(":")[0].partition("?")[0] == "memory":
        raise InvalidInput(
            "the demo starts three processes, which cannot share memory://",
            field="store",
            hint="omit --store, or use sqlite:///demo.db",
        )
    with (
        tempfile.TemporaryDirectory(
            prefix="flowfabric-demo-", ignore_cleanup_errors=True
        ) as folder,
        _terminated_as_interrupted(),
    ):
        if store is None:
            url = f"sqlite:///{Path(folder, 'demo.db').as_posix()}"
            return event_loop.run(_run(url, Path(folder), orders=orders, out=out))
        with named_store(store) as url:
            return event_loop.run(_run(url, Path(folder), orders=orders, out=out))


async def _run(url: str, folder: Path, *, orders: int, out: TextIO) -> Proof:
    try:
        return await _play(url, folder, orders=orders, out=out)
    except FlowFabricError:
        # Ctrl-C stops the workers as well: errors that follow from that are expected.
        if _is_being_cancelled():
            raise asyncio.CancelledError from None
        raise


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _play(url: str, folder: Path, *, orders: int, out: TextIO) -> Proof:
    began = time.monotonic()
    # A namespace of its own: the demo can be run again, and beside other work, on one store.
    namespace = f"demo-{secrets.token_hex(4)}"
    effects = folder / "effects"
    notes = Notes(effects)
    shop = open_shop(url, namespace, notes)
    await shop.app.connect()
    try:
        with Crew(url, namespace, folder, effects=effects) as crew, open_screen(out) as screen:
            evidence = await Story(shop, crew, screen, orders=orders, notes=notes).play()
        seconds = time.monotonic() - began
        return await prove(shop.app.engine, evidence, notes.read(), seconds=seconds)
    finally:
        await shop.app.close()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Being asked to end leads the same way out as Ctrl-C: workers stopped, folder removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A closed terminal is told of by a signal that not every system has.
    endings = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    heeded = [number for number in endings if signal.getsignal(number) is signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
