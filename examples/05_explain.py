"""Why is it not running? Every execution can say what it waits for."""

import asyncio

import flowfabric as ff

app = ff.App("memory://")


@app.task(lane="mail")
async def send(to: str) -> str:
    return f"sent to {to}"


async def tell(title: str, handle: ff.Handle[str]) -> None:
    why = await handle.explain()
    # The sentence is for people; `wakes` and `until_ms` say the same to programs.
    print(f"{title}: {why.sentence} [{why.wakes}]")


async def main() -> None:
    now = await send.start("ada")
    await tell("no worker yet", now)

    later = await send.options(delay="1h").start("grace")
    await tell("delayed", later)

    await app.engine.set_lane("mail", ff.LaneState.PAUSED)
    await tell("lane paused", now)
    await app.engine.set_lane("mail", ff.LaneState.ACTIVE)

    async with app.running():
        await now.result()
        await tell("done", now)
        await later.cancel("wrong address")
        await tell("cancelled", later)


if __name__ == "__main__":
    asyncio.run(main())
