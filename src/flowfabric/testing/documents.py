"""Puts of the machine: new documents, changes of what is there, decisions that came too late."""

from __future__ import annotations

import msgspec

from flowfabric.core.documents import (
    AnyDocument,
    Document,
    Put,
    PutAnswer,
    PutDone,
    change,
    create,
    remove,
    written,
)
from flowfabric.testing.driver import Driver, require

NAMESPACE = "default"


class DocumentWish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants with a document; `stale`: of what he saw first, not last."""

    kind: str
    name: str
    how: str
    due_in_ms: int | None
    words: tuple[str, ...]
    body: bytes


def place_of(wish: DocumentWish) -> tuple[str, str]:
    return (wish.kind, wish.name)


async def put_documents(driver: Driver, wishes: list[DocumentWish]) -> list[PutAnswer]:
    now_ms = driver.clock.now_ms()
    puts = [_put(driver, wish, now_ms) for wish in wishes]
    before = {(each.kind, each.name): each for each in driver.picture.documents}
    answers = await driver.store.put(puts, now_ms)
    for put, answer in zip(puts, answers, strict=True):
        there = before.get((put.kind, put.name))
        fits = put.rev == (there.rev if there else 0)
        require(isinstance(answer, PutDone) == fits, f"{put} was answered {answer}")
        after = written(put, now_ms) if fits else None
        if after is not None:
            driver.documents.append(after)
        if not isinstance(answer, PutDone):
            require(answer.there == there, f"{put} was refused by {answer.there}, not {there}")
    await driver.do(driver.store.now, writes=0)
    return answers


def _put(driver: Driver, wish: DocumentWish, now_ms: int) -> Put:
    seen = _seen(driver, wish)
    due_ms = None if wish.due_in_ms is None else now_ms + wish.due_in_ms
    if seen is None or wish.how == "create":
        return create(
            wish.kind, NAMESPACE, wish.name, body=wish.body, words=wish.words, due_ms=due_ms
        )
    if wish.how == "remove":
        return remove(seen)
    return change(seen, body=wish.body, words=wish.words, due_ms=due_ms)


def _seen(driver: Driver, wish: DocumentWish) -> AnyDocument | None:
    known: list[Document] = [
        each for each in driver.documents if (each.kind, each.name) == place_of(wish)
    ]
    there = [each for each in driver.picture.documents if (each.kind, each.name) == place_of(wish)]
    if wish.how == "stale":
        return next(iter(known), None)
    return next(iter(there), None)
