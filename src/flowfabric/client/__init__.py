"""What callers hold: handles, and the waiting room for results."""
