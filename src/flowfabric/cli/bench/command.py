"""tmp."""

import typer

bench = typer.Typer(name="bench")
