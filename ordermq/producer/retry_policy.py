"""Retry decisions after a failed attempt to send (docs/internals/semantics.md#ordered-sends).

Pure functions of the error, the attempts so far and the settings. The decisions are carried out by
`queue_sender.InFlightBatch`.
"""

from __future__ import annotations

from enum import Enum, auto

from ordermq.client.connections import is_busy
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

# Refusals that are about this broker rather than the message: another broker may accept it.
_THIS_BROKER = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.VERSION_NOT_SUPPORTED,
    }
)
# Refusals after which the route tells more: a topic that was made anew may have fewer queues.
_OF_ANOTHER_ROUTE = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    }
)


class AfterFailure(Enum):
    """The next step of a send that failed."""

    SEND_AGAIN = auto()  # the same message to the same queue, before any later message
    REFUSED = auto()  # certainly not stored: raise, the key may go on
    UNKNOWN = auto()  # perhaps stored: raise, and fail the key until the user resolves it


def is_outcome_unknown(error: OrderMQError) -> bool:
    """Return True if the attempt may have been stored: no valid answer came."""
    return isinstance(error, RequestTimeout | ConnectionLost | ProtocolError)


def decide(
    error: OrderMQError, attempts: int, outcome_unknown: bool, config: SendConfig
) -> AfterFailure:
    """Return the step after `error` ended attempt number `attempts`.

    A time-out or a broken connection leaves the outcome open. Only the same message may follow,
    or a later one could be stored before it. Busy and unreachable brokers stored nothing.

    Args:
        outcome_unknown: an earlier attempt of this message may have been stored; no later
            refusal settles that.
    """
    # A ProtocolError is not retried: the broker did answer, so a copy would be stored again.
    unanswered = isinstance(error, RequestTimeout | ConnectionLost | ConnectFailed)
    busy = isinstance(error, BrokerError) and is_busy(error)
    if (unanswered or busy) and attempts <= config.retry_times:
        return AfterFailure.SEND_AGAIN
    unknown = outcome_unknown or is_outcome_unknown(error)
    return AfterFailure.UNKNOWN if unknown else AfterFailure.REFUSED


def is_route_in_doubt(error: OrderMQError) -> bool:
    """Return True if the topic's route may be another by now: nothing came, a slave answered, or
    the broker has no such topic or queue, or takes no messages for it."""
    # A replica that was the master refuses sends as any broker does whose disk is full.
    if isinstance(error, BrokerError):
        return error.response_code in _OF_ANOTHER_ROUTE
    return True


def may_use_fallback_broker(error: OrderMQError) -> bool:
    """Return True if another broker may store an unordered message that failed with `error`."""
    # After a time-out this may duplicate the message, as Java's retry does; nothing is overtaken,
    # because unordered messages have no place to keep.
    if isinstance(error, BrokerError):
        return is_busy(error) or error.response_code in _THIS_BROKER
    return isinstance(error, RequestTimeout | ConnectionLost | ConnectFailed)


def retry_delay_ms(attempts: int, config: SendConfig) -> int:
    """Return the pause before the next attempt: doubled each time, up to 16 times the first."""
    return int(config.retry_delay_ms * min(1 << (attempts - 1), 16))
