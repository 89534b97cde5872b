"""Start a task, wait for its result."""

import asyncio

import flowfabric as ff

# Work is kept in memory here. With "sqlite:///hello.db" it would survive this program.
app = ff.App("memory://")


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.task
def shout(text: str) -> str:
    # A plain function runs in a thread, so it may block without keeping others waiting.
    return text.upper()


async def main() -> None:
    # Inside this block the process works; outside of it, starts are only written down.
    async with app.running():
        hello = await greet.start("world")
        loud = await shout.start(await hello.result())
        print(await loud.result())


if __name__ == "__main__":
    asyncio.run(main())
