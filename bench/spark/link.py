"""Measure one queue over a link with a delay: python -m bench.spark.link.

A task's reading, without Spark, of one queue behind a proxy that holds every byte back for half a
millisecond each way; the broker answers with 32 messages a pull, as RocketMQ's does. Compared with
pulls one after the other. Writes bench/results/spark_link.json.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import broker_process, save
from bench.spark.queues import fill
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source import queue_reader
from ordermq.spark.source.queue_reader import QueueRange, read_ranges

ROWS = 100_000
ONE_WAY_S = 0.0005
ANSWER = 32
ROUNDS = 3


class DelayingLink:
    """A proxy on a thread of its own; what it passes on arrives later, in the same order."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(self._host, self._port)
        for pair in ((reader, broker_writer), (broker_reader, writer)):
            task = asyncio.ensure_future(self._pass(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            self._loop.call_later(ONE_WAY_S, writer.write, data)


@contextmanager
def linked_session(address: str) -> Iterator[ClientSession]:
    link = DelayingLink(address)
    link.start()
    session = ClientSession(address, RemotingConfig())
    # Only pulls cross the link: the routes name the broker itself.

    async def address_of(queue: MessageQueue) -> str:
        return link.address

    session.address_of = address_of  # type: ignore[method-assign]
    try:
        yield session
    finally:
        session.close()
        link.stop()


def rows_per_second(session: ClientSession, address: str, pulls: int) -> float:
    queue_reader._PARTS_AHEAD = pulls
    given = {"name_servers": address, "topic": "link", "pull_batch_size": str(ANSWER)}
    options = SourceOptions.of(given)
    began = time.perf_counter()
    batches = read_ranges(session, options, [QueueRange("link", "embedded", 0, 0, ROWS)])
    assert sum(batch.num_rows for batch in batches) == ROWS
    return ROWS / (time.perf_counter() - began)


def main() -> None:
    ahead = queue_reader._PARTS_AHEAD
    found: dict[str, list[float]] = {"one after the other": [], "ahead": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        broker_process(Path(folder) / "data", durability="os") as (_, address),
    ):
        fill(address, "link", 1, ROWS)
        with linked_session(address) as session:
            for number in range(ROUNDS + 1):
                rates = {
                    "one after the other": rows_per_second(session, address, 1),
                    "ahead": rows_per_second(session, address, ahead),
                }
                print({name: round(rate) for name, rate in rates.items()}, flush=True)
                if number:
                    for name, rate in rates.items():
                        found[name].append(rate)
    medians = {name: round(statistics.median(rates)) for name, rates in found.items()}
    ratio = round(medians["ahead"] / medians["one after the other"], 1)
    workload = {"rows": ROWS, "one_way_ms": ONE_WAY_S * 1e3, "messages_per_answer": ANSWER}
    result = {"command": "python -m bench.spark.link", "workload": workload}
    print(save("spark_link", result | {"rows_per_second": medians, "ratio": ratio}), ratio)


if __name__ == "__main__":
    main()
