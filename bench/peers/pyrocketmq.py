"""pyrocketmq's ProcessQueue; the work: put 32, take 32, commit over a standing depth.

Its put is O(n): the offsets of all entries are listed for each message. So the depths and the
cycles are bounded (bench/workloads.py). The project is github.com/tt67wq/pyrocketmq; PyPI has
another one of that name, which wraps Java's client. Put a checkout's src on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import workloads
from bench.core.figures import Figures, Work

BATCH = workloads.CORE_BATCH
COUNT = workloads.CORE_SLOW_BATCHES


def missing() -> str | None:
    """Return why it cannot run here, None if it can."""
    return None if _spec() else "no checkout of github.com/tt67wq/pyrocketmq on PYTHONPATH"


def _spec() -> ModuleSpec | None:
    # The file alone: the package's other modules do not import before Python 3.13, where
    # threading.RLock became a class.
    package = importlib.util.find_spec("pyrocketmq")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder) / "consumer" / "process_queue.py"
        if file.exists():
            return importlib.util.spec_from_file_location("pyrocketmq_process_queue", file)
    return None


def library() -> ModuleType:
    spec = _spec()
    assert spec is not None, missing()
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def work(module: Any, depth: int) -> Work:
    messages = depth + COUNT * BATCH
    queue = module.ProcessQueue(max_cache_count=messages + BATCH, max_cache_size_mb=1_024)
    ready = []
    for first in range(0, messages, BATCH):
        ready.append(
            [module.MessageExt(topic="OrderEvents", body=b"." * 100) for _ in range(BATCH)]
        )
        for number, message in enumerate(ready[-1]):
            message.queue_offset = first + number
    fill = depth // BATCH
    for batch in ready[:fill]:
        queue.add_batch_messages(batch)
    taken = committed = 0

    def run() -> None:
        nonlocal taken, committed
        put, take, commit = queue.add_batch_messages, queue.take_messages, queue.commit
        for batch in ready[fill:]:
            put(batch)
            taken += len(take(BATCH))
            committed = commit()

    def check() -> None:
        assert (taken, committed) == (COUNT * BATCH, COUNT * BATCH - 1), (taken, committed)
        assert queue.get_count() == depth

    return Work(f"objects, depth {depth}", COUNT * BATCH, run, check)


def main() -> None:
    figures = Figures("pyrocketmq ProcessQueue", "process_queue")
    module = library()
    for depth in workloads.CORE_SLOW_DEPTHS:
        figures.time(work(module, depth // BATCH * BATCH))
    figures.print()


if __name__ == "__main__":
    main()
