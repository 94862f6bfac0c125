"""Ends a test process that pytest-timeout could not: it shows each thread, and exits.

pytest-timeout raises in the main thread, once. That does nothing for a thread that waits in C, a
`finally` behind the exception may wait again, and Hypothesis takes it for a failed example and
repeats it. Then a whole run stood still until the machine that ran it gave up, and nobody learnt in
which test. faulthandler's own thread needs no interpreter.
pytest-xdist reports the test as the one in which its worker crashed, and goes on in another worker.

It notices that by the end of the worker's pipe, which a forked child of the worker holds open, too:
one that hangs would keep the whole run from its end. So children get /dev/null in its place.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator, Sequence
from functools import partial

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
    if pipe := _pipe_of_worker(session.config):
        os.register_at_fork(after_in_child=partial(_silence, pipe))


def _pipe_of_worker(config: pytest.Config) -> Sequence[int]:
    """Return both ends that an xdist worker has of its pipe; nothing in another process."""
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "workerid") and hasattr(plugin, "channel"):
            pipe = plugin.channel.gateway._io
            return pipe.infile.fileno(), pipe.outfile.fileno()
    return ()


def _silence(descriptors: Sequence[int]) -> None:
    # Replaced, not closed: the objects that own these numbers are in the child, too.
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    if seconds := _seconds(item):
        report = item.config.stash[_REPORT]
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=report)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
