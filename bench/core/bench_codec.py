"""Codec: index a pull body and read its columns, or body, tags and keys of each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.pull_bodies import TOPIC, case, pull_body, sizes
from ordermq.core import index_messages
from ordermq.core.interface import MessageIndex
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)
_TIMES = 5


def column_names(index: MessageIndex) -> tuple[str, ...]:
    """Every column the index has: what is added to it is read and timed too."""
    names = (name for name in dir(type(index)) if not name.startswith("_"))
    return tuple(name for name in names if isinstance(getattr(index, name), memoryview))


def columns(messages: int, body_bytes: int) -> Work:
    """Index the body, and read every column's memoryview."""
    body = pull_body(messages, body_bytes)
    times = max(1, workloads.CORE_CODEC_TIMED // messages)
    index = index_messages(body)

    def run() -> None:
        nonlocal index
        for _ in range(times):
            index = index_messages(body)
            index.offsets, index.positions, index.body_positions, index.body_sizes  # noqa: B018
            index.property_positions, index.property_sizes  # noqa: B018

    def check() -> None:
        assert index.offsets.tolist() == list(range(messages))
        assert index.body_sizes.tolist() == [body_bytes] * messages

    return Work(
        f"columns, {case(messages, body_bytes)}", times * messages, run, check, times=_TIMES
    )


def objects(messages: int, body_bytes: int) -> Work:
    """Index the body, and read body, tags and keys of every message."""
    body = pull_body(messages, body_bytes)
    times = max(1, workloads.CORE_CODEC_TIMED // messages)
    last: tuple[memoryview, str | None, list[str]] | None = None

    def run() -> None:
        nonlocal last
        for _ in range(times):
            for view in MessageBatch(_QUEUE, body):
                last = view.body, view.tags, view.keys

    def check() -> None:
        number = messages - 1
        assert last is not None
        seen, tags, keys = last
        assert (len(seen), tags, keys) == (body_bytes, f"T{number % 4}", [f"order-{number:08}"])

    return Work(
        f"objects, {case(messages, body_bytes)}", times * messages, run, check, times=_TIMES
    )


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for make in (columns, objects):
        for messages, body_bytes in sizes():
            yield f"{make.__name__}-{messages}-{body_bytes}", partial(make, messages, body_bytes)


def main() -> None:
    warm = ours("codec")
    for make in (columns, objects):
        warm.time(make(32, 100))  # its figures are not kept
    figures = ours("codec", columns=column_names(index_messages(pull_body(1, 100))))
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
