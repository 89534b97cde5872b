"""`ff bench` as people type it. Nothing is measured here and nothing heavy is imported."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, TypeVar

import typer

from flowfabric.cli.exits import INTERRUPTED, NOT_AS_EXPECTED
from flowfabric.cli.stores import STORE_HELP

HELP = """Measure this machine with a store.

\b
Examples:
  ff bench cycle --store sqlite                      a private temporary file
  ff bench cycle --store memory --n 5000
  ff bench limit --store sqlite                      the raw client, no engine
  ff bench idle --store postgres                     a private server, removed afterwards
  ff bench contend --store sqlite                    eight processes contend for a few executions
  ff bench chain --store sqlite                      flows of ten members in a row
  ff bench timers --store sqlite                     how late deadlines are
"""

R = TypeVar("R")

Store = Annotated[str, typer.Option(help=STORE_HELP)]
Apart = Annotated[bool, typer.Option("--apart", help="Let the worker be a process of its own.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line.")]

bench = typer.Typer(name="bench", help=HELP, no_args_is_help=True, rich_markup_mode=None)


def _run(work: Coroutine[None, None, R]) -> R:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@bench.command()
def cycle(
    *,
    store: Store = "sqlite",
    n: Annotated[int, typer.Option("--n", min=1, help="Executions per measurement.")] = 20_000,
    preload: Annotated[
        int, typer.Option(min=0, help="Finished executions to put into the store first.")
    ] = 0,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, help="How many times to measure; the median of each figure is printed."
        ),
    ] = 1,
    apart: Apart = False,
    json: Json = False,
) -> None:
    """Measure submit, claim, run, complete with stored results.

    One worker in this process runs a task that does nothing; every result is awaited through its
    handle, all through the public API. With --preload the same is measured on an empty store of
    the same kind, to show what many finished executions cost. With --apart only a single round
    trip, and submitting and working at the same time, are measured.

    \b
    Examples:
      ff bench cycle --store 'sqlite:///x.db?synchronous=NORMAL' --n 20000 --repeat 3
      ff bench cycle --store sqlite --preload 1000000
      ff bench cycle --store postgres --apart
      ff bench cycle --store memory --json
    """
    from flowfabric.cli.bench import apart as bench_apart
    from flowfabric.cli.bench.cycle import Plan, run
    from flowfabric.cli.bench.report import show_cycle, show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        plan = Plan(n=n, preload=preload, repeat=repeat)
        if apart:
            show_figures("cycle", _run(bench_apart.run(target, plan)), target, as_json=json)
        else:
            show_cycle(_run(run(target, plan)), target, as_json=json)


@bench.command()
def limit(
    *,
    store: Store = "sqlite",
    n: Annotated[int, typer.Option("--n", min=1, help="Executions to write.")] = 20_000,
    repeat: Annotated[
        int, typer.Option(min=1, help="How many times to measure; the median is printed.")
    ] = 1,
    json: Json = False,
) -> None:
    """Measure the records of a cycle with the raw client, no engine.

    The same records as `ff bench cycle` writes, in transactions of 100 executions for each of
    submit, claim and complete, in a separate file, schema or prefix of the store, removed
    afterwards. `ff bench cycle` prints its share of this rate as `share_of_limit`.

    \b
    Examples:
      ff bench limit --store 'sqlite?synchronous=NORMAL'
      ff bench limit --store sqlite:///x.db --n 50000 --json
      ff bench limit --store postgres                  a private server, removed afterwards
    """
    from statistics import median

    from flowfabric.cli.bench.limit import Limit, run
    from flowfabric.cli.bench.report import show_limit
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        rates = [_run(run(target, n)) for _ in range(repeat)]
        show_limit(Limit(limit_per_s=median(rates)), target, as_json=json)


@bench.command()
def idle(
    *,
    store: Store = "sqlite",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch.")] = 20.0,
    json: Json = False,
) -> None:
    """Measure what an engine and a worker cost with nothing to do.

    The store counts its round trips; processor time is that of this process. The measurement
    begins after a few seconds, when startup is over.

    \b
    Examples:
      ff bench idle --store sqlite --seconds 20
      ff bench idle --store postgres --json
    """
    from flowfabric.cli.bench.idle import run
    from flowfabric.cli.bench.report import show_idle
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        show_idle(_run(run(target, seconds)), target, as_json=json)


@bench.command()
def contend(
    *,
    store: Store = "sqlite",
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes that contend.")] = 8,
    verbs: Annotated[int, typer.Option(min=1, help="Calls, all processes together.")] = 20_000,
    json: Json = False,
) -> None:
    """Let processes contend for a few executions, and check the store.

    They claim, renew, complete, cancel, replay and change priorities at random. Afterwards every
    acknowledged write must be in the store, and no two leases may overlap; the exit code is 1 if
    a write was lost or an execution was held twice.

    \b
    Examples:
      ff bench contend --processes 8 --verbs 20000 --store sqlite
      ff bench contend --store postgres --json
    """
    from flowfabric.cli.bench.contend import run
    from flowfabric.cli.bench.report import show_contention
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        figures = _run(run(target, processes=processes, verbs=verbs))
        show_contention(figures, target, as_json=json)
    if figures.lost or figures.double_leases:
        raise typer.Exit(NOT_AS_EXPECTED)


Repeat = Annotated[int, typer.Option(min=1, help="How many times to measure.")]
Width = Annotated[int, typer.Option(min=2, help="Members that run side by side.")]


@bench.command()
def chain(
    *,
    store: Store = "sqlite",
    nodes: Annotated[int, typer.Option(min=1, help="Members of each flow.")] = 10,
    flows: Annotated[int, typer.Option(min=1, help="Flows at a time.")] = 200,
    repeat: Repeat = 3,
    apart: Apart = False,
    json: Json = False,
) -> None:
    """Measure flows whose members run in a row and pass on results.

    \b
    Examples:
      ff bench chain --store sqlite --nodes 10 --flows 200
      ff bench chain --store postgres --apart
      ff bench chain --store memory --json
    """
    from flowfabric.cli.bench import flows as bench_flows
    from flowfabric.cli.bench.replica import Load
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        load = Load(flows=flows, nodes=nodes)
        figures = _run(bench_flows.chain(target, load, repeat, is_apart=apart))
        show_figures("chain", figures, target, as_json=json)


@bench.command()
def fanout(
    *, store: Store = "sqlite", width: Width = 100, repeat: Repeat = 30, json: Json = False
) -> None:
    """Measure one member that releases many, which release one.

    \b
    Examples:
      ff bench fanout --store sqlite --width 100
      ff bench fanout --store memory --json
    """
    from flowfabric.cli.bench import flows as bench_flows
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        figures = _run(bench_flows.fanout(target.url, width, repeat))
        show_figures("fanout", figures, target, as_json=json)


@bench.command()
def fanin(
    *,
    store: Store = "sqlite",
    width: Width = 20,
    repeat: Repeat = 40,
    apart: Annotated[
        bool,
        typer.Option("--apart", help="End members in some processes, dispatch them in another."),
    ] = False,
    json: Json = False,
) -> None:
    """Measure how long a join waits for its release after its last member.

    The times are those of the log. With --apart members end in processes that do not dispatch,
    and another process dispatches what follows.

    \b
    Examples:
      ff bench fanin --store postgres --apart
      ff bench fanin --store sqlite --width 100 --json
    """
    from flowfabric.cli.bench import fanin as bench_fanin
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        figures = _run(bench_fanin.run(target, width, repeat, is_apart=apart))
        show_figures("fanin", figures, target, as_json=json)


@bench.command()
def siblings(
    *,
    store: Store = "sqlite",
    width: Width = 100,
    repeat: Repeat = 30,
    limit_ms: Annotated[
        float | None, typer.Option(min=0, help="Exit with 1 if the p99 is above this.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure a race: from its decision to the last loser cancelled.

    \b
    Examples:
      ff bench siblings --store sqlite --width 100 --limit-ms 500
      ff bench siblings --store memory --json
    """
    from flowfabric.cli.bench import flows as bench_flows
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        figures = _run(bench_flows.siblings(target.url, width, repeat))
        show_figures("siblings", figures, target, as_json=json)
    if limit_ms is not None and figures.cancel_ms.p99 > limit_ms:
        raise typer.Exit(NOT_AS_EXPECTED)


