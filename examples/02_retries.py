"""A flaky task is tried again after a pause; a hopeless one says so and is not."""

import asyncio

import flowfabric as ff

app = ff.App("memory://")

# `retries=3` would do, with pauses of 1, 2 and 4 seconds. This example is in a hurry.
quick = ff.RetryPolicy(max_retries=3, backoff=ff.Fixed(delay_ms=20))


@app.task(retries=quick)
async def fetch(ctx: ff.Context, url: str) -> str:
    # The attempt is part of what is stored, so this also works after a crash.
    print(f"attempt {ctx.attempt}: {url}")
    if ctx.attempt < 2:
        raise ConnectionError("the line is busy")
    return "<html>"


@app.task(retries=quick)
async def charge(card: str) -> str:
    if not card.isdigit():
        # Trying again cannot help. The category is for people and for retry policies.
        raise ff.TaskError(f"{card!r} is no card number", category="bad_card", fatal=True)
    return "paid"


async def main() -> None:
    async with app.running():
        page = await fetch.start("https://example.org")
        print("got", await page.result())

        payment = await charge.start("my card")
        try:
            await payment.result()
        except ff.ExecutionFailed as failed:
            print("failed:", failed.details["category"], "-", failed.details["reason"])

        for event in await page.events():
            print(f"  {event.kind}")


if __name__ == "__main__":
    asyncio.run(main())
