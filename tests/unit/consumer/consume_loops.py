"""The consume loops that tests compare: that of the core, and that of the reference, which serves
any core's queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ordermq import core
from ordermq.core import reference

LOOPS = ("reference", "core")


@contextmanager
def consuming_by(loop: str) -> Iterator[None]:
    """Have dispatchers that are made within use this loop."""
    if loop == "core":
        yield
        return
    with mock.patch.multiple(
        core, ConsumePlan=reference.ConsumePlan, ConsumeRun=reference.ConsumeRun
    ):
        yield
