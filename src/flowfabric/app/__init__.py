"""App: where definitions, store, engine, worker and client meet; and its synchronous face."""

from flowfabric.app.app import App
from flowfabric.app.sync import SyncApp

__all__ = ["App", "SyncApp"]
