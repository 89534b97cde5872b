"""The one thread of a process that writes, with group commit.

Why one thread: SQLite has one writer at a time anyway, and a thread that waits its turn in our own
queue is served in order, while connections that wait in SQLite's busy handler can starve for
seconds. Every transaction is `BEGIN IMMEDIATE`, so it never has to upgrade, and waits for other
processes with short random pauses of our own. Works that are queued while a transaction runs share
the next one, up to a bound in rows and time, so that the cost of a sync to disk is shared too.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from flowfabric.errors import StoreMismatch, StoreUnavailable
from flowfabric.forking import uncut
from flowfabric.loggers import logger_of
from flowfabric.store.hints import Hint, Listener
from flowfabric.store.notices import joined
from flowfabric.store.sqlite.counting import CountingConnection
from flowfabric.store.sqlite.patience import patiently, translated
from flowfabric.store.sqlite.wake import Wakes
from flowfabric.store.sqlite.watch import Watch

T = TypeVar("T")

logger = logger_of("flowfabric.store")

TRANSACTION_SECONDS = 0.005
TRANSACTION_ROWS = 500
WATCH_SECONDS = 0.05
IDLE_SECONDS = 1.0
NOTHING = Hint()


class Work(NamedTuple):
    """Something to do inside a transaction, and how to hand over what came of it."""

    do: Callable[[sqlite3.Connection], None]
    deliver: Callable[[], None]
    fail: Callable[[BaseException], None]
    is_wanted: Callable[[], bool]
    rows: int
    is_passing: bool
    hint: Hint


def _work(
    run: Callable[[sqlite3.Connection], T],
    future: Future[T],
    *,
    rows: int,
    is_passing: bool,
    hint: Hint,
) -> Work:
    answer: list[T] = []

    def do(connection: sqlite3.Connection) -> None:
        answer[:] = [run(connection)]

    return Work(
        do=do,
        deliver=lambda: future.set_result(answer[0]),
        fail=future.set_exception,
        is_wanted=future.set_running_or_notify_cancel,
        rows=rows,
        is_passing=is_passing,
        hint=hint,
    )


class Writer:
    """Owns the writing connection. `on_foreign` is called when another process has written.

    A *passing* work holds nothing that must outlive the machine: a lease that power loss takes
    away had a holder that is gone too. Where writes are synchronised, a transaction of passing
    works alone is not; the next one that is makes it last. Where another work waits already, both
    share one transaction. `on_hint` hears what works of other processes have
    made possible, in a thread of its own.
    """

    def __init__(
        self,
        connection: CountingConnection,
        *,
        is_watched: Callable[[], bool],
        on_foreign: Callable[[], None],
        on_hint: Listener,
        watch: Watch,
        is_synchronous: bool = False,
    ) -> None:
        self._connection = connection
        self._watch = watch
        self._is_synchronous = is_synchronous
        self._is_passing = False
        self._is_watched = is_watched
        self._on_foreign = on_foreign
        self._urgent: deque[Work] = deque()
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._uncut = uncut(threading.Lock())
        self._version = _data_version(connection)
        self._was_ours = True
        self._looked = time.monotonic()
        self._wakes = Wakes(watch, on_hint)
        self._is_woken = False
        self._news = NOTHING
        self._thread = threading.Thread(target=self._loop, name="flowfabric-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        run: Callable[[sqlite3.Connection], T],
        *,
        rows: int = 1,
        urgent: bool = False,
        passing: bool = False,
        hint: Hint = NOTHING,
    ) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the store is closed")
            work = _work(
                run,
                future,
                rows=rows,
                is_passing=passing and self._is_synchronous,
                hint=hint,
            )
            (self._urgent if urgent else self._queue).append(work)
            self._changed.notify()
        return future

    def wake(self) -> None:
        """Look for others' writes now, and from now on as often as somebody listens."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        try:
            while self._wait():
                with self._uncut:
                    self._transaction(self._connection)
                    self._wake_others()
                    self._look_for_others()
        finally:
            with self._uncut:
                self._wakes.close()
                self._connection.close()

    def leave(self) -> None:
        """In a forked child, which has copies of the handles but not the thread: close them."""
        self._wakes.close()
        self._connection.close()

    def _wake_others(self) -> None:
        if self._news is not NOTHING:
            news, self._news = self._news, NOTHING
            self._wakes.tell(news)

    def _look_for_others(self) -> None:
        """Whether another process has written; asked when one says so, and now and then."""
        now = time.monotonic()
        is_due = now - self._looked >= WATCH_SECONDS
        # What is written before a process can be woken is found by the look that follows.
        is_woken = (self._is_watched() and self._wakes.listen()) or self._is_woken
        if not is_due and not is_woken:
            return
        self._is_woken = False
        try:
            version = _data_version(self._connection)
            is_ours = self._was_ours
            if is_due:
                self._looked = now
                is_ours = self._is_ours()
        except sqlite3.Error as error:
            logger.warning("could not check the file for changes", extra={"error": str(error)})
            return
        if version != self._version or is_ours != self._was_ours:
            self._version, self._was_ours = version, is_ours
            self._on_foreign()

    def _is_ours(self) -> bool:
        """Whether the file can still be used. If not, whoever waits hears it from its next call."""
        try:
            self._watch.compare_files()
            self._watch.check_version(self._connection)
        except StoreMismatch as error:
            if self._was_ours:
                logger.critical("%s", error, extra={"error": error.code})
            return False
        return True

    def _wait(self) -> bool:
        """Until there is work, or it is time to look whether others wrote; False at the end."""
        with self._changed:
            if not (self._queue or self._urgent or self._is_woken or self._closing):
                self._changed.wait(WATCH_SECONDS if self._is_watched() else IDLE_SECONDS)
            return bool(self._queue or self._urgent or not self._closing)

    def _take(self, *, only_passing: bool = False) -> Work | None:
        with self._changed:
            while self._urgent or self._queue:
                queue = self._urgent or self._queue
                if only_passing and not queue[0].is_passing:
                    return None
                work = queue.popleft()
                if work.is_wanted():
                    return work
        return None

    def _are_passing(self, first: Work) -> bool:
        """Whether this work and those that wait are all passing."""
        with self._changed:
            return first.is_passing and all(
                work.is_passing for work in (*self._urgent, *self._queue)
            )

    def _transaction(self, connection: CountingConnection) -> None:
        first = self._take()
        if first is None:
            return
        works = [first]
        is_passing = self._are_passing(first)
        try:
            self._begin(connection, is_passing=is_passing)
            self._fill(connection, works, only_passing=is_passing)
            self._commit(connection)
        except BaseException as error:
            _rollback(connection)
            self._one_by_one(connection, works, error)
        else:
            for work in works:
                self._deliver(work)

    def _deliver(self, work: Work) -> None:
        if work.hint != NOTHING:
            self._news = work.hint if self._news is NOTHING else joined(self._news, work.hint)
        work.deliver()

    def _fill(
        self, connection: CountingConnection, works: list[Work], *, only_passing: bool
    ) -> None:
        """Do the first work and as many of the queued ones as fit into one transaction."""
        end = time.monotonic() + TRANSACTION_SECONDS
        rows = works[0].rows
        works[0].do(connection)
        while rows < TRANSACTION_ROWS and time.monotonic() < end:
            work = self._take(only_passing=only_passing)
            if work is None:
                return
            works.append(work)
            rows += work.rows
            work.do(connection)

    def _begin(self, connection: CountingConnection, *, is_passing: bool) -> None:
        if is_passing != self._is_passing:
            level = "NORMAL" if is_passing else "FULL"
            connection.execute(f"PRAGMA synchronous = {level}")
            self._is_passing = is_passing
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _commit(self, connection: CountingConnection) -> None:
        """Nothing is written into a schema that is not ours; and what went into a file that is
        no longer under its name is not answered as written."""
        self._watch.check_version(connection)
        connection.execute("COMMIT")
        self._watch.check_files()

    def _one_by_one(
        self, connection: CountingConnection, works: list[Work], error: BaseException
    ) -> None:
        """One work failed: it must not take the others with it, so each gets its own try."""
        if len(works) == 1:
            works[0].fail(self._told(connection, error))
            return
        for work in works:
            try:
                self._begin(connection, is_passing=work.is_passing)
                work.do(connection)
                self._commit(connection)
            except BaseException as own:
                _rollback(connection)
                work.fail(self._told(connection, own))
            else:
                self._deliver(work)

    def _told(self, connection: CountingConnection, error: BaseException) -> BaseException:
        """What fails in a schema that is not ours failed because of that."""
        try:
            self._watch.check_version(connection)
        except StoreMismatch as mismatch:
            return mismatch
        except sqlite3.Error:
            logger.debug("could not read the schema version of the file")
        return translated(error)


def _data_version(connection: CountingConnection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _rollback(connection: CountingConnection) -> None:
    """Never raises: the thread must live to tell the callers what happened."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        logger.warning("could not roll back a transaction", extra={"error": str(error)})
