"""Statements as files, one named statement each."""
