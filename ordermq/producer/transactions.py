"""Transactions: messages that consumers get only if a local transaction was committed.

The broker stores a half message that no consumer sees. Then the local transaction runs, and the
broker is told its state. If it hears nothing, it asks a live producer of the group.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, TypeVar, Unpack

from ordermq.callables import is_async, require_callback, require_methods
from ordermq.client.runtime import result_of
from ordermq.client.session import ClientSession
from ordermq.client.user_code import on_thread
from ordermq.clock import Clock
from ordermq.config import ProducerConfig
from ordermq.errors import (
    BrokerError,
    ConfigError,
    OrderMQError,
    ProtocolError,
    TransactionConflict,
    error_text,
    exc_info_of,
)
from ordermq.model import properties as props
from ordermq.model.codec import Codec
from ordermq.model.message import Message, MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_topic, unwrapped
from ordermq.model.receipts import SendReceipt
from ordermq.model.status import SendStatus, TransactionState
from ordermq.model.stored_message import StoredMessage, split_records
from ordermq.model.transaction_receipt import TransactionReceipt
from ordermq.producer.pending_message import PendingMessage, ThreadWaiter
from ordermq.producer.producer import Producer
from ordermq.producer.queue_selector import QueueSelector, ShardingKey
from ordermq.producer.send_arguments import refuse_send
from ordermq.producer.thread_execution import ThreadExecution
from ordermq.remoting.codes import RequestCode, ResponseCode, TransactionFlag
from ordermq.remoting.command import Command
from ordermq.remoting.connection import Connection
from ordermq.remoting.rare_headers import CheckTransactionHeader, EndTransactionHeader
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.config.settings import ProducerSettings

_log = logging.getLogger("ordermq.producer")
_DECISIONS_KEPT = 10_000  # brokers ask within minutes
_ASKED_AFTER_MS = 1_000  # brokers do not ask before, but by a setting of the message
_CROSSING_MS = 1_000  # in which a broker works an end that it has, and finds its message by its id
_MOST_FOUND = 32  # brokers find by a hash: others may be among them
_SLOW_EXECUTE_MS = 50  # behind this a round trip is cheap, and a broker may have ended it itself
# A stored message's id ends with its physical offset, 16 hex digits.
_PHYSICAL_OFFSET_AT = -16
# Parts of remarks: the embedded broker's, and RocketMQ's, which has ILLEGAL_OPERATION for what
# ends after its time for it.
_ENDED = ("has already ended", "Find prepared transaction message failed")
_FLAGS = {
    TransactionState.COMMIT: TransactionFlag.COMMIT,
    TransactionState.ROLLBACK: TransactionFlag.ROLLBACK,
    TransactionState.UNKNOWN: TransactionFlag.NONE,
}

_T = TypeVar("_T")
_SPARE = TransactionState.ROLLBACK, "a copy of it is committed"
Executed = TransactionState | Awaitable[TransactionState | None] | None  # of an `async def`, too
Execute = Callable[[Message, Any], Executed]
_Outcome = tuple[TransactionState, str | None]  # the state, and the reason if it is unknown
Check = Callable[[MessageView], TransactionState | None]


class TransactionListener(Protocol):
    """Local transactions. None means UNKNOWN, and so does an exception, which is logged."""

    def execute(self, message: Message, argument: Any, /) -> Executed:
        """Run the local transaction of a message that the broker has stored.

        Called on the thread that sends. `check` gets `message.transaction_id` as its message's
        `message_id`: store it with the transaction, or find the transaction by your own keys.
        """

    def check(self, message: MessageView, /) -> TransactionState | None:
        """Return the state of a message's local transaction, perhaps of another process.

        Called on a check thread, again and again while the answer is UNKNOWN.
        """


class HalfMessage(Value):
    """A message of a transaction, as it is looked for in its topic.

    Args:
        born_ms: None: of this producer, which gives no id twice.
    """

    topic: str
    queue_id: int
    message_id: str
    born_ms: int | None

    def is_of(self, stored: StoredMessage, namespace: str) -> bool:
        """Return whether it became this message of its topic."""
        # Java's client sends an object again under its first id: that is another transaction.
        return (
            self.born_ms in (None, stored.born_ms)
            and stored.queue_id == self.queue_id
            and unwrapped(namespace, stored.topic) == self.topic
            and props.decode_bytes(stored.properties).get(props.UNIQ_KEY) == self.message_id
        )


class TransactionProducer(Producer):
    """A producer that can also send messages in transactions.

    Args:
        group: the producer group; the broker asks any live member about a transaction.
        listener: runs and checks local transactions; or give the functions `execute`, `check`.
        topics: their brokers can ask from `start` on; else from the first send of a topic on.
            Name them, so that a restarted process answers for the one before it.
        name_servers, selector, instance_name, config, codec, clock, settings: as of `Producer`.
    Raises: ConfigError: no `check`, or both a listener and functions.

    Only `send_in_transaction` sends half messages; all other methods are those of `Producer`.
    """

    def __init__(
        self,
        group: str | None = None,
        listener: TransactionListener | None = None,
        *,
        execute: Execute | None = None,
        check: Check | None = None,
        topics: Sequence[str] = (),
        name_servers: str | Sequence[str] | None = None,
        selector: str | QueueSelector = "java",
        instance_name: str | None = None,
        config: ProducerConfig | None = None,
        codec: Codec | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(
            group,
            name_servers=name_servers,
            selector=selector,
            instance_name=instance_name,
            config=config,
            codec=codec,
            clock=clock,
            **settings,
        )
        if listener is not None:
            if execute is not None or check is not None:
                raise ConfigError("give a listener or functions, not both", group=self.group)
            require_methods("listener", listener, "execute", "check")
            execute, check = listener.execute, listener.check
        if check is None:
            raise ConfigError(
                "a transaction producer needs `check`: brokers call it for every transaction "
                "whose state they were not told",
                group=self.group,
            )
        require_callback("execute", execute)
        require_callback("check", check)
        if isinstance(topics, str):  # whose letters would be topics
            raise ConfigError(f"topics={topics!r}: expected a list of topics", group=self.group)
        self._execute = execute
        self._check = check
        self._topics = tuple(map(check_topic, topics))
        self._checks: concurrent.futures.ThreadPoolExecutor | None = None
        self._checking: set[concurrent.futures.Future[None]] = set()
        self._is_refusing = False  # further checks, told once
        # By these two checks of this producer's transactions are answered, by message id.
        self._executing: dict[str, int] = {}  # since when, in ms
        self._asked_about: set[str] = set()  # of these, those that a broker has asked about
        # The newest ones, and when each was decided, in ms.
        self._decided: OrderedDict[str, tuple[TransactionState, int]] = OrderedDict()
        # Where half messages are that a broker has asked about: the newest ones, by message id.
        self._asked_at: OrderedDict[str, CheckTransactionHeader] = OrderedDict()
        self._committing: set[str] = set()  # after a check, not answered yet; on the I/O thread
        # Over which connection the newest commits were confirmed, by message id.
        self._confirmed: OrderedDict[str, Connection] = OrderedDict()

    def start(self) -> Self:
        """Connect, register with the brokers of `topics`, which may then ask, and return self.

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
        return self

    def _register_with_all(self) -> None:
        client = self._live()

        async def register() -> None:
            await client.routes.get_all(self._topics)
            # Together: one that is away must not hold up the start for each that follows.
            masters = client.routes.masters()
            await asyncio.gather(*map(client.heartbeats.register_with, masters))

        client.runtime.call(register())

    def close(self, timeout_s: float = 30.0) -> None:
        """Finish running checks and sends, waiting at most `timeout_s` for each; disconnect.

        Raises: StateError: as `Producer.close`.
        """
        if self._client is not None:
            self._client.runtime.require_other_thread()
        if self._checks is not None:
            self._checks.shutdown(wait=False, cancel_futures=True)
            try:
                running = concurrent.futures.wait(self._checking, timeout_s).not_done
            except BaseException:  # Ctrl-C: disconnect, and wait for nothing
                super().close(0.0)
                raise
            if running:
                _log.error(
                    "closed after %.0f s with %d checks running",
                    timeout_s,
                    len(running),
                    extra=self._fields(),
                )
        super().close(timeout_s)

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *misplaced: Never,
        execute: Execute | None = None,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, tell the broker its state.

        The local transaction is not run if the broker stored the message less durably than it
        was configured to (`SendStatus`); the transaction is then rolled back.

        Args:
            argument: passed to `execute`.
            execute: for this message, in place of the producer's.
            sharding_key: messages of one key enter their queue in the order their transactions
                were committed; the commit is then awaited.
            queue: send to this queue, whatever the selector says.
        Returns: the receipt with the state the broker was told. If it could not be told, that
            is logged, and it will ask; a sharding key then fails until `resolve`.
        Raises: TransactionConflict: the broker ended it otherwise while `execute` ran.
            ConfigError: the message is delayed, or there is no `execute`; else as `send`:
            nothing was executed.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(TransactionProducer.send_in_transaction, message, misplaced, unknown)
        client = self._live_for_blocking()
        execute = _executable(message, execute or self._execute)
        waiter = ThreadWaiter()
        pending = self._half(message, sharding_key, waiter.on_done)
        state = None
        try:
            self._hand_in(message, sharding_key, queue, [pending], fallbacks=0)
            waiter.wait()
            half = pending.receipt()
            message.transaction_id = half.message_id
            state, remark = _not_durable(half) or _state(
                lambda: execute(message, argument), "execute", half.message_id
            )
            client.runtime.call(self._end(client, message, half, sharding_key, state, remark))
        finally:
            self._executed(pending, state)
        return _receipt(half, state)

    def end_transaction(
        self, message: Message, receipt: SendReceipt, state: TransactionState
    ) -> None:
        """Tell the broker the state of a transaction whose `execute` answered UNKNOWN.

        For programs that learn the state after `send_in_transaction` has returned. Until then,
        and if this call is never made, the broker asks `check`.

        Args:
            message, receipt: of `send_in_transaction`.
            state: COMMIT or ROLLBACK.
        Raises: TransactionConflict: the broker has ended it otherwise.
            ConfigError: the state is none of these.
        """
        if state not in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            raise ConfigError(f"state={state!r}: expected COMMIT or ROLLBACK", group=self.group)
        client = self._live_for_blocking()
        # Awaited, as the end of a slow `execute` is: the broker may have asked meanwhile.
        self._asked_about.add(receipt.message_id)
        try:
            client.runtime.call(self._end(client, message, receipt, None, state, None))
            self._decide(receipt.message_id, state)
        finally:
            self._asked_about.discard(receipt.message_id)

    async def asend_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *misplaced: Never,
        execute: Execute | None = None,
        sharding_key: ShardingKey | None = None,
        queue: MessageQueue | None = None,
        **unknown: Never,
    ) -> TransactionReceipt:
        """`send_in_transaction` for asyncio code, on any loop; keep the order by awaiting in order.

        A caller that is cancelled while `execute` runs leaves the transaction open: the broker
        asks for its state, once that of a plain function, which goes on, has been told.

        Args:
            execute: an `async def` is awaited on the caller's loop; a plain function, the
                producer's too, runs on a thread of that loop, which is not blocked.
            others: as of `send_in_transaction`.
        Returns, raises: as `send_in_transaction`.
        """
        if misplaced or unknown or not isinstance(message, Message):
            refuse_send(TransactionProducer.asend_in_transaction, message, misplaced, unknown)
        client = self._live()
        executor = _executable(message, execute or self._execute)
        arrivals = self._arrivals_of_loop()
        pending = self._half(message, sharding_key, arrivals)
        receipt = arrivals.receipt_of(pending)
        state: TransactionState | None = None
        execution: ThreadExecution | None = None
        try:
            self._hand_in(message, sharding_key, queue, [pending], fallbacks=0)
            half: SendReceipt = await receipt
            message.transaction_id = half.message_id
            if not is_async(executor):
                execution = ThreadExecution(
                    partial(executor, message, argument),
                    partial(self._left, client, message, half, sharding_key, pending),
                )
            state, remark = _not_durable(half) or await _executed(
                partial(on_thread, execution.run)
                if execution
                else partial(executor, message, argument),
                half.message_id,
            )
            end = self._end(client, message, half, sharding_key, state, remark)
            # Shielded: the broker is told even if the caller is cancelled now.
            await asyncio.shield(asyncio.wrap_future(client.runtime.submit(end)))
        finally:
            # What still runs on its thread ends there; until then checks get UNKNOWN.
            if execution is None or not execution.leave():
                self._executed(pending, state)
        return _receipt(half, state)

    def _left(
        self,
        client: ClientSession,
        message: Message,
        half: SendReceipt,
        key: ShardingKey | None,
        pending: PendingMessage,
        end: Callable[[], Executed],
    ) -> None:
        """Tell the end of a local transaction whose caller was cancelled; on its thread."""
        state = None
        try:
            state, remark = _state(end, "execute", half.message_id)
            client.runtime.call(self._end(client, message, half, key, state, remark))
        except OrderMQError as error:
            _log.error(
                "transaction %s, whose caller was cancelled: %s",
                half.message_id,
                error,
                extra=self._fields(half.message_queue, offset=half.queue_offset),
            )
        finally:
            self._executed(pending, state)

    def _half(
        self,
        message: Message,
        key: ShardingKey | None,
        on_done: Callable[[PendingMessage], None],
    ) -> PendingMessage:
        added = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: self.group}
        pending = self._preparation.one(message, key, on_done, added)
        pending.is_alone, pending.sys_flag = True, TransactionFlag.PREPARED
        # The broker must know the group before it can ask about this message. No other broker
        # is tried for it: a copy there would be a second transaction.
        pending.requirement = self._registration
        # Before the broker has it: it may ask from then on.
        self._executing[pending.unique_ids[0]] = self._clock.now_ms()
        return pending

    def _executed(self, pending: PendingMessage, state: TransactionState | None) -> None:
        """Note how a transaction ended; `check` is asked about one whose state is not known."""
        if state is not None and state is not TransactionState.UNKNOWN:
            self._decide(pending.unique_ids[0], state)
        self._executing.pop(pending.unique_ids[0], None)
        self._asked_about.discard(pending.unique_ids[0])

    def _decide(self, transaction_id: str, state: TransactionState) -> None:
        _keep(self._decided, transaction_id, (state, self._clock.now_ms()))

    # On the I/O thread.

    async def _end(
        self,
        client: ClientSession,
        message: Message,
        half: SendReceipt,
        key: ShardingKey | None,
        state: TransactionState,
        remark: str | None,
    ) -> None:
        half_offset = half.queue_offset
        physical_offset = int(half.offset_message_id[_PHYSICAL_OFFSET_AT:], 16)
        # RocketMQ stores a half message anew before it asks about it. The end of the former one
        # would leave the new one, which is asked about and committed a second time.
        asked_at = self._asked_at.get(half.message_id)
        if asked_at is not None:
            half_offset, physical_offset = asked_at.half_offset, asked_at.physical_offset
        if state is not TransactionState.UNKNOWN:
            self._asked_at.pop(half.message_id, None)
        header = EndTransactionHeader(
            self.group,
            half_offset,
            physical_offset,
            _FLAGS[state],
            half.message_id,
            message.topic,
            False,  # not from a check
            half.message_id,
            half.message_queue.broker_name,
        )
        # One-way, as in Java's client: a lost one is asked about. But a key's next commit must
        # not be stored first, so a commit with a key waits for the broker's answer. So does the
        # state of a transaction that the broker may have ended itself meanwhile.
        is_commit = header.commit_or_rollback == TransactionFlag.COMMIT
        is_awaited = (is_commit and key is not None) or (
            state is not TransactionState.UNKNOWN and self._is_late(half.message_id)
        )
        timeout_ms = self.config.send.send_timeout_ms if is_awaited else None
        if state is not TransactionState.UNKNOWN and await self._was_committed(
            client, half, message.topic
        ):
            if is_commit:
                return
            is_own = half.message_id in self._decided
            who = "this producer" if is_own else "another producer's check"
            raise self._conflict(half, message, state, f"{who} committed it")
        try:
            address = client.routes.master_of(half.message_queue.broker_name)
            await self._tell(client, address, header, timeout_ms, remark)
        except OrderMQError as error:
            _log.warning(
                "transaction %s: the broker did not confirm its state and will ask: %s",
                half.message_id, error,
                extra=self._fields(half.message_queue, offset=half.queue_offset),
            )  # fmt: skip
            if key is not None:
                self._failed_keys.add(message.topic, key, f"commit: {error}")
            if _is_conflict(error):
                raise self._conflict(half, message, state, str(error)) from error

    def _conflict(
        self, half: SendReceipt, message: Message, state: TransactionState, why: str
    ) -> TransactionConflict:
        return TransactionConflict(
            f"transaction {half.message_id} was to end with {state.value}, but the broker had "
            f"ended it before: {why}; compensate the local transaction or send its message anew. "
            "For slow ones raise the broker's transactionTimeOut or transactionCheckMax, and let "
            "`check` answer UNKNOWN while one may still run",
            topic=message.topic,
            group=self.group,
        )

    async def _was_committed(self, client: ClientSession, half: SendReceipt, topic: str) -> bool:
        """Return whether the `check` of another producer has committed a transaction meanwhile.

        RocketMQ would commit it a second time, and rolls back what it has committed without a word.
        """
        begun_ms = self._executing.get(half.message_id)
        if begun_ms is not None and client.clock.now_ms() - begun_ms < _ASKED_AFTER_MS:
            return False
        queue = half.message_queue
        try:
            address = client.routes.master_of(queue.broker_name)
        except OrderMQError:
            return False
        mine = HalfMessage(topic, queue.queue_id, half.message_id, None)
        return await self._is_stored(client, address, mine)

    def _is_late(self, transaction_id: str) -> bool:
        begun_ms = self._executing.get(transaction_id)
        return transaction_id in self._asked_about or (
            begun_ms is not None and self._clock.now_ms() - begun_ms >= _SLOW_EXECUTE_MS
        )

    def _on_request(self, address: str, request: Command) -> Command | None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._on_request(address, request)
        # Bounded, because `check` may be slower than brokers ask; they ask again later.
        hold_max = self.config.transaction.check_request_hold_max
        if len(self._checking) >= hold_max:
            if not self._is_refusing:
                self._is_refusing = True
                _log.warning(
                    "%s: check refused, %d checks are waiting (check_request_hold_max); further "
                    "ones are refused without a line until half of them are answered",
                    address,
                    hold_max,
                    extra=self._fields(broker=address),
                )
            return request.reply(ResponseCode.SYSTEM_BUSY)
        if len(self._checking) <= hold_max // 2:
            self._is_refusing = False
        try:
            header = CheckTransactionHeader.from_ext(request.ext)
            message = self._decoding(_view(request.body, header, self.config.remoting.namespace))
        except ProtocolError as error:
            _log.warning(
                "%s: check refused, message cannot be decoded: %s",
                address,
                error,
                extra=self._fields(broker=address),
            )
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        _keep(self._asked_at, message.message_id, header)
        try:
            assert self._checks is not None
            is_spare = self._is_spare(address, message.message_id)
            checking = self._checks.submit(self._run_check, address, header, message, is_spare)
        except RuntimeError:  # the producer is closing; the broker asks another member next time
            return request.reply(ResponseCode.SYSTEM_BUSY)
        self._checking.add(checking)
        checking.add_done_callback(self._checked)
        return request.reply(ResponseCode.SUCCESS)

    def _is_spare(self, address: str, transaction_id: str) -> bool:
        """Return True if a broker asks about a copy of a half message whose commit it confirmed
        (docs/internals/semantics.md#transactions).
        """
        connection = self._confirmed.get(transaction_id)
        return connection is not None and connection.is_open and connection.address == address

    def _checked(self, checking: concurrent.futures.Future[None]) -> None:
        self._checking.discard(checking)
        if not checking.cancelled() and (error := checking.exception()) is not None:
            # The broker asks again: what is lost is only this answer.
            _log.error(
                "a transaction check failed (please report)",
                exc_info=exc_info_of(error),
                extra=self._fields(),
            )

    # On a check thread.

    def _run_check(
        self, address: str, header: CheckTransactionHeader, message: MessageView, is_spare: bool
    ) -> None:
        timeout_ms: int | None = None
        try:
            known = _SPARE if is_spare else self._known_state(message)
            if known is not None and known[0] is not TransactionState.UNKNOWN:
                # It was told so before. What keeps the broker from taking it, as an account
                # without permission, is known only if its answer is waited for.
                timeout_ms = self.config.send.send_timeout_ms
            state, remark = known or _state(
                lambda: self._check(message), "check", message.message_id
            )
            if state is TransactionState.COMMIT:  # the broker may ask about a copy of it, too
                timeout_ms = self.config.send.send_timeout_ms
        except BaseException as error:  # noqa: BLE001 - a pool would swallow its sys.exit()
            state, remark = _raised(error, "check", message.message_id)
        ended = EndTransactionHeader(
            self.group,
            header.half_offset,
            header.physical_offset,
            _FLAGS[state],
            message.message_id,
            # Not the question's, which is that of all half messages: the broker asks whether this
            # account may send to the topic that is named.
            message.topic,
            True,  # from a check
            header.transaction_id,
            header.broker_name,
        )
        client = self._client
        assert client is not None
        try:
            half = HalfMessage(
                message.topic, message.queue_id, message.message_id, message.born_timestamp_ms
            )
            client.runtime.call(self._answer(client, address, ended, half, timeout_ms, remark))
        except OrderMQError as error:
            _log.warning(
                "transaction %s: %s was not told the state and will ask again: %s",
                message.message_id, address, error,
                extra=self._fields(
                    message.message_queue, offset=message.queue_offset, broker=address
                ),
            )  # fmt: skip

    async def _tell(
        self,
        client: ClientSession,
        address: str,
        end: EndTransactionHeader,
        timeout_ms: int | None,
        remark: str | None,
    ) -> None:
        """Tell a broker an end; of a commit that it confirms, keep over which connection it did."""
        connection = await client.connections.get(address) if client.proxy is None else None
        await client.api.end_transaction(address, end, timeout_ms, remark)
        is_confirmed = timeout_ms is not None and end.commit_or_rollback == TransactionFlag.COMMIT
        if connection is not None and is_confirmed:
            _keep(self._confirmed, end.message_id, connection)

    async def _answer(
        self,
        client: ClientSession,
        address: str,
        ended: EndTransactionHeader,
        half: HalfMessage,
        timeout_ms: int | None,
        remark: str | None,
    ) -> None:
        is_commit = ended.commit_or_rollback == TransactionFlag.COMMIT
        if is_commit and ended.message_id in self._committing:
            return  # how that ends decides about this copy: the broker asks again
        if is_commit:
            self._committing.add(ended.message_id)
        try:
            if is_commit and (
                self._is_spare(address, ended.message_id)
                or await self._is_stored(client, address, half)
            ):
                ended = replace(ended, commit_or_rollback=_FLAGS[_SPARE[0]])
                remark = _SPARE[1]
            await self._tell(client, address, ended, timeout_ms, remark)
        except BrokerError as error:
            if not _is_conflict(error):  # else it has ended meanwhile
                client.outages.failed(address, "end of a transaction", error)
        finally:
            if is_commit:
                self._committing.discard(ended.message_id)

    async def _is_stored(self, client: ClientSession, address: str, half: HalfMessage) -> bool:
        """Return whether a broker has the message of a half one in its topic already.

        Then it asks about a copy: the commit crossed its question, or nobody has waited for the
        answer to it, or it was another producer's.
        """
        if client.proxy is not None:  # which has no such request
            return False
        from ordermq.client.admin_api import AdminApi  # only brokers that ask

        namespace = self.config.remoting.namespace
        if (decided := self._decided.get(half.message_id)) is not None:
            # Its end may have been sent a moment ago: the broker shall have worked it.
            await client.clock.sleep_ms(decided[1] + _CROSSING_MS - client.clock.now_ms())
        try:
            connection = await client.connections.get(address)
            body = await AdminApi.of(client).find_messages(
                address, half.topic, half.message_id, _MOST_FOUND, is_id=True
            )
            is_there = any(
                half.is_of(StoredMessage.read(record), namespace) for record in split_records(body)
            )
        except OrderMQError as error:
            # None is found, or this account may only send: twice is better than never.
            _log.debug("transaction %s: not found in its topic: %s", half.message_id, error)
            return False
        if is_there:
            _keep(self._confirmed, half.message_id, connection)
        return is_there

    def _known_state(self, message: MessageView) -> _Outcome | None:
        # What this producer executes, or has executed, it knows better than `check`, which may look
        # before the local transaction is visible.
        # In this order: a transaction that ends meanwhile is found in the second one.
        if message.message_id in self._executing:
            self._asked_about.add(message.message_id)
            if message.message_id not in self._executing:  # it has ended meanwhile
                self._asked_about.discard(message.message_id)
            return TransactionState.UNKNOWN, "its local transaction is still being executed"
        decided = self._decided.get(message.message_id)
        return None if decided is None else (decided[0], None)


