"""Memory: bytes a buffered message, from the growth of the process.

"queue": what a process queue adds to messages that are there already, by shape. "received":
everything kept of a pulled batch besides its bytes: the batch, its columns and the queue.
Each figure is a process of its own, so that none reuses what another gave back.
"""

from __future__ import annotations

import argparse
import gc
import os
from array import array
from pathlib import Path

from bench import workloads
from bench.core.figures import ours
from bench.core.pull_bodies import TOPIC, pull_body
from bench.core.standing_queues import BODY_BYTES, FILL, Fill
from ordermq.core import ProcessQueue, contract
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def objects(queue: contract.ProcessQueue, messages: int) -> int:
    message = object()
    sizes = [BODY_BYTES] * FILL
    before = resident_bytes()
    for first in range(0, messages, FILL):
        queue.put([(offset, message) for offset in range(first, first + FILL)], sizes)
    return resident_bytes() - before


def batches(queue: contract.ProcessQueue, messages: int) -> int:
    ready = [Fill(first, FILL) for first in range(0, messages, FILL)]
    before = resident_bytes()
    for batch in ready:
        queue.put_batch(batch)
    return resident_bytes() - before


def columns(queue: contract.ProcessQueue, messages: int) -> int:
    sizes = array("i", [BODY_BYTES]) * FILL
    before = resident_bytes()
    for first in range(0, messages, FILL):
        tokens = array("Q", range(first, first + FILL))
        queue.put_columns(array("q", tokens), tokens, sizes)
    return resident_bytes() - before


def received(queue: contract.ProcessQueue, messages: int) -> int:
    of = MessageQueue(TOPIC, "broker-a", 3)
    bodies = [pull_body(FILL, 1, first) for first in range(0, messages, FILL)]
    before = resident_bytes()
    for body in bodies:
        queue.put_batch(MessageBatch(of, body))
    return resident_bytes() - before


SHAPES = {"objects": objects, "batches": batches, "columns": columns, "received": received}


def cases() -> list[tuple[str, int]]:
    """(shape, messages) of every figure."""
    shapes = [shape for shape in SHAPES if shape != "received"]
    found = [(shape, count) for count in workloads.CORE_MEMORY_MESSAGES for shape in shapes]
    return [*found, ("received", workloads.CORE_MEMORY_RECEIVED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("messages", type=int)
    arguments = parser.parse_args()
    messages = arguments.messages // FILL * FILL
    queue = ProcessQueue()
    queue.put_columns(array("q"), array("Q")) if arguments.shape == "columns" else queue.put([])
    grown = SHAPES[arguments.shape](queue, messages)
    assert queue.message_count == messages
    figures = ours("memory")
    figures.put(f"{arguments.shape}, {arguments.messages} messages", grown / messages)
    figures.print()


if __name__ == "__main__":
    main()
