"""Codec: index a pull body and read its columns, or body, tags and keys of each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.pull_bodies import TOPIC, case, pull_body, sizes
from ordermq.core import MessageIndex
from ordermq.model.hashing import string_hash
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)
_TIMES = 5
COLUMNS = ("offsets", "tag_hashes", "body_positions", "body_sizes")


def columns(messages: int, body_bytes: int) -> Work:
    """Index the body, and read offsets, tag hashes and where the bodies are as columns."""
    body = pull_body(messages, body_bytes)
    times = max(1, workloads.CORE_CODEC_TIMED // messages)
    found: dict[str, memoryview] = {}

    def run() -> None:
        nonlocal found
        for _ in range(times):
            found = MessageIndex(body).columns(*COLUMNS)

    def check() -> None:
        assert found["offsets"].tolist() == list(range(messages))
        assert found["body_sizes"].tolist() == [body_bytes] * messages
        hashes = [string_hash(f"T{offset % 4}") for offset in range(messages)]
        assert found["tag_hashes"].tolist() == hashes

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
    figures = ours("codec", columns=COLUMNS)
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