def _keep(table: OrderedDict[str, _T], transaction_id: str, value: _T) -> None:
    table[transaction_id] = value
    if len(table) > _DECISIONS_KEPT:
        table.popitem(last=False)


def _is_conflict(error: OrderMQError) -> bool:
    """Return True if a broker has ended a transaction; after another failure it asks again."""
    return isinstance(error, BrokerError) and (
        error.response_code == ResponseCode.ILLEGAL_OPERATION
        or any(part in str(error) for part in _ENDED)
    )


def _executable(message: Message, execute: _T | None) -> _T:
    """Return the function that runs a message's local transaction.

    Raises: ConfigError: there is none, or the message cannot be sent in a transaction.
    """
    if execute is None:
        raise ConfigError(
            "nothing to execute: give `execute` here or to the producer", topic=message.topic
        )
    if message.is_delayed:
        raise ConfigError(
            "a message of a transaction cannot be delayed: send it when it is due, or have a "
            "consumer send the delayed message",
            topic=message.topic,
        )
    return execute


def _not_durable(half: SendReceipt) -> _Outcome | None:
    # A half message that a crash may lose is rolled back before anything is executed.
    if half.status is SendStatus.SEND_OK:
        return None
    return TransactionState.ROLLBACK, f"stored as {half.status}"


