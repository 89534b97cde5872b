"""What a child process is told when it starts."""

from __future__ import annotations

import msgspec

# The modules of the worker are found before anything of them is imported.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from flowfabric.worker.child.program import main; main(sys.argv[2])"
)


class Setting(msgspec.Struct, frozen=True):
    """Its ends of the socket and of the pipe, the arguments of the program, and where its main
    module is."""

    channel: int
    life: int
    argv: list[str]
    main: dict[str, str]
