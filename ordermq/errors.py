"""The error tree: what went wrong, where, and what to do next.

Every class has a stable `code`, says by `retriable` whether the same call may succeed
later, and takes where-fields that are kept as attributes and appended to the text.
"""

from __future__ import annotations

from typing import Any, ClassVar

_WHERE = ("topic", "broker", "queue_id", "group", "offset", "epoch", "address")


class OrderMQError(Exception):
    """The root of everything ordermq raises.

    Args:
        message: what happened and what to do, one sentence each.
        topic, broker, queue_id, group, offset, epoch, address: where, as far as known.
    """

    code: ClassVar[str] = "ordermq"
    retriable: ClassVar[bool] = False
    _codes: ClassVar[dict[str, type[OrderMQError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        code = cls.__dict__.get("code")
        if code is None or code in OrderMQError._codes:
            raise TypeError(f"{cls.__name__} needs an error code of its own, not {code!r}")
        OrderMQError._codes[code] = cls

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        broker: str | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        offset: int | None = None,
        epoch: int | None = None,
        address: str | None = None,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id
        self.group = group
        self.offset = offset
        self.epoch = epoch
        self.address = address
        where = ", ".join(
            f"{name}={value!r}" for name in _WHERE if (value := getattr(self, name)) is not None
        )
        super().__init__(f"{message} [{where}]" if where else message)

    def __reduce__(self) -> tuple[Any, ...]:
        # By its members: keyword-only arguments do not survive the default way, and errors
        # travel between processes (Spark, multiprocessing).
        return _revive, (type(self), self.args, self.__dict__)


def _revive(
    kind: type[OrderMQError], arguments: tuple[Any, ...], members: dict[str, Any]
) -> OrderMQError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(members)
    return error


class ConfigError(OrderMQError, ValueError):
    """A setting, name or argument is out of its range."""

    code = "config"


class StateError(OrderMQError, RuntimeError):
    """The call does not fit the object's state, as sending on a closed producer."""

    code = "state"


class RemotingError(OrderMQError):
    """Something between us and the peer failed."""

    code = "remoting"
    retriable = True


class ConnectFailed(RemotingError, ConnectionError):
    """The peer could not be reached: nothing was sent."""

    code = "connect-failed"
    retriable = True


class ConnectionLost(RemotingError, ConnectionError):
    """The connection broke with the request under way: its outcome is unknown."""

    code = "connection-lost"
    retriable = True


class RequestTimeout(RemotingError, TimeoutError):
    """No answer in time: the outcome at the peer is unknown."""

    code = "request-timeout"
    retriable = True


class ReplyTimeout(OrderMQError, TimeoutError):
    """No reply to a request in time; the request may yet be carried out."""

    code = "reply-timeout"


class ProtocolError(RemotingError):
    """The peer's bytes do not follow the protocol."""

    code = "protocol"
    retriable = False


class BrokerError(RemotingError):
    """The peer answered with a code other than success.

    Args:
        message: the peer's remark, in our words.
        response_code: docs/internals/protocol.md#response-codes.
    """

    code = "broker"
    retriable = False

    def __init__(
        self,
        message: str,
        *,
        response_code: int,
        topic: str | None = None,
        broker: str | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        offset: int | None = None,
        address: str | None = None,
    ) -> None:
        self.response_code = response_code
        super().__init__(
            f"{message} (response code {response_code})",
            topic=topic,
            broker=broker,
            queue_id=queue_id,
            group=group,
            offset=offset,
            address=address,
        )


class RouteError(OrderMQError):
    """No name server knows a broker for this topic."""

    code = "route"
    retriable = True


class OrderingError(OrderMQError):
    """Going on would break the order; the operation was refused."""

    code = "ordering"


class Fenced(OrderingError):
    """The broker refused an operation of an older lock epoch
    (docs/internals/semantics.md#fencing)."""

    code = "fenced"


class KeyFailed(OrderingError):
    """An earlier send of this sharding key has an unknown outcome
    (docs/internals/semantics.md#ordered-sends)."""

    code = "key-failed"


class LockLost(OrderingError):
    """A queue's lock is another member's now: going on would be beside it."""

    code = "lock-lost"


class FunctionFailed(OrderMQError):
    """A user's function raised on messages; what it raised is the cause."""

    code = "function-failed"


class StoreError(OrderMQError):
    """The embedded broker's store could not read or write."""

    code = "store"


class DataLoss(OrderMQError):
    """Messages that were to be read are not there any more: they expired, or were lost."""

    code = "data-loss"


class LockRefused(OrderingError):
    """A queue's lock is another member's, and was not given up in the time we may wait."""

    code = "lock-refused"