@bench.command()
def submit(
    *,
    store: Store = "sqlite",
    members: Annotated[int, typer.Option(min=1, help="Members of the flow.")] = 10_000,
    edges: Annotated[int, typer.Option(min=0, help="Edges of a window, approximately.")] = 30_000,
    shape: Annotated[
        str,
        typer.Option(help="window (each waits for the few before), tree (groups of 50) or join."),
    ] = "window",
    run: Annotated[bool, typer.Option("--run", help="Also execute the flow.")] = False,
    json: Json = False,
) -> None:
    """Measure the submit of one big flow, and with --run its execution.

    Meanwhile another process renews a lease on the same store, over and over;
    `longest_stall_ms` is the longest of its calls. In memory it is the longest that anything else
    in this process had to wait. With --run one worker then executes the flow: `members_per_s`
    should be the same for flows of any size.

    \b
    Examples:
      ff bench submit --store sqlite --members 10000 --edges 30000
      ff bench submit --store postgres --members 20000 --shape tree --run
      ff bench submit --store memory --json
    """
    from flowfabric.cli.bench import big_flow
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    plan = big_flow.Plan(members, edges, big_flow.shape_named(shape))
    with open_target(store) as target:
        figures = _run(big_flow.submit(target, plan, runs=run))
        show_figures("submit", figures, target, as_json=json)


