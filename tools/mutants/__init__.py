"""Mutation run: plants one small fault at a time and sees whether a test notices.

`python -m tools.mutants` from the root of the checkout; `make mutants` calls it.
"""
