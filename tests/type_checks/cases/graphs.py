"""What a type checker says about graphs: nodes stand for results of their types."""

from __future__ import annotations

from typing import assert_type

import flowfabric as ff

app = ff.App("memory://")


def used(*_: object) -> None: ...


@app.task
async def fetch(ctx: ff.Context, url: str) -> bytes:
    return url.encode()


@app.task
def count(page: bytes, limit: int = 10) -> int:
    return min(len(page), limit)


@app.task
async def total(parts: list[int], spare: int | None = None) -> int:
    return sum(parts) + (spare or 0)


@app.task
def report(sums: dict[str, int]) -> str:
    return str(sums)


@app.task
def tidy() -> None: ...


@app.task
def numbers(n: int) -> list[int]:
    return [n]


async def build(join: ff.SyncTask[[str, str, str, str, str, str], str]) -> None:
    g = app.graph("pages")
    page = g.add(fetch.options(name="page", priority=5), "https://example.org")
    assert_type(page, ff.Node[bytes])
    n = g.add(count, page, 5)
    m = g.add(count, page, n)
    assert_type(m, ff.Node[int])
    g.add(count, b"x", limit=3)
    g.add(count, page)
    g.add(count, g.any_of(page, page))
    g.add(total, [n, m])
    g.add(total, [n.optional, m], n.optional)
    g.add(total, g.quorum(1, n, m))
    g.add(total, g.add(numbers, n), after=[page])
    g.add(report, {"left": n, "right": m})
    g.add(tidy)
    g.add(tidy, after=n.failed)
    g.add(tidy, after=[n.ended, page])
    s = g.add(report, {"left": 1})
    assert_type(g.add(join, s, "b", s, "d", s, "f", after=n), ff.Node[str])

    g.add(count, n)  # error
    g.add(count, page, "5")  # error
    g.add(count, page, page)  # error
    g.add(count, page, n, n)  # error
    g.add(count)  # error
    g.add(count, "page", 5)  # error
    g.add(count, page, n.optional)  # error
    g.add(count, page, n.failed)  # error
    g.add(count, b"x", size=3)  # error
    g.add(total, [1, "2"])  # error
    g.add(total, g.any_of(n, m))  # error
    g.add(report, s)  # error
    g.add(join, s, "b", 3, "d", s, "f")  # error
    g.add(tidy, n)  # error
    g.add(tidy, after=5)  # error
    g.add(count.function, page)  # error

    run = await g.submit()
    assert_type(await run.result(n), int)
    assert_type(await run["page"].result(), object)
    assert_type(run["page"], ff.Handle[object])
    text: str = await run.result(n)  # error
    run[5]  # error
    used(text)
