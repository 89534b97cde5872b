"""What operators do from a terminal: list, show, explain, change and follow the work of a store."""
