"""The command line: what people type. It speaks to the engine and prints; it decides nothing."""
