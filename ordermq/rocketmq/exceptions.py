"""Exceptions of the old clients; the adapters translate errors of ordermq into them.

Each has the error of ordermq that caused it as `__cause__`, and its where-fields (topic, broker,
...). They are part of the one tree, so `except OrderMQError` catches them too. `ffi_check` is
gone: it turned the numbers of a C library into these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ordermq.errors import OrderMQError, own_text


class RocketMQException(OrderMQError):
    """The base of all errors of `ordermq.rocketmq`."""

    code = "rocketmq"

    def __init_subclass__(cls) -> None:
        # Programs derive from these without an error code; each class here has its own.
        if "code" in cls.__dict__:
            super().__init_subclass__()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class NullPointerException(RocketMQException):
    """A required argument is missing."""

    code = "rocketmq-null-pointer"


class MallocFailed(RocketMQException):
    """Never raised here; Python's MemoryError is."""

    code = "rocketmq-malloc"


class ProducerException(RocketMQException):
    """A producer failed."""

    code = "rocketmq-producer"


class ProducerStartFailed(ProducerException):
    """The producer could not start."""

    code = "rocketmq-producer-start"


class ProducerSendSyncFailed(ProducerException):
    """The message was refused, or its outcome is unknown; see `__cause__`."""

    code = "rocketmq-send-sync"


class ProducerSendOnewayFailed(ProducerException):
    """The message could not be handed to the network."""

    code = "rocketmq-send-oneway"


class ProducerSendOrderlyFailed(ProducerException):
    """As ProducerSendSyncFailed, for a message with a place in an order."""

    code = "rocketmq-send-orderly"


class ProducerSendAsyncFailed(ProducerException):
    """The error that an exception callback gets.

    Args:
        error: the broker's response code, else -1.
        file, line: of the C++ source once; empty and 0.
        type: the class of the cause.
    """

    code = "rocketmq-send-async"

    def __init__(self, msg: str, error: int, file: str, line: int, type: str) -> None:
        super().__init__(msg)
        self.error = error
        self.file = file
        self.line = line
        self.type = type


class ConsumerException(RocketMQException):
    """A consumer failed."""

    code = "rocketmq-consumer"


class PushConsumerStartFailed(ConsumerException):
    """The push consumer could not start."""

    code = "rocketmq-push-start"


class PullConsumerStartFailed(ConsumerException):
    """The pull consumer could not start."""

    code = "rocketmq-pull-start"


class PullConsumerFetchMQFailed(ConsumerException):
    """The queues of a topic could not be asked for."""

    code = "rocketmq-pull-queues"


class PullConsumerFetchMessageFailed(ConsumerException):
    """A queue could not be pulled."""

    code = "rocketmq-pull-messages"


@contextmanager
def raised_as(kind: type[RocketMQException]) -> Iterator[None]:
    """Raise what ordermq raises inside as `kind`, with the same text and place."""
    try:
        yield
    except RocketMQException:
        raise
    except OrderMQError as error:
        raise translated(kind(str(error)), error) from error


def translated(old: RocketMQException, error: OrderMQError) -> RocketMQException:
    """Return `old` with the topic, queue and broker of `error`."""
    old.__dict__.update(error.__dict__)
    return old


def async_failure(error: BaseException) -> ProducerSendAsyncFailed:
    """Return the error that an exception callback gets for `error`."""
    old = ProducerSendAsyncFailed(
        own_text(error) or type(error).__name__,
        getattr(error, "response_code", -1),
        "",
        0,
        type(error).__name__,
    )
    old.__cause__ = error
    if isinstance(error, OrderMQError):
        translated(old, error)
    return old