def _state(ask: Callable[[], Executed], name: str, transaction_id: str) -> _Outcome:
    """Return the listener's answer, or UNKNOWN with the reason if it raised."""
    try:
        answer: Any = ask()
        # On a loop of its own, in this call's own thread.
        return _answer_of(asyncio.run(result_of(answer)) if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001 - logged, and the broker is told
        return _raised(error, name, transaction_id)


async def _executed(execute: Callable[[], Any], transaction_id: str) -> _Outcome:
    """Run the local transaction on this loop, and what it returns: there may be a coroutine."""
    try:
        answer = execute()
        while inspect.isawaitable(answer):
            answer = await answer
        return _answer_of(answer)
    except Exception as error:  # noqa: BLE001 - logged, and the broker is told
        return _raised(error, "execute", transaction_id)


def _answer_of(state: TransactionState | None) -> _Outcome:
    if state is None:
        return TransactionState.UNKNOWN, None
    try:
        return TransactionState(state), None
    except ValueError:
        known = ", ".join(f"TransactionState.{each.name}" for each in TransactionState)
        raise ConfigError(f"{state!r} is no state: return {known}, or None for UNKNOWN") from None


def _raised(error: BaseException, name: str, transaction_id: str) -> _Outcome:
    _log.error(
        "transaction %s: %s failed, its state is unknown",
        transaction_id,
        name,
        exc_info=exc_info_of(error),
    )
    return TransactionState.UNKNOWN, f"{name} raised {error_text(error)}"


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
    """Return the message a broker asks about.

    Raises: ProtocolError: the request holds none.
    """
    stored = StoredMessage.read(record)
    queue = MessageQueue(
        unwrapped(namespace, stored.topic), header.broker_name or "", stored.queue_id
    )
    return MessageBatch(queue, record).sole_message()
