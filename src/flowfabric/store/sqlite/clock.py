"""The clock of a file: one for all processes that have it open, whatever their own clocks say.

The file keeps a mark: what time it was at an instant of the machine's steady clock, and in which
run of the machine. Every process reads the steady clock and adds what has passed, so that they
agree without asking each other, and setting the machine's clock moves no lease and no delay. In
another run of the machine the steady clock begins anew; then a new mark is made, never before an
instant that was told already.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec

from flowfabric.store.clock import Machine, Mark
from flowfabric.store.sqlite.statements import run

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAME = "clock"
_NO_BOOT = "none"
# How often the mark is looked at by who writes, and how far ahead of it instants are told.
TEND_MS = 1_000
KEEP_MS = 5_000

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(Mark).decode


def this_machine() -> Machine:
    return Machine(_boot())


@cache
def _boot() -> str:
    """The name of this run of the machine; empty where the system has none. Then it is known from
    the steady clock, which begins anew, and may be taken for the last one if that was shorter."""
    if sys.platform == "darwin":
        asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
        return told.stdout.strip()
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class FileClock:
    """Read by any thread; the mark is exchanged by the one that writes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._steady_ns = machine.steady_ns
        self._mark = machine.mark(None)
        self._is_guess = True
        self._tended_ms = -TEND_MS
        self._last_ms = 0

    def now_ms(self) -> int:
        """Before the file is open it is what the machine's clock shows, and binds nothing."""
        mark, steady_ms = self._mark, self._steady_ns() // 1_000_000
        # Asked for every order: where nothing is slewed, the mark need not be.
        now_ms = mark.now_ms(steady_ms) if mark.slew_ms else mark.at_ms + steady_ms - mark.steady_ms
        # A mark that was not written after all was a little ahead of the one that is there.
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms

    def _steady_ms(self) -> int:
        return self._steady_ns() // 1_000_000

    def follow(self, connection: sqlite3.Connection) -> None:
        """Another process wrote: perhaps a mark."""
        found = _found(connection)
        if found is not None and found.boot == self._machine.boot:
            self._go_by(found)

    def tend(self, connection: sqlite3.Connection) -> None:
        """In a transaction, now and then: keep up with the machine and with others."""
        if self._steady_ms() < self._tended_ms + TEND_MS:
            return
        self._tended_ms = self._steady_ms()
        found = _found(connection)
        mark = self._machine.mark(found or _unmarked(connection))
        now_ms = mark.now_ms(self._tended_ms)
        if now_ms + TEND_MS >= mark.kept_ms:
            mark = msgspec.structs.replace(mark, kept_ms=now_ms + KEEP_MS)
        if mark != found:
            run(connection, "meta_put", _NAME, _encode(mark).decode())
        self._go_by(mark)

    def _go_by(self, mark: Mark) -> None:
        self._mark = mark
        if self._is_guess:
            self._is_guess = False
            self._last_ms = 0


def _unmarked(connection: sqlite3.Connection) -> Mark | None:
    """A file without a mark that has a log: what it told last is known from that."""
    row = run(connection, "log_last_at").fetchone()
    return None if row is None else Mark(boot=_NO_BOOT, steady_ms=0, at_ms=row[0], kept_ms=row[0])


def _found(connection: sqlite3.Connection) -> Mark | None:
    """A mark that cannot be read is made anew."""
    row = run(connection, "meta_named", _NAME).fetchone()
    try:
        return None if row is None else _decode(row[0])
    except (msgspec.MsgspecError, TypeError):
        return None
