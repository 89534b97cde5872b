"""`ff bench`: what this machine does with this store, one file per scenario."""
