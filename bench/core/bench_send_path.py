"""Send path: from the messages of calls to the frames of requests, from answers to receipts.

    python -m bench.core.bench_send_path      nanoseconds a message

A queue sender takes a batch of what waits, encodes the request, and makes the receipts of its
answer, without sockets and threads: the part of "A send" in docs/internals/architecture.md#walks
that other work of the machine does not disturb.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.pull_bodies import TOPIC
from ordermq.client.broker_api import BrokerApi
from ordermq.clock import ManualClock
from ordermq.config import RemotingConfig, SendConfig
from ordermq.core import take_batch
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt
from ordermq.producer.accumulator import MessagePreparation
from ordermq.producer.hooks import SendHooks
from ordermq.producer.pending_message import PendingMessage, batch_body, is_single
from ordermq.producer.send_protocol import SendProtocol
from ordermq.producer.send_times import SendTimers
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, Framer, encode
from ordermq.remoting.headers import SendReplyHeader
from ordermq.remoting.response_futures import ResponseFuture

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)
_ADDRESS = "10.0.0.1:10911"
_MESSAGES = 4_096 if not workloads.IS_QUICK else 64
_KEYS = 64
_TIMES = 5


class _Wire:
    """A connection that answers each request in memory."""

    def __init__(self) -> None:
        self.framer = Framer()
        self.sizes: list[int] = []

    def writable_now(self, address: str) -> _Wire:
        return self

    def explained(self, answer: Any) -> Any:
        return answer

    def ask(self, opaque: int, frame: bytes, waiting: ResponseFuture, timeout_ms: int) -> bool:
        self.sizes.append(len(frame))
        return True


def sent(batch_size: int, body_bytes: int) -> Work:
    """Send messages in requests of so many, with bodies of so many bytes."""
    wire, config, body = _Wire(), SendConfig(), b"x" * body_bytes
    api = BrokerApi(wire, RemotingConfig(), "bench")  # type: ignore[arg-type]
    routes = SimpleNamespace(master_of=lambda name: _ADDRESS)
    client: Any = SimpleNamespace(api=api, routes=routes, clock=ManualClock())
    preparation = MessagePreparation(config, SendHooks("bench", client.clock, ""), SendTimers())
    protocol = SendProtocol(client, "bench", _QUEUE, config)
    waiting_answer = ResponseFuture()
    frames = [_answer(first, batch_size) for first in range(0, _MESSAGES, batch_size)]
    receipts: list[SendReceipt] = []

    def run() -> None:
        receipts.clear()
        waiting: deque[PendingMessage] = deque()
        for frame in frames:
            for number in range(batch_size):
                message = Message(TOPIC, body)
                waiting.append(preparation.one(message, f"k{number % _KEYS}", _nothing))
            batch = take_batch(waiting, config.max_batch_bytes, [])
            encoded = batch[0].bodies[0] if is_single(batch) else batch_body(batch)
            assert protocol.begin(batch, encoded, 0, waiting_answer)
            (answer,) = wire.framer.feed(frame)
            made = protocol.receipts(batch, len(encoded), answer)
            for one, its_receipts in zip(batch, made, strict=True):
                one.finish(its_receipts, None)
                receipts.append(one.receipt())

    def check() -> None:
        assert [receipt.queue_offset for receipt in receipts] == list(range(_MESSAGES))
        assert len({receipt.message_id for receipt in receipts}) == _MESSAGES
        assert min(wire.sizes) > batch_size * body_bytes

    return Work(f"requests of {batch_size}", _MESSAGES, run, check, None, _TIMES)


def _nothing(pending: PendingMessage) -> None: ...


def _answer(first: int, count: int) -> bytes:
    places = ",".join(f"{first + i:032X}" for i in range(count))
    reply = SendReplyHeader(places, _QUEUE.queue_id, first, None, "DefaultRegion", "true")
    request = Command.request(RequestCode.SEND_BATCH_MESSAGE)
    return encode(request.reply(ResponseCode.SUCCESS, reply.to_ext()))


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for batch_size in (1, 8, 32):
        yield f"{batch_size}", partial(sent, batch_size, workloads.CATCH_UP_BODY_BYTES)


def main() -> None:
    figures = ours("send path")
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
