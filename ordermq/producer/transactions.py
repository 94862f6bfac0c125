"""Transactions: a message that consumers get only if a local transaction came to be.

The broker keeps the message aside, as half of a transaction; then the local half is executed,
and the broker hears how it went. If it does not hear, it asks a live producer of the group.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from ordermq.client.session import ClientSession
from ordermq.errors import ConfigError, OrderMQError, ProtocolError
from ordermq.model import properties as props
from ordermq.model.message import Message, MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import unwrapped
from ordermq.model.status import SendReceipt, SendStatus, TransactionReceipt, TransactionState
from ordermq.model.stored_message import StoredMessage
from ordermq.producer.accumulator import Parcel
from ordermq.producer.pending_message import Entry
from ordermq.producer.producer import Producer
from ordermq.producer.selectors import ShardingKey
from ordermq.producer.waiters import Awaited, Together
from ordermq.remoting.codes import RequestCode, ResponseCode, TransactionFlag
from ordermq.remoting.command import Command
from ordermq.remoting.headers import CheckTransactionHeader, EndTransactionHeader

_log = logging.getLogger("ordermq.producer")
_PHYSICAL_OFFSET_AT = -16  # a stored message's id ends with its physical offset, 16 hex digits
_FLAGS = {
    TransactionState.COMMIT: TransactionFlag.COMMIT,
    TransactionState.ROLLBACK: TransactionFlag.ROLLBACK,
    TransactionState.UNKNOWN: TransactionFlag.NONE,
}

_T = TypeVar("_T")
Execute = Callable[[Message, Any], TransactionState | None]
AsyncExecute = Callable[[Message, Any], Awaitable[TransactionState | None]]
_Told = tuple[TransactionState, str | None]  # how a transaction ends, and why if not known
Check = Callable[[MessageView], TransactionState | None]


class TransactionListener(Protocol):
    """The local half of transactions. None is UNKNOWN, and so is what raises, after a log."""

    def execute(self, message: Message, argument: Any) -> TransactionState | None:
        """Do the local transaction of a message the broker has.

        Called on the thread that sends. `message.transaction_id` is what `check` will see as
        its `message_id`: keep it with the transaction, or find the transaction by your own keys.
        """

    def check(self, message: MessageView) -> TransactionState | None:
        """Tell how the local transaction of a message went, perhaps one of another process.

        Called on a check thread, for as long as the answer is UNKNOWN.
        """


class TransactionProducer(Producer):
    """A producer whose messages may be halves of transactions.

    Args:
        group: the producer group; any live member of it is asked how a transaction stands.
        listener: executes and checks; or give the functions `execute` and `check`.
        topics: their brokers can ask from `start` on; else from the first send of a topic on.
            Give them, so that a process that begins again answers for the one before it.
        others: as of `Producer`.
    Raises: ConfigError: no `check`, or both a listener and functions.

    What `Producer` does is done here too; only `send_in_transaction` makes half messages.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener | None = None,
        *,
        execute: Execute | None = None,
        check: Check | None = None,
        topics: Sequence[str] = (),
        **others: Any,
    ) -> None:
        super().__init__(group, **others)
        if listener is not None:
            if execute is not None or check is not None:
                raise ConfigError("give a listener or functions, not both", group=group)
            execute, check = listener.execute, listener.check
        if check is None:
            raise ConfigError(
                "a transaction producer needs `check`: brokers ask it for every transaction they "
                "heard nothing of",
                group=group,
            )
        self._execute = execute
        self._check = check
        self._topics = tuple(topics)
        self._checks: concurrent.futures.ThreadPoolExecutor | None = None
        self._checking: set[concurrent.futures.Future[None]] = set()

    def start(self) -> None:
        """Get ready; the brokers of `topics` are told that they may ask.

        Raises: RouteError: no name server answers.
        """
        self._checks = concurrent.futures.ThreadPoolExecutor(
            self.config.transaction.check_thread_count, "ordermq-check"
        )
        super().start()
        try:
            self._register_with_all()
        except BaseException:
            self.close()
            raise

    def _register_with_all(self) -> None:
        client = self._live()

        async def register() -> None:
            for topic in self._topics:
                await client.routes.get(topic)
            for address in client.routes.masters():
                await client.heartbeats.register_with(address)

        client.call(register())

    def close(self, timeout_s: float = 30.0) -> None:
        """Finish running checks and what is under way, at most `timeout_s` each; disconnect."""
        if self._checks is not None:
            self._checks.shutdown(wait=False, cancel_futures=True)
            running = concurrent.futures.wait(self._checking, timeout_s).not_done
            if running:
                _log.error("closed after %.0f s with %d checks running", timeout_s, len(running))
        super().close(timeout_s)

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        execute: Execute | None = None,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> TransactionReceipt:
        """Send half a transaction, execute the local half, tell the broker how it went.

        The local half is not executed if the broker stored the message less safely than it was
        asked to (`SendStatus`); the transaction is then rolled back.

        Args:
            argument: handed to `execute`.
            execute: for this message, in place of the producer's.
            sharding_key: messages of one key enter their queue in the order their transactions
                were committed; the commit is then awaited.
            queue: send there, whatever the selector says.
        Returns: the receipt with the state the broker was told. If it could not be told, that
            is logged: it will ask; a sharding key fails then until `resolve`.
        Raises: ConfigError: the message is delayed, or there is no `execute`; else as `send`:
            nothing was executed.
        """
        client = self._live()
        execute = _executable(message, execute or self._execute)
        together = Together(1)
        entry = self._half(message, sharding_key, together.on_done)
        target = client.runtime.call(self._registered_target(client, message, sharding_key, queue))
        self._hand_in(Parcel(message, sharding_key, target, [entry]))
        together.wait()
        half = entry.outcome()
        message.transaction_id = half.message_id
        told = _unsafe(half) or _state(
            lambda: execute(message, argument), "execute", half.message_id
        )
        client.runtime.call(self._end(client, message, half, sharding_key, *told))
        return _receipt(half, told[0])

    async def asend_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        execute: Execute | AsyncExecute | None = None,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
    ) -> TransactionReceipt:
        """`send_in_transaction` for asyncio code, on any loop; keep the order by awaiting in order.

        A caller that is cancelled while `execute` runs leaves the transaction open: the broker
        asks how it stands.

        Args:
            execute: an `async def` is awaited on the caller's loop; a plain function, the
                producer's too, runs on a thread of that loop, which goes on meanwhile.
            others: as of `send_in_transaction`.
        Returns, raises: as `send_in_transaction`.
        """
        client = self._live()
        executor = _executable(message, execute or self._execute)
        awaited = Awaited()
        entry = self._half(message, sharding_key, awaited.on_done)
        target = await asyncio.wrap_future(
            client.runtime.submit(self._registered_target(client, message, sharding_key, queue))
        )
        self._hand_in(Parcel(message, sharding_key, target, [entry]))
        half = await awaited.receipt
        message.transaction_id = half.message_id
        told = _unsafe(half) or await _executed(executor, message, argument, half.message_id)
        ending = client.runtime.submit(self._end(client, message, half, sharding_key, *told))
        await asyncio.shield(asyncio.wrap_future(ending))  # it is told, whoever is cancelled
        return _receipt(half, told[0])

    def _half(
        self, message: Message, key: ShardingKey | None, on_done: Callable[[Entry], None]
    ) -> Entry:
        marks = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: self.group}
        entry = self._entries.one(message, key, on_done, marks)
        entry.is_alone, entry.sys_flag = True, TransactionFlag.PREPARED
        return entry

    # On the I/O thread.

    async def _registered_target(
        self,
        client: ClientSession,
        message: Message,
        key: ShardingKey | None,
        queue: MessageQueue | None,
    ) -> MessageQueue:
        """Where a half message goes; its broker has been told that it may ask us."""
        await self._targets.learn(client.routes, message.topic)
        target = self._targets.choose(client.routes, message, key, queue)
        await client.heartbeats.register_with(client.routes.master_of(target.broker_name))
        return target

    async def _end(
        self,
        client: ClientSession,
        message: Message,
        half: SendReceipt,
        key: ShardingKey | None,
        state: TransactionState,
        remark: str | None,
    ) -> None:
        header = EndTransactionHeader(
            self.group,
            half.queue_offset,
            int(half.offset_message_id[_PHYSICAL_OFFSET_AT:], 16),
            _FLAGS[state],
            half.message_id,
            message.topic,
            False,
            half.message_id,
            half.message_queue.broker_name,
        )
        is_awaited = key is not None and header.commit_or_rollback == TransactionFlag.COMMIT
        timeout_ms = self.config.send.send_timeout_ms if is_awaited else None
        try:
            address = client.routes.master_of(half.message_queue.broker_name)
            await client.api.end_transaction(address, header, timeout_ms, remark)
        except OrderMQError as error:
            _log.warning(
                "transaction %s: the broker did not confirm its end and will ask: %s",
                half.message_id, error,
            )  # fmt: skip
            if key is not None:
                self._lane(half.message_queue).fail(key, f"commit: {error}")

    def _on_request(self, address: str, request: Command) -> Command | None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._on_request(address, request)
        hold_max = self.config.transaction.check_request_hold_max
        if len(self._checking) >= hold_max:
            _log.warning("%s: not checked, %d checks wait already", address, hold_max)
            return request.reply(ResponseCode.SYSTEM_BUSY)
        try:
            header = CheckTransactionHeader.from_ext(request.ext)
            message = _view(request.body, header, self.config.remoting.namespace)
        except ProtocolError as error:
            _log.warning("%s: cannot be checked: %s", address, error)
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        try:
            assert self._checks is not None
            checking = self._checks.submit(self._run_check, address, header, message)
        except RuntimeError:  # the producer is being closed; another member is asked next time
            return request.reply(ResponseCode.SYSTEM_BUSY)
        self._checking.add(checking)
        checking.add_done_callback(self._checking.discard)
        return request.reply(ResponseCode.SUCCESS)

    # On a check thread.

    def _run_check(
        self, address: str, header: CheckTransactionHeader, message: MessageView
    ) -> None:
        state, remark = _state(lambda: self._check(message), "check", message.message_id)
        ended = EndTransactionHeader(
            self.group,
            header.half_offset,
            header.physical_offset,
            _FLAGS[state],
            message.message_id,
            header.topic,
            True,
            header.transaction_id,
            header.broker_name,
        )
        client = self._client
        if client is None:
            return
        try:
            client.runtime.call(client.api.end_transaction(address, ended, None, remark))
        except OrderMQError as error:
            _log.warning(
                "transaction %s: %s was not told its state and will ask again: %s",
                message.message_id, address, error,
            )  # fmt: skip


