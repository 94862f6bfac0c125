"""Memory: bytes a buffered message, from the growth of the process.

"queue": what a process queue adds to messages that are there already, by shape. "received":
all that is kept of a pulled batch beside its bytes: the batch, its columns and the queue.
Each shape is a process of its own, so that none reuses what another gave back.
"""

from __future__ import annotations

import argparse
import gc
import os
from array import array
from pathlib import Path

from bench import workloads
from bench.core.bench_process_queue import BATCH, Columns
from bench.core.figures import ours
from bench.core.pull_bodies import TOPIC, pull_body
from ordermq.core import ProcessQueue, interface
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

COUNT = workloads.CORE_MEMORY_MESSAGES // BATCH * BATCH
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def objects(queue: interface.ProcessQueue) -> int:
    message = object()
    sizes = [100] * BATCH
    before = resident_bytes()
    for first in range(0, COUNT, BATCH):
        queue.put([(offset, message) for offset in range(first, first + BATCH)], sizes)
    return resident_bytes() - before


def batches(queue: interface.ProcessQueue) -> int:
    ready = [Columns(first) for first in range(0, COUNT, BATCH)]
    before = resident_bytes()
    for batch in ready:
        queue.put_batch(batch)
    return resident_bytes() - before


def columns(queue: interface.ProcessQueue) -> int:
    sizes = array("i", [100]) * BATCH
    before = resident_bytes()
    for first in range(0, COUNT, BATCH):
        tokens = array("Q", range(first, first + BATCH))
        queue.put_columns(array("q", tokens), tokens, sizes)
    return resident_bytes() - before


def received(queue: interface.ProcessQueue) -> int:
    of = MessageQueue(TOPIC, "broker-a", 3)
    bodies = [pull_body(BATCH, 1, first) for first in range(0, COUNT, BATCH)]
    before = resident_bytes()
    for body in bodies:
        queue.put_batch(MessageBatch(of, body))
    return resident_bytes() - before


SHAPES = {"objects": objects, "batches": batches, "columns": columns, "received": received}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    shape = parser.parse_args().shape
    queue = ProcessQueue()
    queue.put_columns(array("q"), array("Q")) if shape == "columns" else queue.put([])
    grown = SHAPES[shape](queue)
    assert queue.message_count == COUNT
    figures = ours("memory", messages=COUNT)
    figures.put(f"{shape}, bytes a message", grown / COUNT)
    figures.print()


if __name__ == "__main__":
    main()
