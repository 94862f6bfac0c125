"""Errors: one tree under `OrderMQError`.

Every class has a stable `code` and a flag `retriable`, which is true if the same call may succeed
later. Topic, queue, group and the like are attributes, and are appended to the message.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_WHERE = ("topic", "broker", "queue_id", "group", "offset", "epoch", "address")


class OrderMQError(Exception):
    """Base of all errors of ordermq.

    Args:
        message: the failure, and what to do about it.
        topic, broker, queue_id, group, offset, epoch, address: place of it, as far as known.
    """

    code: ClassVar[str] = "ordermq"
    retriable: ClassVar[bool] = False
    _codes: ClassVar[dict[str, type[OrderMQError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        code = cls.__dict__.get("code")
        if code is None or code in OrderMQError._codes:
            raise TypeError(f"{cls.__name__} needs a unique error code, got {code!r}")
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
        # Errors are pickled between processes (Spark, multiprocessing), and the default would call
        # the constructor without its keyword-only arguments.
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(
    kind: type[OrderMQError], arguments: tuple[Any, ...], members: dict[str, Any]
) -> OrderMQError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments  # an OSError, as a RequestTimeout is, takes them in its constructor only
    error.__dict__.update(members)
    return error


def own_text(error: BaseException) -> str:
    """Return the text of an exception of code that is not ours.

    Its `__str__` may raise itself, as one does that reads an attribute which the exception lacks.
    What that raises counts for nothing: a failure that cannot be told is a failure all the same.
    """
    try:
        return str(error)
    except BaseException as raised:  # noqa: BLE001 - of the exception's own code
        return f"<no text: its __str__ raised {type(raised).__name__}>"


def error_text(error: BaseException) -> str:
    """Return type and text of an exception of code that is not ours: "ValueError: no price"."""
    return f"{type(error).__name__}: {own_text(error)}"


def exc_info_of(error: BaseException) -> ExcInfo:
    """Return what `logging` takes as `exc_info`.

    It leaves the stack of an exception out that counts as false, as an empty collection does.
    """
    return type(error), error, error.__traceback__


def parts_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and of a group, which `asyncio.TaskGroup` raises, each one in it."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


class ConfigError(OrderMQError, ValueError):
    """A setting, name or argument is invalid."""

    code = "config"


class StateError(OrderMQError, RuntimeError):
    """The call does not fit the object's state, such as a send on a closed producer."""

    code = "state"


class UsedAfterFork(StateError):
    """The object belongs to another process: this one is its forked child."""

    code = "used-after-fork"


class RemotingError(OrderMQError):
    """A request to a broker or name server failed."""

    code = "remoting"
    retriable = True


class ConnectFailed(RemotingError, ConnectionError):
    """The server could not be reached; nothing was sent."""

    code = "connect-failed"
    retriable = True


class ConnectionLost(RemotingError, ConnectionError):
    """The connection broke before the response; the outcome of the request is unknown."""

    code = "connection-lost"
    retriable = True


class RequestTimeout(RemotingError, TimeoutError):
    """No response in time; the outcome of the request is unknown."""

    code = "request-timeout"
    retriable = True


class ReplyTimeout(OrderMQError, TimeoutError):
    """No consumer replied to a request in time; one may still process it."""

    code = "reply-timeout"


class NoThread(OrderMQError, RuntimeError):
    """The system gives this process no further thread."""

    code = "no-thread"
    retriable = True


class ProtocolError(RemotingError):
    """Received bytes do not follow the protocol."""

    code = "protocol"
    retriable = False


class DecodeError(ProtocolError):
    """The body of a received message cannot be decoded."""

    code = "decode"


class ChangeRefused(OrderMQError):
    """A change of a database cannot be read or applied as it is; nothing of it was done."""

    code = "change-refused"


class BrokerError(RemotingError):
    """A broker or name server answered with a code other than success.

    Args:
        message: the request that failed, and the server's remark.
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


class RequestTooLarge(BrokerError):
    """A broker stored nothing of a request because it has too many bytes (`maxMessageSize`)."""

    code = "request-too-large"


class RouteError(OrderMQError):
    """No broker is known for the topic, or no name server answers."""

    code = "route"
    retriable = True


class OrderingError(OrderMQError):
    """The operation was refused because it would break the order."""

    code = "ordering"


class Fenced(OrderingError):
    """The broker refused an operation of an outdated lock epoch
    (docs/internals/semantics.md#fencing).
    """

    code = "fenced"


class StaleOwner(Fenced):
    """An offset store knows a newer owner of the queue, or is ahead of it; nothing was written."""

    code = "stale-owner"


class KeyFailed(OrderingError):
    """An earlier send of this sharding key has an unknown outcome
    (docs/internals/semantics.md#ordered-sends).
    """

    code = "key-failed"


class LockLost(OrderingError):
    """Another member holds the queue's lock now; continuing would process it twice."""

    code = "lock-lost"


class FunctionFailed(OrderMQError):
    """A user's function raised an exception, which is the cause."""

    code = "function-failed"


class StoreError(OrderMQError):
    """The embedded broker's store, an offset file, an offset store or the stored state of a Spark
    stage could not be read or written.
    """

    code = "store"


class TransactionConflict(OrderMQError):
    """A broker had ended a transaction otherwise before it learned the state of `execute`.

    It had given it up after its last check, or followed the `check` of another producer.
    """

    code = "transaction-conflict"


class DataLoss(OrderMQError):
    """Messages to be read no longer exist: they expired or were lost."""

    code = "data-loss"


class LockRefused(OrderingError):
    """Another member holds the queue's lock and did not release it in time."""

    code = "lock-refused"
