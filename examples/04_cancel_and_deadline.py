"""Work that is ended before it is done: by somebody, or by the clock."""

import asyncio

import flowfabric as ff

app = ff.App("memory://")
begun = asyncio.Event()


@app.task
async def watch(what: str) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        # Both ends reach the code as a cancellation; there is time to clean up.
        print(f"stopped watching {what}")
        raise


async def main() -> None:
    async with app.running():
        pot = await watch.start("the pot")
        await begun.wait()
        await pot.cancel("dinner is ready")
        try:
            await pot.result()
        except ff.ExecutionCancelled as cancelled:
            print("cancelled:", cancelled.details["reason"])

        # A deadline ends it whatever it does, also while it still waits for a worker.
        clock = await watch.options(deadline="500ms").start("the clock")
        try:
            await clock.result()
        except ff.ExecutionExpired as expired:
            print("expired:", expired.details["reason"])

        # Giving up waiting is something else: the work goes on.
        late = await watch.options(delay="1h").start("the news")
        try:
            await late.result(timeout=0.1)
        except ff.ResultTimeout:
            print("still", (await late.status()).public_state)


if __name__ == "__main__":
    asyncio.run(main())
