"""One process submits and waits, another one works. They share nothing but a file."""

import asyncio
import os
import subprocess
import sys
import tempfile

import flowfabric as ff


def define(url: str) -> tuple[ff.App, ff.Task[..., str]]:
    """Both processes define the same tasks: usually by importing the same module."""
    app = ff.App(url)

    @app.task
    async def who(job: int) -> str:
        return f"job {job} was done by process {os.getpid()}"

    return app, who


async def submit(url: str, worker: int) -> None:
    app, who = define(url)
    handles = await app.start_many(who.bind(job) for job in range(3))
    for handle in handles:
        answer = await handle.result()
        print(answer.replace(str(worker), "of the worker"))
    print("submitted and printed by another one:", os.getpid() != worker)
    await app.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shared.db"
        # `app.work()` runs until it gets SIGTERM, finishes what it has begun, and returns.
        worker = subprocess.Popen([sys.executable, __file__, url])
        try:
            asyncio.run(submit(url, worker.pid))
        finally:
            worker.terminate()
            print("the worker left with code", worker.wait())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(define(sys.argv[1])[0].work())
    else:
        main()
