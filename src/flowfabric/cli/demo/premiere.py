"""The flow of the demo: films, a race of three models, readers who agree, a branch that fails.

The caller and the workers both build this, as they do with the other tasks of the shop.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from flowfabric.app import App
from flowfabric.cli.demo.notes import Notes
from flowfabric.cli.demo.wanted import FIRST, LANE, Wanted
from flowfabric.core.states import PublicState
from flowfabric.errors import TaskError
from flowfabric.graph import Graph
from flowfabric.node import Node
from flowfabric.task import Call, Task
from flowfabric.worker.context import Context

NAME = "premiere"
FILMS = 4
NEEDED_READERS = 2

WINNER = "model swift"
DOWNSTREAM = "write invitation"
MODEL_SECONDS = {WINNER: 0.8, "model clever": 30.0, "model huge": 30.0}
READER_SECONDS = {"reader Ann": 0.5, "reader Ben": 0.9, "reader Cyd": 30.0}
LOSERS = ("model clever", "model huge", "reader Cyd")
SKIPPED = "print translation"

_RENDER_STEPS = 12
_STEP_SECONDS = 0.25
_PAUSE_SECONDS = 0.4


class Studio(NamedTuple):
    """The tasks that the flow is made of."""

    render: Task[..., str]
    ask: Task[..., str]
    write: Task[..., str]
    read: Task[..., str]
    send: Task[..., str]
    translate: Task[..., str]
    say: Task[..., str]


class Premiere(NamedTuple):
    """A flow to be submitted, and how each of its members has to end, in the order of the tree."""

    graph: Graph
    nodes: list[Node[object]]
    wanted: list[Wanted]


def open_studio(app: App, notes: Notes) -> Studio:
    @app.task(lane=LANE, priority=FIRST)
    async def render(ctx: Context, film: int) -> str:
        for _ in range(_RENDER_STEPS):
            await asyncio.sleep(_STEP_SECONDS)
        notes.finished(ctx)
        return f"film {film}"

    @app.task(lane=LANE, priority=FIRST)
    async def ask(ctx: Context, model: str, films: list[str]) -> str:
        with notes.when_stopped(ctx):
            await asyncio.sleep(MODEL_SECONDS[model])
        notes.finished(ctx)
        return f"{model} saw {len(films)} films"

    @app.task(lane=LANE, priority=FIRST)
    async def write(ctx: Context, answer: str) -> str:
        await asyncio.sleep(_PAUSE_SECONDS)
        notes.finished(ctx)
        return f"See it: {answer}"

    @app.task(lane=LANE, priority=FIRST)
    async def read(ctx: Context, reader: str, text: str) -> str:
        with notes.when_stopped(ctx):
            await asyncio.sleep(READER_SECONDS[reader])
        notes.finished(ctx)
        return _vote(reader)

    @app.task(lane=LANE, priority=FIRST)
    async def send(ctx: Context, text: str, readers: list[str]) -> str:
        await asyncio.sleep(_PAUSE_SECONDS)
        notes.finished(ctx)
        return f"sent: {', '.join(readers)}"

    @app.task(lane=LANE, priority=FIRST)
    async def translate(text: str) -> str:
        await asyncio.sleep(_PAUSE_SECONDS)
        raise TaskError("there is no dictionary", category="translation", fatal=True)

    @app.task(lane=LANE, priority=FIRST)
    async def say(ctx: Context, text: str) -> str:
        await asyncio.sleep(_PAUSE_SECONDS)
        notes.finished(ctx)
        return text

    return Studio(render, ask, write, read, send, translate, say)


def _vote(reader: str) -> str:
    return f"{reader.removeprefix('reader ')} agrees"


def premiere_of(app: App, studio: Studio) -> Premiere:
    graph = app.graph(NAME)
    made = Premiere(graph, [], [])
    films = [graph.add(studio.render, number) for number in range(1, FILMS + 1)]
    models = {label: graph.add(studio.ask, label, films) for label in MODEL_SECONDS}
    # The first answer is passed on; the models that are still thinking are cancelled.
    text = graph.add(studio.write, graph.any_of(*models.values()))
    readers = {label: graph.add(studio.read, label, text) for label in READER_SECONDS}
    sent = graph.add(studio.send, text, graph.quorum(NEEDED_READERS, *readers.values()))
    translated = graph.add(studio.translate, text)
    printed = graph.add(studio.say, translated)
    told = graph.add(studio.say, "no translation", after=[translated.failed])

    for number, film in enumerate(films, 1):
        _want(made, film, f"render film {number}", f"film {number}")
    for label, model in models.items():
        _want(made, model, label, f"{label} saw {FILMS} films")
    _want(made, text, DOWNSTREAM, f"See it: {WINNER} saw {FILMS} films")
    for label, reader in readers.items():
        _want(made, reader, label, _vote(label))
    _want(made, sent, "send invitation", "sent: Ann agrees, Ben agrees")
    _want(made, translated, "translate invitation", ends=PublicState.FAILED)
    _want(made, printed, SKIPPED, ends=PublicState.SKIPPED)
    _want(made, told, "tell the editor", "no translation")
    return made


def _want(
    made: Premiere,
    node: Node[object],
    label: str,
    result: object = None,
    *,
    ends: PublicState = PublicState.COMPLETED,
) -> None:
    if label in LOSERS:
        ends = PublicState.CANCELLED
    made.nodes.append(node)
    made.wanted.append(
        Wanted(label, Call(node.request, node.decode, made.graph.home), ends, result)
    )
