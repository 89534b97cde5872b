"""One worker process of the demo: `python -m flowfabric.cli.demo.worker NAMESPACE FILE N`.

The URL of the store is the first line of its standard input. It works until that is closed, so it
also stops when the demo itself was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from flowfabric.cli.demo.notes import Notes
from flowfabric.cli.demo.tasks import open_shop, worker_lane
from flowfabric.cli.demo.wanted import LANE
from flowfabric.cli.event_loop import run
from flowfabric.cli.logs import LogFormat, LogLevel, configure


def _stop_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main(namespace: str, effects: str, number: str) -> None:
    configure(LogLevel.WARNING, LogFormat.TEXT)
    url = sys.stdin.buffer.readline().decode().strip()
    threading.Thread(target=_stop_with_input, daemon=True).start()
    shop = open_shop(url, namespace, Notes(Path(effects)))
    run(shop.app.work(lanes=(LANE, worker_lane(int(number)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
