"""A whole installation in one event loop, driven by a seed: workers, engines, clients, and trouble.

    python -m flowfabric.testing.simulation --seed 7 --steps 20000

Processes die and come back, are stopped past their leases, have clocks that are off, lose replies,
hear hints late, twice or never; deploys are half done, with workers that lack tasks or cannot read
what was submitted. After every call of the store it is judged whether what must always hold still
holds; in the end everything must have ended, and nothing be lost or left.
"""

from flowfabric.testing.simulation.play import Played, play

__all__ = ["Played", "play"]
