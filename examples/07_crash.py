"""A worker is killed in the middle of its work, and another one finishes it."""

import asyncio
import subprocess
import sys
import tempfile

import flowfabric as ff


def define(url: str) -> tuple[ff.App, ff.Task[..., str]]:
    # A worker that is not heard of for this long has lost its work. Five seconds is the least.
    app = ff.App(url, lease_ttl="5s")

    @app.task
    async def build(ctx: ff.Context, what: str) -> str:
        print(f"attempt {ctx.attempt} begins", flush=True)
        if ctx.attempt == 0:
            await asyncio.Event().wait()  # the first worker never gets any further
        return f"{what} is built"

    return app, build


def start_worker(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)


def next_line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


async def play(url: str) -> None:
    app, build = define(url)
    handle = await build.start("the house")

    doomed = start_worker(url)
    print("first worker: ", await asyncio.to_thread(next_line, doomed))
    doomed.kill()  # SIGKILL: no handler, no goodbye
    doomed.communicate()
    print("killed; now it is", (await handle.explain()).public_state)

    other = start_worker(url)
    try:
        print("second worker:", await asyncio.to_thread(next_line, other))
        print(await handle.result())
    finally:
        other.terminate()
        other.communicate()
    print("history:", ", ".join(event.kind for event in await handle.events()))
    await app.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(define(sys.argv[1])[0].work())
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(play(f"sqlite:///{folder}/crash.db"))
