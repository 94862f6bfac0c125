"""The baseline of consuming: an asyncio protocol that pulls, counts frames and discards them.

It decodes no header and keeps no body; one pull per queue is in flight, as in any consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
from typing import cast

from ordermq.config.checks import split_address
from ordermq.remoting.codes import PullFlag, RequestCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.event_loop import new_event_loop
from ordermq.remoting.headers import PullHeader

_NEXT = b'"nextBeginOffset":"'


class BarePull(asyncio.Protocol):
    """Pulls each queue to its end; the offsets come from a byte search in the header."""

    def __init__(self, topic: str, queues: int, per_queue: int, pull_size: int) -> None:
        self._topic = topic
        self._per_queue = per_queue
        self._pull_size = pull_size
        self._open_queues = queues
        self._buffer = bytearray()
        self._queue_of: dict[int, int] = {}
        self.messages = 0
        self.frames = 0
        self.finished = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # not so by type in uvloop
        for queue in range(self._open_queues):
            self._pull(queue, 0)

    def _pull(self, queue: int, offset: int) -> None:
        header = PullHeader(
            "bare",
            self._topic,
            queue,
            offset,
            self._pull_size,
            PullFlag.SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )
        command = Command.request(RequestCode.PULL_MESSAGE, header.to_ext())
        self._queue_of[command.opaque] = queue
        self._transport.write(encode(command))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 8:
            (length,) = struct.unpack_from(">i", buffer, at)
            if len(buffer) - at < 4 + length:
                break
            header_end = at + 8 + (struct.unpack_from(">I", buffer, at + 4)[0] & 0xFFFFFF)
            self._take(bytes(buffer[at + 8 : header_end]))
            at += 4 + length
        del buffer[:at]

    def _take(self, header: bytes) -> None:
        start = header.index(_NEXT) + len(_NEXT)
        offset = int(header[start : header.index(b'"', start)])
        start = header.index(b'"opaque":') + 9
        opaque = int(header[start:].split(b",", 1)[0].rstrip(b"}"))
        queue = self._queue_of.pop(opaque)
        self.frames += 1
        if offset >= self._per_queue:
            self.messages += offset
            self._open_queues -= 1
            if self._open_queues == 0:
                self.finished.set_result(None)
            return
        self._pull(queue, offset)


async def _run(arguments: argparse.Namespace) -> dict[str, object]:
    host, port = split_address(arguments.address)
    loop = asyncio.get_running_loop()
    wall, cpu = time.perf_counter(), time.process_time()
    _, puller = await loop.create_connection(
        lambda: BarePull(
            arguments.topic, arguments.queues, arguments.per_queue, arguments.pull_size
        ),
        host,
        port,
    )
    await puller.finished
    return {
        "peer": "bare pull loop",
        "messages": puller.messages,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "detail": {"frames": puller.frames, "python": sys.version.split()[0]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--per-queue", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(_run(parser.parse_args()))))


if __name__ == "__main__":
    main()
