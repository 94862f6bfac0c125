"""What to do after a failed try to send (docs/internals/semantics.md#ordered-sends); pure
functions."""

from __future__ import annotations

from enum import Enum, auto

from ordermq.config import SendConfig
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    OrderMQError,
    ProtocolError,
    RequestTimeout,
)
from ordermq.remoting.codes import ResponseCode

_BUSY = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


_THIS_BROKER = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.VERSION_NOT_SUPPORTED,
    }
)


class AfterFailure(Enum):
    """The next step."""

    SEND_AGAIN = auto()  # the same message to the same queue, before any successor
    REFUSED = auto()  # surely not stored: raise, the key may go on
    UNKNOWN = auto()  # perhaps stored: raise, and fail the key until the user resolves it


def is_doubtful(error: OrderMQError) -> bool:
    """Whether a try that ended so may have been stored: no answer came, or not a sound one."""
    return isinstance(error, RequestTimeout | ConnectionLost | ProtocolError)


def decide(error: OrderMQError, tries: int, was_doubtful: bool, config: SendConfig) -> AfterFailure:
    """What follows `error` after `tries` tries.

    A time-out or a broken connection leaves the outcome open; only the same message may
    follow, or a later one could stand before it. Busy brokers, and brokers that could not be
    reached at all, stored nothing.

    Args:
        was_doubtful: an earlier try of this message may have been stored; then no refusal
            of a later one settles the outcome.
    """
    unanswered = isinstance(error, RequestTimeout | ConnectionLost | ConnectFailed)
    busy = isinstance(error, BrokerError) and error.response_code in _BUSY
    if (unanswered or busy) and tries <= config.retry_times:
        return AfterFailure.SEND_AGAIN
    doubtful = was_doubtful or is_doubtful(error)
    return AfterFailure.UNKNOWN if doubtful else AfterFailure.REFUSED


def may_go_elsewhere(error: OrderMQError) -> bool:
    """Whether another broker may take what this one did not; for unordered messages only."""
    if isinstance(error, BrokerError):
        return error.response_code in _BUSY or error.response_code in _THIS_BROKER
    return isinstance(error, RequestTimeout | ConnectionLost | ConnectFailed)


def delay_ms(tries: int, config: SendConfig) -> int:
    """The pause before the next try, doubled each time up to 16 times the first."""
    return int(config.retry_delay_ms * min(1 << (tries - 1), 16))
