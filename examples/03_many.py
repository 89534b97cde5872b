"""A thousand starts in one call, and a summary of what became of them."""

import asyncio
from collections import Counter

import flowfabric as ff

# How many run at the same time in this process.
app = ff.App("memory://", concurrency=50)


@app.task
async def divide(number: int) -> float:
    return 1_000 / (number % 10)


async def outcome(handle: ff.Handle[float]) -> str:
    try:
        await handle.result()
    except ff.ExecutionFailed as failed:
        return str(failed.details["reason"])
    return "fine"


async def main() -> None:
    async with app.running():
        # Few calls to the store carry all of them, and the handles come in the same order.
        handles = await app.start_many(divide.bind(number) for number in range(1_000))
        summary = Counter(await asyncio.gather(*map(outcome, handles)))
    for what, count in summary.most_common():
        print(f"{count:>4} {what}")


if __name__ == "__main__":
    asyncio.run(main())
