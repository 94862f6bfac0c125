"""Batches of a streaming query that no Spark runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from ordermq.spark.options import SourceOptions
from ordermq.spark.source.offsets import StreamOffset
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually


def stored(offset: StreamOffset) -> StreamOffset:
    """The offset as it comes back from a checkpoint."""
    return StreamOffset.of(json.loads(json.dumps(offset.to_json())))


def planned_batch(
    driver: StreamDriver, start: StreamOffset, limit: int | None = None
) -> StreamOffset:
    """Plan the next batch, as soon as there is one."""
    found: list[StreamOffset] = []

    def is_planned() -> bool:
        end = driver.next_end(start, limit)
        found.extend([] if end is None else [end])
        return end is not None

    eventually(is_planned, "the next batch")
    return stored(found[0])


@contextlib.contextmanager
def runs_of(name_servers: str, **always: str) -> Iterator[Callable[..., StreamDriver]]:
    """Make runs of a query of the topic "orders", which are closed at the end."""
    made: list[StreamDriver] = []

    def make(**more: str) -> StreamDriver:
        given = {"name_servers": name_servers, "topic": "orders"} | always
        made.append(StreamDriver(SourceOptions.of(given | more)))
        return made[-1]

    yield make
    for driver in made:
        driver.close()
