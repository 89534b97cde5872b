"""Wake-ups as the layers above the engine see them."""

from flowfabric.store.hints import Hint, Hints

__all__ = ["Hint", "Hints"]
