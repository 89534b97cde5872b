"""The verbs of the business: load, decide, write. The only layer that both decides and writes."""
