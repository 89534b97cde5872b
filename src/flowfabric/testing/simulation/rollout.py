"""Deploys of the simulation, which are half done until there is peace.

A worker that starts may know a part of the tasks, one task may be missing from every program for a
while, and a program may read only some of the payloads. In peace the workers know everything
together, and each only its share.
"""

from __future__ import annotations

from flowfabric.core.states import CLAIMABLE
from flowfabric.testing.simulation.programs import TASKS, VERSIONS, Program, shares
from flowfabric.testing.simulation.world import World

# Of the programs that start while there is trouble.
NARROW = 0.3
OUTDATED = 0.25
WITHOUT_A_TASK = 0.6
# Between two deploys, and between two workers of one.
DEPLOY_SECONDS = 20.0
NEXT_SECONDS = 5.0


class Rollout:
    """What a worker that starts now is given. `roles`: how the names of workers begin."""

    def __init__(self, world: World, roles: tuple[str, ...]) -> None:
        self._world = world
        self._roles = roles
        self._chance = world.chance
        self._missing = ""
        self._is_over = False

    def program(self) -> Program:
        if self._is_over:
            return Program()
        tasks = [task for task in TASKS if task != self._missing]
        if self._chance.random() < NARROW:
            tasks = self._chance.sample(tasks, self._chance.randint(1, len(tasks)))
        is_outdated = self._chance.random() < OUTDATED
        versions = (self._chance.choice(VERSIONS),) if is_outdated else VERSIONS
        return Program(tuple(tasks), versions)

    def share(self, place: int, count: int) -> Program:
        """The program of one of so many workers of the same lanes."""
        return shares(count)[place] if self._is_over else self.program()

    async def run(self) -> None:
        """Again and again workers are replaced, one after the other, by what the deploy brings."""
        world = self._world
        while not self._is_over:
            await world.timeline.rest(self._chance.random() * DEPLOY_SECONDS)
            is_bad = self._chance.random() < WITHOUT_A_TASK
            self._missing = self._chance.choice(TASKS) if is_bad else ""
            for name in self._workers():
                await world.timeline.rest(self._chance.random() * NEXT_SECONDS)
                if name in world.processes and not self._is_over:
                    world.processes[name].kill("deployed")
                    world.ledger.counts["unserved"] += self._unserved()

    def finish(self) -> None:
        """Every worker is replaced by one that has what it should have."""
        self._is_over = True
        for name in self._workers():
            self._world.processes[name].kill("deployed")

    def _workers(self) -> list[str]:
        return [name for name in self._world.processes if name.startswith(self._roles)]

    def _unserved(self) -> int:
        """How much is ready and known to no worker that lives."""
        alive = [self._world.ledger.programs[name] for name in self._workers()]
        known = {task for program in alive for task in program.tasks}
        rows = self._world.store.rows.values()
        return sum(row.state in CLAIMABLE and row.kind not in known for row in rows)