@bench.command()
def purge(
    *,
    store: Store = "sqlite",
    n: Annotated[int, typer.Option("--n", min=1, help="Finished executions to delete.")] = 10_000,
    json: Json = False,
) -> None:
    """Measure how fast finished work is deleted, and count what is left.

    First executions run to their end, with a flow of ten members for every hundred of them; the
    exit code is 1 if any record of them is left.

    \b
    Examples:
      ff bench purge --store sqlite --n 10000
      ff bench purge --store postgres --json
    """
    from flowfabric.cli.bench import purging
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        figures = _run(purging.run(target.url, n))
        show_figures("purge", figures, target, as_json=json)
    if figures.left_behind:
        raise typer.Exit(NOT_AS_EXPECTED)


@bench.command()
def route(
    *,
    store: Store = "sqlite",
    waiting: Annotated[
        int, typer.Option(min=4_000, help="Ready executions of 200 tasks to begin with.")
    ] = 10_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long to watch an idle worker.")] = 5,
    json: Json = False,
) -> None:
    """Measure what a claim costs by how many tasks the worker serves.

    One task, all of 200, and one of 200 behind the work of the others: the median time of a claim
    and how many rows of ready queues it examined. Then how often a worker asks the store while
    it knows none of the ready tasks.

    \b
    Examples:
      ff bench route
      ff bench route --store valkey --json
    """
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.route import run
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        show_figures("route", _run(run(target.url, waiting, seconds)), target, as_json=json)


@bench.command()
def entries(
    *,
    store: Store = "sqlite",
    n: Annotated[int, typer.Option("--n", min=1, help="Entries to write.")] = 20_000,
    executions: Annotated[
        int, typer.Option(min=1, max=500, help="Executions held at the same time.")
    ] = 200,
    json: Json = False,
) -> None:
    """Measure how fast entries are written beside held executions.

    One process holds them all and writes one entry of 100 bytes for each in every call; the next
    call begins when the last one is answered.

    \b
    Examples:
      ff bench entries --store 'sqlite?synchronous=NORMAL'
      ff bench entries --store postgres --executions 500 --json
    """
    from flowfabric.cli.bench.entries import run
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        show_figures("entries", _run(run(target.url, n, executions)), target, as_json=json)


@bench.command()
def timers(
    *,
    store: Store = "sqlite",
    n: Annotated[int, typer.Option("--n", min=1, help="Timers to wait for.")] = 200,
    json: Json = False,
) -> None:
    """Measure how late timers are on an idle store.

    Executions without a worker have deadlines, each at its own time; lateness is the time from
    the deadline until the end can be read, by the store's clock.

    \b
    Examples:
      ff bench timers --store sqlite
      ff bench timers --store postgres --json
    """
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target
    from flowfabric.cli.bench.timers import run

    with open_target(store) as target:
        show_figures("timers", _run(run(target.url, n)), target, as_json=json)


@bench.command()
def replicas(
    *,
    store: Store = "sqlite",
    engines: Annotated[int, typer.Option(min=2, max=16, help="Engines on one store.")] = 3,
    flows: Annotated[int, typer.Option(min=1, help="Chains at a time.")] = 100,
    nodes: Annotated[int, typer.Option(min=2, help="Members of each chain.")] = 10,
    json: Json = False,
) -> None:
    """Let several engines share one store, then kill one of them at work.

    The same chains are dispatched by one engine, by several, and by several of which one is
    killed while it holds flows. Printed are the dispatch rounds with several and with one, and the
    longest wait of a member for its release after the kill.

    \b
    Examples:
      ff bench replicas --engines 3 --store sqlite
      ff bench replicas --engines 3 --store postgres --json
    """
    from flowfabric.cli.bench.replica import Load
    from flowfabric.cli.bench.replicas import run
    from flowfabric.cli.bench.report import show_figures
    from flowfabric.cli.bench.targets import open_target

    with open_target(store) as target:
        figures = _run(run(target, engines=engines, load=Load(flows=flows, nodes=nodes)))
        show_figures("replicas", figures, target, as_json=json)
