"""The writer thread: shared commits, one failure at a time, and waiting for other processes."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowfabric.core.model import Query
from flowfabric.errors import StoreUnavailable
from flowfabric.store.sqlite import SqliteStore, patience, writer
from flowfabric.store.sqlite.counting import CountingConnection
from flowfabric.store.sqlite.file import connect
from flowfabric.store.sqlite.watch import Watch
from flowfabric.store.sqlite.writer import Writer
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order, submissions

Work = Callable[[sqlite3.Connection], str]


class Desk:
    """A writer on a file with one table, and every statement that it ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements: list[str] = []
        self.done: list[str] = []
        self.foreign = threading.Event()
        connection = connect(str(path), "FULL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE note (text TEXT)")
        connection.set_trace_callback(self.statements.append)
        self.writer = Writer(
            connection,
            is_watched=lambda: True,
            on_foreign=self.foreign.set,
            on_hint=lambda _: self.foreign.set(),
            watch=Watch(str(path)),
            is_synchronous=True,
        )

    def note(self, text: str) -> Work:
        """Work that writes one row and says so."""

        def work(connection: sqlite3.Connection) -> str:
            connection.execute("INSERT INTO note VALUES (?)", (text,))
            self.done.append(text)
            return f"wrote {text}"

        return work

    def gate(self) -> threading.Event:
        """Keep the writer busy until the event is set, so that what comes after it is queued."""
        entered, opened = threading.Event(), threading.Event()

        def wait(_: sqlite3.Connection) -> None:
            entered.set()
            opened.wait()

        self.writer.submit(wait, rows=writer.TRANSACTION_ROWS)
        entered.wait()
        return opened

    def count(self, statement: str) -> int:
        return sum(each.startswith(statement) for each in self.statements)

    def steps(self, *kinds: str) -> list[str]:
        """The statements of these kinds, in order."""
        return [each for each in self.statements if each.startswith(kinds)]

    def notes(self) -> list[str]:
        with sqlite3.connect(self.path) as raw:
            found = raw.execute("SELECT text FROM note ORDER BY rowid").fetchall()
        raw.close()
        return [text for (text,) in found]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "notes.db")
    yield desk
    desk.writer.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction takes as much time as it wants, so that only its rows bound it."""
    monkeypatch.setattr(writer, "TRANSACTION_SECONDS", 3_600.0)


@pytest.mark.usefixtures("unhurried")
def test_works_that_are_queued_share_a_commit(desk: Desk) -> None:
    gate = desk.gate()
    futures = [desk.writer.submit(desk.note(str(n))) for n in range(20)]
    desk.statements.clear()
    gate.set()
    assert [future.result() for future in futures] == [f"wrote {n}" for n in range(20)]
    # The gate's own commit, and one for all the others.
    assert (desk.count("BEGIN IMMEDIATE"), desk.count("COMMIT")) == (1, 2)
    assert desk.notes() == [str(n) for n in range(20)]


@pytest.mark.usefixtures("unhurried")
def test_a_transaction_takes_no_more_rows_than_its_bound(desk: Desk) -> None:
    gate = desk.gate()
    rows = writer.TRANSACTION_ROWS // 2 + 1
    futures = [desk.writer.submit(desk.note(str(n)), rows=rows) for n in range(6)]
    desk.statements.clear()
    gate.set()
    for future in futures:
        future.result()
    assert (desk.count("BEGIN IMMEDIATE"), desk.count("COMMIT")) == (3, 4)


def test_a_transaction_ends_when_its_time_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "TRANSACTION_SECONDS", 0.0)
    gate = desk.gate()
    futures = [desk.writer.submit(desk.note(str(n))) for n in range(4)]
    desk.statements.clear()
    gate.set()
    for future in futures:
        future.result()
    assert (desk.count("BEGIN IMMEDIATE"), desk.count("COMMIT")) == (4, 5)


@pytest.mark.usefixtures("unhurried")
def test_one_failing_work_does_not_take_others_with_it(desk: Desk) -> None:
    def fail(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO note VALUES ('half')")
        raise ValueError("a mistake")

    gate = desk.gate()
    works: list[Work] = [desk.note("a"), fail, desk.note("b"), fail, desk.note("c")]
    futures = [desk.writer.submit(work) for work in works]
    gate.set()
    assert [futures[n].result() for n in (0, 2, 4)] == ["wrote a", "wrote b", "wrote c"]
    for n in (1, 3):
        with pytest.raises(ValueError, match="a mistake"):
            futures[n].result()
    assert desk.notes() == ["a", "b", "c"]


@pytest.mark.usefixtures("unhurried")
def test_trouble_with_the_file_has_our_name_and_its_cause(desk: Desk) -> None:
    gate = desk.gate()
    good = desk.writer.submit(desk.note("a"))
    bad = desk.writer.submit(
        lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)")
    )
    gate.set()
    assert good.result() == "wrote a"
    with pytest.raises(StoreUnavailable, match="nowhere") as raised:
        bad.result()
    assert isinstance(raised.value.__cause__, sqlite3.OperationalError)


def test_passing_works_are_not_synchronised_alone(desk: Desk) -> None:
    """Each runs with its own degree of safety, and the connection is told only when it changes."""
    for text, passing in (("a", True), ("b", True), ("c", False), ("d", False), ("e", True)):
        desk.writer.submit(desk.note(text), passing=passing).result()
    assert desk.steps("PRAGMA synchronous", "INSERT") == [
        "PRAGMA synchronous = NORMAL",
        "INSERT INTO note VALUES ('a')",
        "INSERT INTO note VALUES ('b')",
        "PRAGMA synchronous = FULL",
        "INSERT INTO note VALUES ('c')",
        "INSERT INTO note VALUES ('d')",
        "PRAGMA synchronous = NORMAL",
        "INSERT INTO note VALUES ('e')",
    ]


@pytest.mark.usefixtures("unhurried")
def test_a_lasting_work_is_never_part_of_a_passing_commit(desk: Desk) -> None:
    """It came too late to be waited for: the transaction had begun without it."""
    late: list[Future[str]] = []

    def passing(connection: sqlite3.Connection) -> str:
        late.append(desk.writer.submit(desk.note("b")))
        return desk.note("a")(connection)

    desk.writer.submit(passing, passing=True).result()
    late[0].result()
    assert desk.steps("PRAGMA synchronous", "BEGIN", "INSERT", "COMMIT") == [
        "PRAGMA synchronous = NORMAL",
        "BEGIN IMMEDIATE",
        "INSERT INTO note VALUES ('a')",
        "COMMIT",
        "PRAGMA synchronous = FULL",
        "BEGIN IMMEDIATE",
        "INSERT INTO note VALUES ('b')",
        "COMMIT",
    ]


@pytest.mark.usefixtures("unhurried")
def test_a_passing_work_shares_the_commit_of_a_lasting_one_that_waits(desk: Desk) -> None:
    gate = desk.gate()
    kinds = [("a", True), ("b", False), ("c", True)]
    futures = [desk.writer.submit(desk.note(text), passing=passing) for text, passing in kinds]
    desk.statements.clear()
    gate.set()
    for future in futures:
        future.result()
    assert desk.steps("PRAGMA synchronous", "BEGIN", "INSERT", "COMMIT") == [
        "COMMIT",
        "BEGIN IMMEDIATE",
        "INSERT INTO note VALUES ('a')",
        "INSERT INTO note VALUES ('b')",
        "INSERT INTO note VALUES ('c')",
        "COMMIT",
    ]


@pytest.mark.usefixtures("unhurried")
def test_a_failing_group_is_repeated_with_each_works_own_safety(desk: Desk) -> None:
    def fail(_: sqlite3.Connection) -> str:
        raise ValueError("a mistake")

    gate = desk.gate()
    lasting = desk.writer.submit(desk.note("a"))
    passing = desk.writer.submit(desk.note("b"), passing=True)
    failing = desk.writer.submit(fail, passing=True)
    desk.statements.clear()
    gate.set()
    assert (lasting.result(), passing.result()) == ("wrote a", "wrote b")
    with pytest.raises(ValueError, match="a mistake"):
        failing.result()
    steps = desk.steps("PRAGMA synchronous", "INSERT", "ROLLBACK")
    assert steps[:5] == [
        "INSERT INTO note VALUES ('a')",
        "INSERT INTO note VALUES ('b')",
        "ROLLBACK",
        "INSERT INTO note VALUES ('a')",
        "PRAGMA synchronous = NORMAL",
    ]


def test_urgent_works_go_first(desk: Desk) -> None:
    gate = desk.gate()
    futures = [desk.writer.submit(desk.note(text)) for text in ("a", "b")]
    futures += [desk.writer.submit(desk.note(text), urgent=True) for text in ("x", "y")]
    futures.append(desk.writer.submit(desk.note("c")))
    gate.set()
    for future in futures:
        future.result()
    assert desk.done == ["x", "y", "a", "b", "c"]


def test_a_cancelled_work_is_not_run(desk: Desk) -> None:
    gate = desk.gate()
    first, dropped, last = (desk.writer.submit(desk.note(text)) for text in ("a", "b", "c"))
    assert dropped.cancel()
    gate.set()
    assert (first.result(), last.result()) == ("wrote a", "wrote c")
    assert desk.notes() == ["a", "c"]


def test_a_work_that_has_begun_can_not_be_cancelled(desk: Desk) -> None:
    entered, opened = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> str:
        entered.set()
        opened.wait()
        return desk.note("a")(connection)

    future = desk.writer.submit(work)
    entered.wait()
    assert not future.cancel()
    opened.set()
    assert future.result() == "wrote a"


def test_closing_finishes_what_is_queued(desk: Desk) -> None:
    gate = desk.gate()
    futures = [desk.writer.submit(desk.note(text)) for text in ("a", "b")]
    gate.set()
    desk.writer.close()
    desk.writer.close()
    assert [future.done() for future in futures] == [True, True]
    assert desk.notes() == ["a", "b"]
    with pytest.raises(StoreUnavailable):
        desk.writer.submit(desk.note("c"))


def test_the_writer_outlives_a_transaction_that_cannot_be_undone(tmp_path: Path) -> None:
    class Stubborn(CountingConnection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            if sql == "ROLLBACK":
                super().execute(sql)
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *parameters)  # type: ignore[arg-type]

    connection = sqlite3.connect(
        tmp_path / "notes.db", isolation_level=None, check_same_thread=False, factory=Stubborn
    )
    watch = Watch(str(tmp_path / "notes.db"))
    alive = Writer(
        connection,
        is_watched=lambda: False,
        on_foreign=lambda: None,
        on_hint=lambda _: None,
        watch=watch,
    )
    failed: Future[object] = alive.submit(lambda c: c.execute("SELECT * FROM nowhere"))
    with pytest.raises(StoreUnavailable):
        failed.result()
    assert alive.submit(lambda c: c.execute("SELECT 1").fetchone()).result() == (1,)
    alive.close()


def test_what_another_process_writes_is_noticed(desk: Desk) -> None:
    with sqlite3.connect(desk.path) as raw:
        raw.execute("INSERT INTO note VALUES ('from outside')")
    raw.close()
    assert desk.foreign.wait(30)


def test_its_own_writes_are_not_those_of_another(desk: Desk) -> None:
    """Told apart by the version that SQLite counts for other connections only."""
    desk.writer.submit(desk.note("a")).result()
    looked = desk.count("PRAGMA data_version")
    while desk.count("PRAGMA data_version") < looked + 2:
        desk.writer.submit(desk.note("b")).result()
    assert not desk.foreign.is_set()


class Pauses:
    """Stands in for the module `time`: says how often was waited, and lets something happen."""

    def __init__(self, after: int, then: Callable[[], None]) -> None:
        self.seconds: list[float] = []
        self.late = 0.0
        self._after = after
        self._then = then

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._after:
            self._then()

    def monotonic(self) -> float:
        return time.monotonic() + self.late


def hold(path: Path) -> sqlite3.Connection:
    """Another process in the middle of a write."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_a_file_that_is_locked_is_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    other = hold(desk.path)
    pauses = Pauses(10, lambda: other.rollback() if other.in_transaction else None)
    monkeypatch.setattr(patience, "time", pauses)
    assert desk.writer.submit(desk.note("a")).result() == "wrote a"
    other.close()
    shortest, longest = patience.BUSY_PAUSE_SECONDS
    assert len(pauses.seconds) == 10
    assert all(shortest <= seconds <= longest for seconds in pauses.seconds)


