"""The consumer's process queue with one object per message, to measure the gain of batches.

`fed_with` replaces the classes of ordermq within a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from ordermq.consumer.queue import assigned_queue
from ordermq.core import ProcessQueue
from ordermq.model.message import MessageBatch, MessageView


@dataclass(slots=True)
class Received:
    """A message decoded on arrival, as in a client without batches."""

    queue_offset: int
    body: bytes
    tags: str | None
    keys: list[str]


def decoded(view: MessageView) -> Received:
    return Received(view.queue_offset, bytes(view.body), view.tags, view.keys)


def undecoded(view: MessageView) -> MessageView:
    return view


MAKERS: dict[str, Callable[[MessageView], Any]] = {"objects": decoded, "views": undecoded}


class ObjectQueue:
    """A ProcessQueue that stores and returns one object per message of a batch."""

    def __init__(self, make: Callable[[MessageView], Any], name: str) -> None:
        self._make = make
        self._queue = ProcessQueue(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put_batch(self, batch: MessageBatch) -> bool:
        make = self._make
        pairs = [(view.queue_offset, make(view)) for view in batch]
        return self._queue.put(pairs, batch.body_sizes.tolist())

    def take_segments(self, n: int) -> list[Any]:
        return self._queue.take(n)


class ObjectRun(list[Any]):
    """The messages of one listener call, with the interface of MessageRun."""

    def parts(self, size: int) -> Iterator[ObjectRun]:
        return (ObjectRun(self[first : first + size]) for first in range(0, len(self), size))

    def offsets(self) -> list[int]:
        return [message.queue_offset for message in self]

    @property
    def first_offset(self) -> int:
        return int(self[0].queue_offset)

    @property
    def last_offset(self) -> int:
        return int(self[-1].queue_offset)


@contextmanager
def fed_with(shape: str) -> Iterator[None]:
    """Let queues assigned within the block hold one object per message, made by one of MAKERS."""
    queue = partial(ObjectQueue, MAKERS[shape])
    with mock.patch.multiple(assigned_queue, ProcessQueue=queue, MessageRun=ObjectRun):
        yield
