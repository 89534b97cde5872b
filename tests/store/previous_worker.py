"""A worker that runs the code it is given by PYTHONPATH, which is not that of today.

It says what its first piece of work answered and then `refused`, with the code of the error, when
the store does not let it go on. No test lives here.
"""

from __future__ import annotations

import asyncio
import sys

import flowfabric as ff
from flowfabric.errors import StoreMismatch

app = ff.App(sys.argv[1])


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main() -> None:
    async with app.running():
        say(await (await greet.start("old")).result())
    # From here on it works for others, until it may not any more.
    try:
        await app.work()
    except StoreMismatch as error:
        say(f"refused: {error.code}")
    else:
        say("ended")


asyncio.run(main())
