"""The transaction producer of 2.0.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ordermq.callables import require_plain, require_plain_result
from ordermq.model.message import Message as SentMessage
from ordermq.model.message import MessageView
from ordermq.model.status import TransactionState
from ordermq.producer.transactions import TransactionProducer
from ordermq.rocketmq.exceptions import ProducerSendSyncFailed, raised_as
from ordermq.rocketmq.message import Message, ReceivedMessage, Text, UnsentView
from ordermq.rocketmq.producer import Producer
from ordermq.rocketmq.status import SendResult, TransactionStatus, result_of

_STATES = {
    TransactionStatus.COMMIT: TransactionState.COMMIT,
    TransactionStatus.ROLLBACK: TransactionState.ROLLBACK,
    TransactionStatus.UNKNOWN: TransactionState.UNKNOWN,
}


class TransactionMQProducer(Producer):
    """Sends messages that consumers get only after a local transaction is committed.

    Args:
        group_id: the producer group; the broker asks any live member about a transaction.
        checker_callback: called with a message, returns a TransactionStatus.
        user_args: no effect, as before: the callback does not get it.
        timeout, compress_level, max_message_size: as of `Producer`.
    """

    def __init__(
        self,
        group_id: Text,
        checker_callback: Callable[[ReceivedMessage], object],
        user_args: object = None,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        require_plain("checker_callback", checker_callback)
        super().__init__(group_id, False, timeout, compress_level, max_message_size)
        self._checker = checker_callback

    def _new_producer(self) -> TransactionProducer:
        return TransactionProducer(self._group, check=self._check, **self._arguments())

    def send_message_in_transaction(
        self,
        message: Message,
        local_execute: Callable[[ReceivedMessage, Any], object],
        user_args: Any = None,
    ) -> SendResult:
        """Send a half message, execute the local transaction, report its outcome to the broker.

        Args:
            local_execute: called with the message and `user_args`, returns a TransactionStatus;
                an exception is logged, and the broker asks `checker_callback` later.
        Raises: ProducerSendSyncFailed: nothing was executed.
        """

        require_plain("local_execute", local_execute)

        def execute(sent: SentMessage, argument: Any) -> TransactionState:
            seen = ReceivedMessage(UnsentView.of(sent, sent.transaction_id or ""))
            return _state(
                require_plain_result("local_execute", local_execute, local_execute(seen, argument))
            )

        with raised_as(ProducerSendSyncFailed):
            producer = self._live()
            assert isinstance(producer, TransactionProducer)
            half = producer.send_in_transaction(message.to_send(), user_args, execute=execute)
            return result_of([half])

    def _check(self, view: MessageView) -> TransactionState:
        answer = self._checker(ReceivedMessage(view))
        return _state(require_plain_result("checker_callback", self._checker, answer))


def _state(answer: object) -> TransactionState:
    if answer not in (0, 1, 2):
        raise ValueError(
            f"the callback returned {answer!r}: expected TransactionStatus.COMMIT, ROLLBACK or "
            "UNKNOWN"
        )
    return _STATES[TransactionStatus(answer)]
