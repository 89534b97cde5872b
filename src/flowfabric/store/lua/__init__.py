"""The functions of the Valkey store; its files are joined into one library."""