def test_pauses_are_random(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that wait in step would keep meeting each other."""
    other = hold(desk.path)
    pauses = Pauses(20, lambda: other.rollback() if other.in_transaction else None)
    monkeypatch.setattr(patience, "time", pauses)
    monkeypatch.setattr(patience, "random", SimpleNamespace(uniform=random.Random(0).uniform))
    desk.writer.submit(desk.note("a")).result()
    other.close()
    assert len(set(pauses.seconds)) == 20


def test_a_file_that_stays_locked_is_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    other = hold(desk.path)
    pauses = Pauses(3, lambda: setattr(pauses, "late", patience.BUSY_LIMIT_SECONDS + 1))
    monkeypatch.setattr(patience, "time", pauses)
    with pytest.raises(StoreUnavailable, match="locked") as raised:
        desk.writer.submit(desk.note("a")).result()
    assert raised.value.hint == "another process holds the file; end it or wait"
    other.rollback()
    other.close()
    pauses.late = 0.0
    assert desk.writer.submit(desk.note("b")).result() == "wrote b"
    assert desk.notes() == ["b"]


async def test_a_write_that_had_to_wait_is_not_taken_for_a_wrong_clock(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(tmp_path / "store.db"), clock=clock)
    await store.migrate()
    other = hold(tmp_path / "store.db")

    def let_go() -> None:
        clock.advance(5_000)
        other.rollback()

    monkeypatch.setattr(patience, "time", Pauses(3, let_go))
    now_ms = clock.now_ms()
    answers = await store.insert(submissions([order(0)], now_ms), now_ms)
    assert [answer.created for answer in answers] == [True]
    assert len(await store.find(Query())) == 1
    other.close()
    await store.close()