def _executable(message: Message, execute: _T | None) -> _T:
    """What executes the local half of a message that may be sent as one.

    Raises: ConfigError: nothing does, or it may not.
    """
    if execute is None:
        raise ConfigError("nothing to execute: give `execute` here or to the producer")
    if message.is_delayed:
        raise ConfigError(
            "half of a transaction cannot be delayed: send it when it is due, or have a "
            "consumer send the delayed message",
            topic=message.topic,
        )
    return execute


def _unsafe(half: SendReceipt) -> _Told | None:
    """How a transaction ends whose half is stored less safely than asked."""
    if half.status is SendStatus.SEND_OK:
        return None
    return TransactionState.ROLLBACK, f"stored as {half.status}"


def _state(ask: Callable[[], TransactionState | None], name: str, transaction_id: str) -> _Told:
    """What a listener says, and why if it is not known."""
    try:
        return _said(ask())
    except Exception as error:  # noqa: BLE001 - logged, and the broker is told
        return _raised(error, name, transaction_id)


async def _executed(
    execute: Callable[[Message, Any], Awaitable[TransactionState | None] | TransactionState | None],
    message: Message,
    argument: Any,
    transaction_id: str,
) -> _Told:
    """What the local half says: on this loop if it is `async def`, else on a thread of it."""
    try:
        is_async = inspect.iscoroutinefunction(execute)
        if is_async:
            said = execute(message, argument)
        else:
            said = await asyncio.to_thread(execute, message, argument)
        # A function may make the coroutine that another wrote.
        return _said(await said if inspect.isawaitable(said) else said)
    except Exception as error:  # noqa: BLE001 - logged, and the broker is told
        return _raised(error, "execute", transaction_id)


def _said(state: TransactionState | None) -> _Told:
    return TransactionState.UNKNOWN if state is None else TransactionState(state), None


def _raised(error: Exception, name: str, transaction_id: str) -> _Told:
    _log.error(
        "transaction %s: %s failed, its state is unknown", transaction_id, name, exc_info=error
    )
    return TransactionState.UNKNOWN, f"{name} raised {error!r}"


def _receipt(half: SendReceipt, state: TransactionState) -> TransactionReceipt:
    return TransactionReceipt(
        half.message_queue,
        half.queue_offset,
        half.message_id,
        half.offset_message_id,
        half.status,
        state=state,
    )


def _view(record: bytes, header: CheckTransactionHeader, namespace: str) -> MessageView:
    """The message a broker asks about.

    Raises: ProtocolError: there is none in the request.
    """
    stored = StoredMessage.read(record)
    queue = MessageQueue(
        unwrapped(namespace, stored.topic), header.broker_name or "", stored.queue_id
    )
    return MessageBatch(queue, record)[0]
