"""The producer, with its transactions."""

from __future__ import annotations

import abc
from concurrent.futures import Future
from enum import IntEnum

import ordermq.producer.producer as engine
from ordermq.errors import OrderMQError
from ordermq.model.message import Message as SentMessage
from ordermq.model.message import MessageView
from ordermq.model.receipts import SendReceipt as Receipt
from ordermq.model.status import TransactionState
from ordermq.producer.transactions import TransactionProducer
from ordermq.rocketmq.exceptions import raised_as, translated
from ordermq.rocketmq.v5.configuration import ClientConfiguration
from ordermq.rocketmq.v5.exception import (
    ClientException,
    IllegalArgumentException,
    IllegalStateException,
)
from ordermq.rocketmq.v5.message import Message, SendReceipt

_GROUP = "rocketmq-v5"  # over gRPC producers have none; logs name it


class TransactionResolution(IntEnum):
    """The state of a transaction."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


_STATES = {
    TransactionResolution.COMMIT: TransactionState.COMMIT,
    TransactionResolution.ROLLBACK: TransactionState.ROLLBACK,
}


class TransactionChecker(abc.ABC):
    """Tells the state of transactions that a broker asks about."""

    @abc.abstractmethod
    def check(self, message: Message) -> TransactionResolution:
        """Return the state of a message's transaction."""


class Transaction:
    """One message whose state is told later; from `Producer.begin_transaction`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._half: tuple[SentMessage, Receipt] | None = None

    @property
    def message_id(self) -> str:
        """The id of its message."""
        return self._sent()[1].message_id

    def commit(self) -> None:
        """Let consumers have the message."""
        self._end(TransactionState.COMMIT)

    def rollback(self) -> None:
        """Drop the message."""
        self._end(TransactionState.ROLLBACK)

    def begin(self, message: SentMessage, receipt: Receipt) -> None:
        """Note the message that was sent."""
        self._half = message, receipt

    @property
    def has_message(self) -> bool:
        return self._half is not None

    def _end(self, state: TransactionState) -> None:
        message, receipt = self._sent()
        self._producer.end_transaction(message, receipt, state)

    def _sent(self) -> tuple[SentMessage, Receipt]:
        if self._half is None:
            raise IllegalArgumentException("no message in transaction.")
        return self._half


class Producer:
    """Sends over gRPC.

    Args:
        topics: of transactions, whose brokers may ask from the start on.
        checker: makes it a producer that can send transactions.
    """

    def __init__(
        self,
        client_configuration: ClientConfiguration,
        topics: tuple[str, ...] | None = None,
        checker: TransactionChecker | None = None,
        tls_enable: bool = False,
    ) -> None:
        self.client_configuration = client_configuration
        self.topics = tuple(topics or ())
        self._checker = checker
        self._tls = tls_enable
        self._engine: engine.Producer | None = None

    def __str__(self) -> str:
        client_id = "none" if self._engine is None else self._engine.client_id
        return f"PRODUCER client_id:{client_id}"

    @property
    def is_running(self) -> bool:
        return self._engine is not None

    def startup(self) -> None:
        """Connect. Raises: ClientException: the proxy does not answer."""
        if self.is_running:
            raise IllegalStateException("producer is running already.")
        settings = self.client_configuration.settings(tls=self._tls)
        with raised_as(ClientException):
            made = (
                engine.Producer(_GROUP, **settings)
                if self._checker is None
                else TransactionProducer(_GROUP, check=self._check, topics=self.topics, **settings)
            )
            made.start()
        self._engine = made

    def shutdown(self) -> None:
        """Finish what is being sent, and disconnect; no effect before the start."""
        made, self._engine = self._engine, None
        if made is not None:
            with raised_as(ClientException):
                made.close()

    def send(self, message: Message, transaction: Transaction | None = None) -> SendReceipt:
        """Send a message; with a message group behind its last one.

        Raises: ClientException: the proxy refused it, or it is not known whether it is stored.
        """
        made, sent = self._live(), message.to_send()
        with raised_as(ClientException):
            if transaction is None:
                return SendReceipt(made.send(sent, sharding_key=message.message_group))
            if transaction.has_message:
                raise IllegalArgumentException("message already existed in transaction.")
            # The state comes with `Transaction.commit`; until then brokers ask the checker.
            half = self._transactional().send_in_transaction(
                sent, execute=lambda message, argument: TransactionState.UNKNOWN
            )
        transaction.begin(sent, half)
        message.message_id = half.message_id
        return SendReceipt(half, half.message_id)

    def send_async(self, message: Message) -> Future[SendReceipt]:
        """Send without waiting; return a future of the receipt."""
        outcome: Future[SendReceipt] = Future()

        def ended(sent: Future[Receipt]) -> None:
            error = sent.exception()
            if error is None:
                outcome.set_result(SendReceipt(sent.result()))
                return
            failure = ClientException(str(error))
            failure.__cause__ = error
            if isinstance(error, OrderMQError):
                translated(failure, error)
            outcome.set_exception(failure)

        made, sent = self._live(), message.to_send()
        with raised_as(ClientException):
            made.send_nowait(sent, sharding_key=message.message_group).add_done_callback(ended)
        return outcome

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """Delete a delayed message that is not due yet; return its id."""
        made = self._live()
        with raised_as(ClientException):
            return made.recall(topic, recall_handle)

    def begin_transaction(self) -> Transaction:
        """Return a transaction for one `send`."""
        self._live()
        self._transactional()
        return Transaction(self)

    def end_transaction(
        self, message: SentMessage, receipt: Receipt, state: TransactionState
    ) -> None:
        """Tell the broker the state of a transaction; `Transaction` calls this."""
        self._live()
        with raised_as(ClientException):
            self._transactional().end_transaction(message, receipt, state)

    def _live(self) -> engine.Producer:
        if self._engine is None:
            raise IllegalStateException("producer is not running now.")
        return self._engine

    def _transactional(self) -> TransactionProducer:
        if not isinstance(self._engine, TransactionProducer):
            raise IllegalArgumentException("Transaction checker should not be null.")
        return self._engine

    def _check(self, view: MessageView) -> TransactionState:
        assert self._checker is not None
        answer = self._checker.check(Message.received(view))
        return _STATES.get(answer, TransactionState.UNKNOWN)
