"""A flow known in advance: results travel along the edges, a race keeps its first winner."""

import asyncio

import flowfabric as ff

app = ff.App("memory://")


@app.task
async def fetch(page: str) -> str:
    return f"<{page}>"


@app.task
async def ask(model: str, text: str) -> str:
    if model == "slow":
        await asyncio.Event().wait()
    return f"{model} read {text}"


@app.task
async def publish(answer: str) -> str:
    return f"published: {answer}"


async def main() -> None:
    graph = app.graph("answer")
    page = graph.add(fetch, "home")
    # A node as an argument is an edge: the task starts when its input is there.
    models = [graph.add(ask, model, page) for model in ("slow", "quick")]
    # The first success decides; the other one is cancelled.
    graph.add(publish.options(name="publish"), graph.any_of(*models))
    async with app.running():
        run = await graph.submit()
        # By its name, a member is found in any process that knows the flow's id.
        print(await run["publish"].result())
        await run.wait()
        loser = await run.handle(models[0]).status()
        print(f"slow was {loser.public_state}")


if __name__ == "__main__":
    asyncio.run(main())
