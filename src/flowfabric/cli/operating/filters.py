"""Which executions a command is about: the options that `ps` and the bulk verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from flowfabric.errors import InvalidInput

if TYPE_CHECKING:
    from flowfabric.app import App
    from flowfabric.client.finding import Found

StateOption = Annotated[
    str, typer.Option("--state", help="In this state, or one of several: failed,expired.")
]
TaskOption = Annotated[str, typer.Option("--task", help="Of this task.")]
LaneOption = Annotated[str, typer.Option("--lane", help="Of this lane.")]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", help="With this tag, KEY=VALUE; may be repeated.")
]
SinceOption = Annotated[
    str, typer.Option("--since", help="Submitted within this span: 10m, 2h, 1d.")
]
FlowOption = Annotated[str, typer.Option("--flow", help="Members of this flow.")]


class Filters(NamedTuple):
    """What was asked for; empty where nothing was."""

    state: str = ""
    task: str = ""
    lane: str = ""
    tag: list[str] | None = None
    since: str = ""
    flow: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(self)

    def find(self, app: App) -> Found:
        return app.find(
            state=[word for word in self.state.split(",") if word] or None,
            task=self.task or None,
            lane=self.lane or None,
            tags=_tags(self.tag or []),
            since=self.since or None,
            flow=self.flow or None,
        )


def _tags(texts: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in texts:
        key, mark, value = text.partition("=")
        if not mark:
            raise InvalidInput(
                f"expected KEY=VALUE, got {text!r}", field="tag", hint="use --tag shop.tenant=acme"
            )
        tags[key] = value
    return tags
