"""Codec: index a pull body and read its columns, or body, tags and keys of each message."""

from __future__ import annotations

from bench import workloads
from bench.core.figures import Figures, ours
from bench.core.pull_bodies import TOPIC, case, pull_body, sizes
from ordermq.core import index_messages
from ordermq.core.interface import MessageIndex
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)


def column_names(index: MessageIndex) -> tuple[str, ...]:
    """Every column the index has: what is added to it is read and timed too."""
    names = (name for name in dir(type(index)) if not name.startswith("_"))
    return tuple(name for name in names if isinstance(getattr(index, name), memoryview))


def measure(figures: Figures, messages: int, body_bytes: int) -> None:
    body = pull_body(messages, body_bytes)
    times = max(1, workloads.CORE_CODEC_TIMED // messages)
    index = index_messages(body)

    def read_columns() -> None:
        nonlocal index
        for _ in range(times):
            index = index_messages(body)
            index.offsets, index.positions, index.body_positions, index.body_sizes  # noqa: B018
            index.property_positions, index.property_sizes  # noqa: B018

    figures.take(f"columns, {case(messages, body_bytes)}", times * messages, read_columns, 5)
    assert index.offsets.tolist() == list(range(messages))
    assert index.body_sizes.tolist() == [body_bytes] * messages
    last: tuple[memoryview, str | None, list[str]] | None = None

    def read_objects() -> None:
        nonlocal last
        for _ in range(times):
            for view in MessageBatch(_QUEUE, body):
                last = view.body, view.tags, view.keys

    figures.take(f"objects, {case(messages, body_bytes)}", times * messages, read_objects)
    number = messages - 1
    assert last is not None
    seen, tags, keys = last
    assert (len(seen), tags, keys) == (body_bytes, f"T{number % 4}", [f"order-{number:08}"])


def main() -> None:
    measure(ours("codec"), 32, 100)  # warms up; its figures are not kept
    figures = ours("codec", columns=column_names(index_messages(pull_body(1, 100))))
    for messages, body_bytes in sizes():
        measure(figures, messages, body_bytes)
    figures.print()


if __name__ == "__main__":
    main()
