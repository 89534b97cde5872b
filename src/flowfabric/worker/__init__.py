"""Runs user code under a lease."""
