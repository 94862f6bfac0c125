"""Frame path: what the sockets of a consumer read, up to messages in its process queues.

    python -m bench.core.bench_frame_path      nanoseconds a message

Answers to pulls are cut out of what was read, their headers read and checked, their records
indexed, and the messages buffered: the path in Python of docs/internals/architecture.md#pulls. Its
native twin runs on a thread of its own; ci/bench.sh times that one from end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.pull_bodies import TOPIC, case, pull_body
from ordermq.client.broker_api import BrokerApi
from ordermq.config import RemotingConfig
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.leases.lease import Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, Framer, encode
from ordermq.remoting.headers import PullHeader, PullReplyHeader

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)
_ADDRESS = "10.0.0.1:10911"
_READ_BYTES = 256 * 1024  # asyncio's reads are at most that large
_MESSAGES = 4_096 if not workloads.IS_QUICK else 64
_TIMES = 5


def received(pull: int, body_bytes: int) -> Work:
    """Receive answers of so many messages each, with bodies of so many bytes, read by read."""
    asked = [_pull_header(offset, pull) for offset in range(0, _MESSAGES, pull)]
    stream = b"".join(_answer(header, body_bytes) for header in asked)
    reads = [stream[at : at + _READ_BYTES] for at in range(0, len(stream), _READ_BYTES)]
    connections: Any = SimpleNamespace(explained=lambda answer: answer)
    api = BrokerApi(connections, RemotingConfig(), "bench")
    callbacks = QueueCallbacks(lambda *_: None, lambda _: None, lambda _: None, lambda: None)
    queue: AssignedQueue

    def fill() -> None:
        nonlocal queue
        queue = AssignedQueue(_QUEUE, "bench", Lease(1, 1 << 60, True), 0, callbacks)

    def run() -> None:
        framer, requests = Framer(), iter(asked)
        for data in reads:
            for answer in framer.feed(data):
                header = next(requests)
                _, reply, body = api.pulled(_ADDRESS, header, answer)
                following = reply.next_begin_offset
                batch = api.batch(_QUEUE, body, (), header.queue_offset, following)
                queue.accept(queue.generation, batch, following)

    def check() -> None:
        assert queue.process_queue.pending_count == queue.next_pull_offset == _MESSAGES

    return Work(f"answers of {case(pull, body_bytes)}", _MESSAGES, run, check, fill, _TIMES)


def _pull_header(offset: int, pull: int) -> PullHeader:
    return PullHeader("bench", TOPIC, _QUEUE.queue_id, offset, pull, 0, broker_name="broker-a")


def _answer(header: PullHeader, body_bytes: int) -> bytes:
    following = header.queue_offset + header.max_messages
    request = Command.request(RequestCode.PULL_MESSAGE, header.to_ext())
    reply = PullReplyHeader(following, 0, _MESSAGES)
    body = pull_body(header.max_messages, body_bytes, header.queue_offset)
    return encode(request.reply(ResponseCode.SUCCESS, reply.to_ext(), body))


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for pull in (1, workloads.PULL_SIZE):
        for body_bytes in workloads.CORE_CODEC_BODY_BYTES:
            yield f"{pull}-{body_bytes}", partial(received, pull, body_bytes)


def main() -> None:
    figures = ours("frame path")
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
