"""Ends a test process that pytest-timeout could not: it shows each thread, and exits.

pytest-timeout raises in the main thread, once. That does nothing for a thread that waits in C, a
`finally` behind the exception may wait again, and Hypothesis takes it for a failed example and
repeats it. Then a whole run stood still until the machine that ran it gave up, and nobody learnt in
which test. faulthandler's own thread needs no interpreter.
pytest-xdist reports the test as the one in which its worker crashed, and goes on in another worker.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

GRACE = 60  # seconds behind the test's own timeout, for what follows that

_REPORT = pytest.StashKey[int]()


def _seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(item.config.getoption("timeout") or item.config.getini("timeout") or 0)


def pytest_sessionstart(session: pytest.Session) -> None:
    # While a test runs, pytest has put a file of its own in place of the process's errors.
    session.config.stash[_REPORT] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    if seconds := _seconds(item):
        report = item.config.stash[_REPORT]
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=report)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
