"""What people see has ids as they can type them: no text for people has one as it is stored."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator

import pytest

from flowfabric import App, ExecutionEnded, ExecutionFailed, FlowFabricError
from flowfabric.core.ids import execution_id, uuid7
from flowfabric.loggers import logger_of
from tests.app.stage import running
from tests.test_tidy import package, under
from tests.tidy_rules import Source

STORED = "{fp:"
ID = execution_id(7, uuid7(1_700_000_000_000, 1))
PUBLIC = f"7-{ID[-36:]}"


# Where an id is written or read: the one place that knows both spellings, the one that translates
# texts, stores with their keys, and what speaks to a store directly.
KNOWING = ("core/ids.py", "printing.py", "store/", "testing/", "cli/bench/limit_valkey.py")


def stored_spellings(source: Source) -> Iterator[str]:
    """Texts outside of docstrings that spell an id as it is stored."""
    nodes = list(ast.walk(source.tree()))
    told = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if isinstance(node, ast.Constant) and STORED in str(node.value) and node not in told:
            yield source.at(node.lineno, "spells an id as it is stored")


def plain_loggers(source: Source) -> Iterator[str]:
    """Loggers of the package that show ids as they are stored."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if re.search(r"getLogger\(\"flowfabric\.", line):
            yield source.at(number, "use flowfabric.loggers.logger_of")


def test_no_text_of_the_package_spells_an_id_as_it_is_stored() -> None:
    sources = [
        source
        for source in package()
        if not source.path.removeprefix("src/flowfabric/").startswith(KNOWING)
    ]
    assert [place for source in sources for place in stored_spellings(source)] == []
    planted = Source("src/flowfabric/x.py", f'"""{STORED}"""\nhint = "{STORED}7}}"\n')
    assert len(list(stored_spellings(planted))) == 1


def test_every_logger_of_the_package_shows_ids_as_people_type_them() -> None:
    assert [place for source in package() for place in plain_loggers(source)] == []
    planted = Source("x.py", 'logger = logging.getLogger("flowfabric.x")\n')
    assert len(list(plain_loggers(planted))) == 1


def test_no_page_and_no_example_spells_an_id_as_it_is_stored() -> None:
    pages = [*under("docs/", suffix=".md"), *under("README.md", suffix=".md"), *under("examples/")]
    # The keys of Valkey have the tag of their partition; the other pages are for contributors.
    inner = ("docs/guides/valkey.md", "docs/internals/", "docs/decisions/", "docs/deviations.md")
    shown = [page for page in pages if not page.path.startswith(inner)]
    assert len(shown) > 10
    assert [page.path for page in shown if STORED in page.text] == []


def test_a_record_of_the_log_is_translated_in_all_its_parts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logger_of("flowfabric.test_shown_ids")
    assert logger_of("flowfabric.test_shown_ids").filters == logger.filters
    with caplog.at_level(logging.INFO, logger.name):
        logger.info("%s %s", ID, [ID], extra={"execution": ID, "ids": [ID], "counts": {ID: 1}})
    (record,) = caplog.records
    assert record.getMessage() == f"{PUBLIC} {[PUBLIC]}"
    told = vars(record)
    assert (told["execution"], told["ids"], told["counts"]) == (PUBLIC, [PUBLIC], {PUBLIC: 1})


def test_an_error_is_translated_in_all_its_parts() -> None:
    error = FlowFabricError(
        f"{ID} is lost", hint=f"ask for {ID}", details={"execution": ID, "started": [ID]}
    )
    assert str(error) == f"{PUBLIC} is lost (ask for {PUBLIC})"
    assert error.details == {"execution": PUBLIC, "started": [PUBLIC]}


async def test_a_day_of_work_shows_no_id_as_it_is_stored(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures, retries, skipped members, cancels, replays: all texts and records that answer."""
    caplog.set_level(logging.DEBUG, "flowfabric")

    @app.task
    async def fine(n: int) -> int:
        return n

    @app.task
    async def broken(n: int) -> int:
        raise ValueError(f"no {n}")

    shown: list[object] = []
    graph = app.graph("day")
    first, bad = graph.add(fine, 1), graph.add(broken, 2)
    last = graph.add(fine, bad)
    waiting = await fine.options(delay="1h").start(3)
    run = await graph.submit()
    async with running(app):
        for node in (bad, last):
            with pytest.raises(ExecutionEnded) as ended:
                await run.result(node)
            shown += [str(ended.value), repr(ended.value.details)]
        with pytest.raises(ExecutionFailed):
            await run.result(bad)
        await run.replay(bad)
        shown.append((await run.handle(last).explain()).sentence)
        with pytest.raises(ExecutionEnded):
            await run.result(bad)
        for handle in (waiting, *(run.handle(node) for node in (first, bad, last))):
            shown.extend([handle, await handle.status(), await handle.events()])
            shown.extend([await handle.attempts(), await handle.explain()])
        shown.extend([await waiting.cancel(), await run.graph(), await run.status()])
        shown.extend([await run.members(), await run.cancel(), await run.backlog(), run, first])
    lines = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert lines
    assert [each for each in [*map(repr, shown), *lines] if STORED in each] == []
    assert f"{waiting.id}" in repr(shown)
