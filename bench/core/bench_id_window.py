"""Id window: note 32 messages a call in a full window, none or all of them copies; bytes per id.

    python -m bench.core.bench_id_window      nanoseconds a message, and the memory

The index of each pull body is made before: a consumer without `deduplicate` makes it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench import workloads
from bench.core.bench_memory import resident_bytes
from bench.core.figures import Work, ours
from bench.core.pull_bodies import pull_body
from ordermq.core import IdWindow, MessageIndex, contract

Window = contract.IdWindow
_PULL = workloads.PULL_SIZE
_BODY_BYTES = workloads.CORE_CODEC_BODY_BYTES[0]
_MESSAGES = workloads.CORE_ID_MESSAGES // _PULL * _PULL


def fill(window: Window, count: int) -> None:
    """Note the first messages of a queue, so many."""
    for first in range(0, count, _PULL):
        window.drop_copies(MessageIndex(pull_body(_PULL, _BODY_BYTES, first)))


def noted(size: int, *, are_copies: bool) -> Work:
    """Note messages behind a full window; copies have the ids of the newest ones in it."""
    full = -(-size // _PULL) * _PULL
    bodies = [
        pull_body(_PULL, _BODY_BYTES, first, id_shift=_MESSAGES * are_copies)
        for first in range(full, full + _MESSAGES, _PULL)
    ]
    window: Window
    indexes: list[contract.MessageIndex] = []
    dropped = 0

    def setup() -> None:
        nonlocal window, dropped
        window, dropped = IdWindow(size), 0
        fill(window, full)
        indexes[:] = map(MessageIndex, bodies)

    def run() -> None:
        nonlocal dropped
        for index in indexes:
            dropped += window.drop_copies(index)

    def check() -> None:
        assert dropped == _MESSAGES * are_copies
        assert sum(map(len, indexes)) == _MESSAGES - dropped
        window._check()

    case = f"{'copies' if are_copies else 'new'}, window {size}"
    return Work(case, _MESSAGES, run, check, setup, times=3)


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for size in workloads.CORE_ID_WINDOWS:
        yield f"new-{size}", partial(noted, size, are_copies=False)
    largest = workloads.CORE_ID_WINDOWS[-1]
    yield f"copies-{largest}", partial(noted, largest, are_copies=True)


def main() -> None:
    figures = ours("id_window")
    # First: what the cases below give back would be used again.
    count = workloads.CORE_ID_WINDOWS[-1] // _PULL * _PULL
    window = IdWindow(count)
    fill(window, _PULL)
    before = resident_bytes()
    fill(window, count)
    figures.put(f"memory, {count} ids, bytes per id", (resident_bytes() - before) / count)
    assert len(window) == count
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
