"""The producer of both older clients, as an adapter of `ordermq.Producer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ordermq.callables import require_plain
from ordermq.client.runtime import Runtime
from ordermq.errors import (
    ConnectionLost,
    KeyFailed,
    OrderMQError,
    ProtocolError,
    RequestTimeout,
    StateError,
)
from ordermq.model.message import Message as SentMessage
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.producer import Producer as OrderedProducer
from ordermq.rocketmq.client_settings import (
    ClientSettings,
    positive,
    shut_down_unreferenced,
    warn_once,
)
from ordermq.rocketmq.exceptions import (
    ProducerException,
    ProducerSendOnewayFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    async_failure,
    raised_as,
)
from ordermq.rocketmq.message import Message, ReceivedMessage, Text, UnsentView, text_of
from ordermq.rocketmq.send_callbacks import OnException, OnSuccess, SendCallbacks
from ordermq.rocketmq.sharding import (
    OldSelector,
    by_sharding_key,
    chosen_queue,
    hashing_queue_selector,
)
from ordermq.rocketmq.status import SendResult, result_of

_USUAL_RETRIES = 3
_OUTCOME_UNKNOWN = (RequestTimeout, ConnectionLost, ProtocolError, KeyFailed)


class Producer(ClientSettings):
    """Sends messages; those of one sharding key in order.

    Args:
        group_id: the producer group.
        orderly: no effect: any producer keeps the order of its keys.
        timeout: of one attempt, in ms; default 3000.
        compress_level: of large bodies, 0..9; default 5.
        max_message_size: bytes of a body; default 4 MiB.
    """

    def __init__(
        self,
        group_id: Text,
        orderly: bool = False,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        super().__init__(group_id)
        if orderly not in (False, True):
            raise TypeError(
                f"Producer(orderly={orderly!r}): in rocketmq 0.4.4 the second argument was the "
                "timeout, here it is `orderly`; write timeout=... by name"
            )
        self._settings: dict[str, int] = {}
        self._producer: OrderedProducer | None = None
        self._runtime: Runtime | None = None
        self._callbacks = SendCallbacks()
        if timeout is not None:
            self.set_timeout(timeout)
        if compress_level is not None:
            self.set_compress_level(compress_level)
        if max_message_size is not None:
            self.set_max_message_size(max_message_size)

    def __del__(self) -> None:
        if self.__dict__.get("_producer") is not None:
            shut_down_unreferenced(self)

    @property
    def _is_running(self) -> bool:
        return self._producer is not None

    def set_group(self, group_name: Text) -> None:
        """Change the group."""
        self._set_group(group_name)

    def set_timeout(self, timeout: int) -> None:
        """Set the time-out of one attempt, ms."""
        self._require_not_running()
        self._settings["send_timeout_ms"] = positive(timeout, "timeout")

    def set_compress_level(self, level: int) -> None:
        """Set the compression level of large bodies, 0..9."""
        self._require_not_running()
        self._settings["compress_level"] = level

    def set_max_message_size(self, max_size: int) -> None:
        """Set the maximum size of a body, bytes."""
        self._require_not_running()
        self._settings["max_message_bytes"] = positive(max_size, "max_message_size")

    def start(self) -> None:
        """Start. Raises: ProducerStartFailed."""
        self._require_not_running()
        with raised_as(ProducerStartFailed):
            producer = self._new_producer()
            producer.start()
        self._producer = producer
        self._runtime = Runtime.acquire(self)
        self._callbacks = SendCallbacks()

    def _new_producer(self) -> OrderedProducer:
        return OrderedProducer(self._group, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        return {
            "selector": by_sharding_key,
            # Like the older clients: a change of the topic's queues moves keys, and no send fails.
            "allow_queue_change": True,
            **self._settings,
            **self._endpoint(),
        }

    def shutdown(self) -> None:
        """Send what waits, call its callbacks, disconnect; a second call does nothing."""
        producer, runtime = self._producer, self._runtime
        self._producer = self._runtime = None
        if producer is None or runtime is None:
            return
        self._callbacks.close()
        with raised_as(ProducerException):
            producer.close()
        runtime.release(self)

    def send_sync(self, msg: Message) -> SendResult:
        """Send and wait for the broker's reply. Raises: ProducerSendSyncFailed."""
        with raised_as(ProducerSendSyncFailed):
            return result_of([self._live().send(_to_send(msg))])

    def send_async(
        self, msg: Message, success_callback: OnSuccess, exception_callback: OnException
    ) -> None:
        """Send; one of the callbacks gets the outcome, on a thread for callbacks.

        Raises: ProducerSendAsyncFailed: it cannot be sent; no callback is called.
            ConfigError: a callback is asynchronous; nothing is sent.
        """
        require_plain("callback", success_callback, exception_callback)
        try:
            producer, message = self._live(), _to_send(msg)
        except OrderMQError as error:
            raise async_failure(error) from error
        assert self._runtime is not None
        send = self._runtime.submit(producer.asend(message))
        self._callbacks.expect(send, success_callback, exception_callback)

    def send_oneway(self, msg: Message) -> None:
        """Send without waiting; the message may be lost.

        Raises: ProducerSendOnewayFailed: it cannot be sent at all. A later failure is logged.
        """
        with raised_as(ProducerSendOnewayFailed):
            self._live().send_oneway(_to_send(msg))

    def send_oneway_orderly(
        self, msg: Message, arg: int, queue_selector: OldSelector = hashing_queue_selector
    ) -> None:
        """`send_oneway` to the queue of `arg`. Raises: ProducerSendOnewayFailed."""
        with raised_as(ProducerSendOnewayFailed):
            producer, message = self._live(), _to_send(msg)
            producer.send_oneway(message, queue=_queue_of(producer, message, arg, queue_selector))

    def send_orderly(
        self,
        msg: Message,
        arg: int,
        retry_times: int = _USUAL_RETRIES,
        queue_selector: OldSelector = hashing_queue_selector,
    ) -> SendResult:
        """Send to the queue of `arg` only.

        Args:
            arg: what the selector chooses by, a C int; the default one by `arg % queues`.
            retry_times: no effect: the producer retries, always at the same queue.
            queue_selector: (number of queues, message, address of arg) -> index.
        Raises: ProducerSendOrderlyFailed.
        """
        if retry_times != _USUAL_RETRIES:
            warn_once(
                "send_orderly: retry_times has no effect, an unanswered send is retried 5 times"
            )
        with raised_as(ProducerSendOrderlyFailed):
            producer, message = self._live(), _to_send(msg)
            queue = _queue_of(producer, message, arg, queue_selector)
            return result_of([producer.send(message, queue=queue)])

    def send_orderly_with_sharding_key(self, msg: Message, sharding_key: Text) -> SendResult:
        """Send; messages of one sharding key go to one queue, in order.

        Raises: ProducerSendOrderlyFailed: if its cause is a time-out, check whether the message
            arrived before you send the key's next one.
        """
        key = text_of(sharding_key, "sharding key")
        with raised_as(ProducerSendOrderlyFailed):
            producer, message = self._live(), _to_send(msg)
            try:
                return result_of([producer.send(message, sharding_key=key)])
            except _OUTCOME_UNKNOWN:
                # Programs for the older clients never call `resolve`. The exception asks them to
                # check, and their next send of this key counts as the answer.
                producer.resolve(message.topic, key)
                raise

    def send_batch(self, msgs: Sequence[Message]) -> SendResult:
        """Send messages of one topic to one queue, back to back. Raises: ProducerSendSyncFailed.

        Returns: all ids, joined with commas, and the first one's offset.
        """
        if not msgs or not all(isinstance(msg, Message) for msg in msgs):
            raise AssertionError("send_batch takes a sequence of at least one Message")
        with raised_as(ProducerSendSyncFailed):
            return result_of(self._live().send_batch([msg.to_send() for msg in msgs]))

    def _live(self) -> OrderedProducer:
        if self._producer is None:
            raise StateError(
                "the producer is not running: call start(), or use it in a `with` block",
                group=self._group,
            )
        return self._producer


def _to_send(msg: Message) -> SentMessage:
    if not isinstance(msg, Message):
        raise TypeError(f"{type(msg).__name__} is no ordermq.rocketmq Message")
    return msg.to_send()


def _queue_of(
    producer: OrderedProducer, message: SentMessage, arg: int, select: OldSelector
) -> MessageQueue:
    return chosen_queue(
        select, producer.queues(message.topic), ReceivedMessage(UnsentView.of(message)), arg
    )
