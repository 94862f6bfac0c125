"""Count the lock requests that a consumer sends, for benchmarks of hand-offs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from ordermq.client.broker_api import BrokerApi


def file_of(history: Path) -> Path:
    """Return where a member with this history leaves the times of its lock requests."""
    return history.with_suffix(".locks.json")


@contextmanager
def counted(path: Path) -> Iterator[None]:
    """Write the times of all lock requests sent within the block to `path`, in seconds."""
    sent: list[float] = []
    lock = BrokerApi.lock

    async def count(api: BrokerApi, *arguments: Any) -> Any:
        sent.append(time.monotonic())
        return await lock(api, *arguments)

    with mock.patch.object(BrokerApi, "lock", count):
        yield
    path.write_text(json.dumps(sent))


def most_per_second(times: Iterable[float]) -> int:
    """Return how many requests there were, at most, in any second."""
    ordered = sorted(times)
    most = first = 0
    for last, sent in enumerate(ordered):
        while ordered[first] <= sent - 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most
