"""Flows on Valkey: their records as cells, changesets as calls, and looking at them."""
