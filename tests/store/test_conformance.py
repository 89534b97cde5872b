"""The store suite of the package, on every store."""

from flowfabric.testing.conformance import *  # noqa: F403
