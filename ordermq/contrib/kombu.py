# mypy: allow-untyped-calls
"""A transport for kombu, and so for Celery: `ordermq://` (docs/celery.md); its import registers it.

A durable queue is a topic, and its consumers are members of one group, with queue locks and key
lanes: what was not acknowledged is redelivered, and messages of one key run one after the other.
An exchange is a topic, too: queues that live as long as their consumer, as those of Celery's remote
control, read it from its end.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty
from typing import Any, Final, cast

from ordermq.lazy_imports import needed_from

with needed_from("kombu"):
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.transport.virtual.base import queue_declare_ok_t  # type: ignore[attr-defined]
    from kombu.utils.json import dumps, loads
    from kombu.utils.uuid import uuid

import ordermq
from ordermq.admin.admin import Admin
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.lite_pull_consumer import LitePullConsumer
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.contrib.rejected import Rejected, with_rejections
from ordermq.errors import (
    ConfigError,
    DecodeError,
    OrderMQError,
    RemotingError,
    RouteError,
    StateError,
)
from ordermq.model.message import Message, MessageView
from ordermq.model.status import ConsumeResult
from ordermq.producer.producer import Producer
from ordermq.threads import Lock, start_thread

_log = logging.getLogger("ordermq.kombu")
_KEY: Final = "sharding_key"  # header: messages with one value are handled one after the other
_ROUTING_KEY: Final = "routing-key"  # property of messages in the topic of an exchange
_EXPIRES: Final = "expires-at-ms"  # property: kombu's `expiration` from the time of publishing on
_NEVER: Final = 1 << 62
_EXCHANGE_PREFIX: Final = "kombu-exchange-"
_DEFAULT_PORT: Final = 9876
_DEFAULT_EXCHANGE: Final = ""
_SKEW_MS: Final = 5_000  # that a broker's clock may be behind; what is read twice has other names
_POLL_MS: Final = 500
_WAIT_S: Final = 1.0  # so that signal handlers run while nothing arrives
_GET_S: Final = 0.5  # `basic_get` waits so long for the first message
_REQUEUE_MS: Final = 100
_MOST_DELAY_MS: Final = 3 * 24 * 3_600_000 - 60_000  # brokers refuse more than three days
_CLOSE_S: Final = 10.0
_COMMIT_MS: Final = 500
_RESET_S: Final = 5.0  # for members to hear of a purge
# What `transport_options` may have, with its defaults.
_OPTIONS: Final[Mapping[str, Any]] = {
    "name_servers": "",
    "group": "kombu",
    "queues": 8,
    "create_topics": True,
    "eta_at_broker": True,
    "on_failure": None,
    "client": {},
    "producer": {},
    "consumer": {},
}
# Those of kombu's virtual channels, which the base class reads.
_OF_KOMBU: Final = {"body_encoding", "deadletter_queue", "polling_interval", "confirm_publish"}


class Delivery:
    """A message that a listener call waits with until it is acknowledged; any thread settles it."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload = payload
        self._loop = asyncio.get_running_loop()
        self._settled: asyncio.Future[str] = self._loop.create_future()

    def settle(self, outcome: str) -> None:
        """Say "ack", "requeue" or "reject"; only the first time counts."""
        with suppress(RuntimeError):  # the consumer has closed, and the message is redelivered
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: str) -> None:
        if not self._settled.done():
            self._settled.set_result(outcome)

    async def outcome(self) -> str:
        """Return what was said."""
        return await self._settled


class QueueConsumer:
    """The consumer of one durable queue: a member of the queue's group."""

    def __init__(self, transport: Transport, queue: str) -> None:
        self.waiting: deque[Delivery] = deque()
        self._transport = transport
        self._is_cancelled = False
        topic = transport.topic_of(queue)
        options = transport.options
        self._consumer = PushConsumer(
            f"{options['group']}-{topic}",
            name_servers=transport.name_servers,
            on_failure=with_rejections(options["on_failure"]),
            **{
                "order_by_key": True,
                "consume_from_where": "first_offset",
                # What a killed worker had acknowledged since the last commit is run again.
                "commit_interval_ms": _COMMIT_MS,
                "suspend_current_queue_time_ms": _REQUEUE_MS,
                **transport.client_settings,
                **options["consumer"],
            },
        )
        self._consumer.subscribe(topic)
        self._consumer.orderly(self._listen)
        self._consumer.start()

    async def _listen(
        self, messages: Sequence[MessageView], context: ConsumeContext
    ) -> ConsumeResult:
        if self._is_cancelled:
            return ConsumeResult.SUSPEND
        (message,) = messages
        delivery = Delivery(payload_of(message))
        self.waiting.append(delivery)
        self._transport.notify()
        outcome = await delivery.outcome()
        if outcome == "reject":
            raise Rejected(f"{message.message_queue} offset {message.queue_offset}: rejected")
        return ConsumeResult.SUCCESS if outcome == "ack" else ConsumeResult.SUSPEND

    def cancel(self) -> None:
        """Take no more; what was delivered may still be acknowledged."""
        self._is_cancelled = True
        for queue in self._consumer.assigned_queues():
            with suppress(StateError):  # it has moved meanwhile
                self._consumer.pause(queue)
        while self.waiting:
            self.waiting.popleft().settle("requeue")

    def close(self) -> None:
        """Leave the group; what was not acknowledged is redelivered."""
        self.cancel()
        self._consumer.close(_CLOSE_S)


class ExchangeReader:
    """A thread that reads an exchange's topic, for a channel's transient queues.

    Args: since_ms: wall clock of the first message wanted; 0 begins at the end.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        take: Callable[[str, dict[str, Any]], None],
        since_ms: int = 0,
    ) -> None:
        self._take = take
        self._topic = topic
        self._consumer = LitePullConsumer(
            f"{transport.options['group']}-{topic}",
            name_servers=transport.name_servers,
            **cast("Any", {"auto_commit": False, **transport.client_settings}),
        )
        self._consumer.start()
        try:
            queues = self._consumer.fetch_message_queues(topic)
            self._consumer.assign(queues)
            for queue in queues:
                if since_ms:
                    start = self._consumer.offset_for_timestamp(queue, since_ms)
                    self._consumer.seek(queue, start)
                else:
                    self._consumer.seek_to_end(queue)
        except BaseException:
            self._consumer.close(0.0)
            raise
        self._is_closing = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"kombu {topic}", daemon=True)
        start_thread(self._thread)
        # Celery closes no connection that waits for results: its program just ends.
        atexit.register(self._close_at_exit)

    def _run(self) -> None:
        while not self._is_closing:
            try:
                batch = self._consumer.poll(_POLL_MS)
            except StateError:
                if self._is_closing:
                    return
                raise
            for message in batch:
                try:
                    payload = payload_of(message)
                except Rejected as error:
                    _log.warning("%s; ignored", error)
                    continue
                self._take(message.get_property(_ROUTING_KEY) or "", payload)

    def _close_at_exit(self) -> None:
        if os.getpid() == self._process:  # a fork has the registration, but not the thread
            self.close()

    def close(self) -> None:
        """Stop reading."""
        atexit.unregister(self._close_at_exit)
        self._is_closing = True
        self._thread.join(_CLOSE_S)
        self._consumer.close(_CLOSE_S)


def payload_of(message: MessageView) -> dict[str, Any]:
    """Return a stored message as kombu has it, with a delivery tag of its own.

    Raises: Rejected: another program wrote it: it is no message of kombu.
    """
    try:
        payload = loads(bytes(message.body))
        properties = payload["properties"]
        payload["body"], payload["headers"], payload["content-type"]
        properties["delivery_tag"] = uuid()
        properties["delivery_info"]["redelivered"] = message.reconsume_times > 0
    except (DecodeError, ValueError, KeyError, TypeError, LookupError) as error:
        raise Rejected(
            f"{message.message_queue} offset {message.queue_offset}: no message of kombu: {error!r}"
        ) from error
    return cast("dict[str, Any]", payload)


class QoS(virtual.QoS):
    """Unacknowledged messages of a channel: those are held by their consumers, not put again."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.settle(delivery_tag, "ack")
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have a message redelivered, or move it to the dead-letter topic."""
        self.channel.settle(delivery_tag, "requeue" if requeue else "reject")
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        """Have every message that was not acknowledged redelivered."""
        self._flush()
        for tag in list(self._delivered):
            self.channel.settle(tag, "requeue")
        self._delivered.clear()
        return []


class Channel(virtual.Channel):
    """A channel of the transport; kombu's base class knows the bindings of this process."""

    QoS = QoS
    supports_fanout = True
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._consumers_of: dict[str, QueueConsumer] = {}
        self._readers: dict[str, ExchangeReader] = {}  # by exchange
        self._transient: dict[str, deque[dict[str, Any]]] = {}  # by queue
        self._without_ack: set[str] = set()
        self._deliveries: dict[str, Delivery] = {}  # not settled yet, by delivery tag
        self._bound: set[tuple[str, str]] = set()  # exchange and transient queue
        self._declared_ms: dict[str, int] = {}  # by transient queue

    # Declarations.

    def queue_declare(self, queue: str = "", passive: bool = False, **options: Any) -> Any:
        """Declare a queue; only a passive declaration counts its messages, which takes requests."""
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            return super().queue_declare(name, passive=True, **options)
        self._new_queue(name, **options)
        return queue_declare_ok_t(name, 0, 0)

    def _new_queue(
        self,
        queue: str,
        auto_delete: bool = False,
        exclusive: bool = False,
        **options: Any,
    ) -> None:
        # A queue of one consumer has no topic: it reads those of its exchanges.
        if auto_delete or exclusive:
            self._transient.setdefault(queue, deque())
            self._declared_ms.setdefault(queue, _now_ms())
        elif queue not in self._transient:
            self.connection.require_topic(self.connection.topic_of(queue))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        topic = self.connection.topic_of(queue)
        return queue in self._transient or self.connection.has_topic(topic)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        if queue not in self._transient:
            return
        self._bound.add((exchange, queue))
        if exchange not in self._readers:  # from now on: what is published next must arrive

            def take(key: str, payload: dict[str, Any]) -> None:
                for found in self._bound_queues(exchange, key):
                    if (exchange, found) in self._bound:
                        self._transient[found].append(payload)
                self.connection.notify()

            self._read(exchange, take)

    def _read(
        self, exchange: str, take: Callable[[str, dict[str, Any]], None], since_ms: int = 0
    ) -> None:
        topic = self.connection.topic_of_exchange(exchange)
        self.connection.require_topic(topic, queues=1)
        self._readers[exchange] = ExchangeReader(self.connection, topic, take, since_ms)

    def _read_unbound(self, queue: str) -> None:
        """Read the default exchange for a transient queue that is bound to none, as of replies.

        Only its first use shows that it stays so, and a reply may have come before that.
        """
        if any(bound == queue for _, bound in self._bound):
            return
        self._bound.add((_DEFAULT_EXCHANGE, queue))
        if _DEFAULT_EXCHANGE not in self._readers:

            def take(key: str, payload: dict[str, Any]) -> None:
                if key in self._transient:
                    self._transient[key].append(payload)
                    self.connection.notify()

            since_ms = self._declared_ms.get(queue, _now_ms()) - _SKEW_MS
            self._read(_DEFAULT_EXCHANGE, take, since_ms)

    def _bound_queues(self, exchange: str, routing_key: str) -> set[str]:
        try:
            table = self.get_table(exchange)
        except KeyError:
            return set()
        found: set[str] = self.typeof(exchange).lookup(table, exchange, routing_key, None)
        return found

    def _delete(self, queue: str, *meta: Any, **options: Any) -> None:
        if self._transient.pop(queue, None) is None:
            self.connection.delete_topic(self.connection.topic_of(queue))
        self._bound = {pair for pair in self._bound if pair[1] != queue}
        for exchange in self._readers.keys() - {exchange for exchange, _ in self._bound}:
            self._readers.pop(exchange).close()

    def _size(self, queue: str) -> int:
        if queue in self._transient:
            return len(self._transient[queue])
        return self.connection.size_of(queue)

    def _purge(self, queue: str) -> int:
        if queue in self._transient:
            count = len(self._transient[queue])
            self._transient[queue].clear()
            return count
        count = self.connection.size_of(queue)
        # What has arrived here would hold the queue's offset.
        consumer = self._consumers_of.get(queue)
        while consumer is not None and consumer.waiting:
            consumer.waiting.popleft().settle("ack")
        self.connection.pass_over(queue)
        return count

    # Publishing.

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any
    ) -> None:
        """Store a message in the topic of each durable queue it is for, or of its exchange."""
        self._inplace_augment_message(message, exchange, routing_key)
        properties = message["properties"]
        if properties.get("expiration"):
            properties[_EXPIRES] = _now_ms() + int(properties["expiration"])
        if not exchange:
            if routing_key in self._transient or self.connection.knows(routing_key):
                self._put(routing_key, message)
            else:  # a transient queue of another process, as for replies, or none
                self._put_exchange(_DEFAULT_EXCHANGE, message, routing_key)
            return
        bound = self._bound_queues(exchange, routing_key)
        durable = bound - self._transient.keys()
        for queue in sorted(durable):
            self._put(queue, message)
        # Nothing is known here of queues in other processes: they read the exchange's topic.
        if not durable or self.typeof(exchange).type == "fanout":
            self._put_exchange(exchange, message, routing_key)

    def _put_exchange(self, exchange: str, message: dict[str, Any], routing_key: str) -> None:
        topic = self.connection.topic_of_exchange(exchange)
        self.connection.require_topic(topic, queues=1)
        self.connection.send(topic, message, routing_key)

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        if queue in self._transient:
            self._transient[queue].append(message)
            self.connection.notify()
            return
        topic = self.connection.topic_of(queue)
        self.connection.require_topic(topic)
        self.connection.send(topic, message, None)

    # Consuming.

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **options: Any,
    ) -> None:
        """Deliver a queue's messages to `callback` while events are drained."""
        if no_ack:
            self._without_ack.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if queue in self._transient:
            self._read_unbound(queue)
        else:
            self._consumer_of(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver no more; what was delivered may still be acknowledged."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        self._without_ack.discard(queue)
        consumer = self._consumers_of.get(queue)
        if consumer is not None:
            consumer.cancel()

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next message, None if none arrives at once.

        Messages are pulled in the background, so an answer takes as long as a pull may: 0.5 s
        where there is none.
        """
        if queue in self._transient:
            self._read_unbound(queue)
        message = self.connection.waited_for(
            lambda: super(Channel, self).basic_get(queue, no_ack=no_ack, **options)
        )
        if message is not None and no_ack:
            self.settle(message.delivery_tag, "ack")
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        while True:
            try:
                if queue in self._transient:
                    payload, delivery = self._transient[queue].popleft(), None
                else:
                    delivery = self._consumer_of(queue).waiting.popleft()
                    payload = delivery.payload
            except IndexError:
                raise Empty from None
            properties = payload["properties"]
            is_expired = properties.get(_EXPIRES, _NEVER) <= _now_ms()
            if delivery is not None and (is_expired or queue in self._without_ack):
                delivery.settle("ack")
            elif delivery is not None:
                self._deliveries[properties["delivery_tag"]] = delivery
            if not is_expired:
                return payload

    def _consumer_of(self, queue: str) -> QueueConsumer:
        found = self._consumers_of.get(queue)
        if found is None or found._is_cancelled:
            if found is not None:
                found.close()
            found = self._consumers_of[queue] = QueueConsumer(self.connection, queue)
        return found

    def settle(self, delivery_tag: str, outcome: str) -> None:
        """Say what became of a delivered message."""
        delivery = self._deliveries.pop(delivery_tag, None)
        if delivery is not None:
            delivery.settle(outcome)

    def close(self) -> None:
        """Cancel every consumer, and have what was not acknowledged redelivered."""
        if self.closed:
            return
        super().close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        for tag in list(self._deliveries):
            self.settle(tag, "requeue")
        for consumer in self._consumers_of.values():
            consumer.close()
        self._consumers_of.clear()


class Transport(virtual.Transport):
    """Transport of `ordermq://[access_key:secret_key@]host:port`, a name server of RocketMQ."""

    Channel = Channel
    default_port: Any = _DEFAULT_PORT
    driver_type = "ordermq"
    driver_name = "ordermq"
    implements = virtual.Transport.implements.extend(
        asynchronous=False,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )
    connection_errors: Any = (*virtual.Transport.connection_errors, RemotingError, RouteError)
    channel_errors: Any = (*virtual.Transport.channel_errors, OrderMQError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.options = _options(client.transport_options)
        self.name_servers = self.options["name_servers"] or _address(client)
        keys = {"access_key": client.userid, "secret_key": client.password}
        self.client_settings: dict[str, Any] = {
            **({name: value for name, value in keys.items() if value}),
            **({"tls": True} if client.ssl else {}),
            **self.options["client"],
        }
        self._arrived = threading.Event()
        self._lock = Lock()  # of the three below: channels are used by several threads
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._topics: set[str] = set()

    def driver_version(self) -> str:
        """Return the version of this package."""
        return ordermq.__version__

    def establish_connection(self) -> Transport:
        """Ask a broker for its topics, so that one that is away is told at once.

        Raises: RemotingError, RouteError: no name server or no broker answers.
        """
        # By one of its own: of a connection that is not made, nobody closes what it has.
        with Admin(self.name_servers, **self.client_settings) as admin:
            known = {found.name for found in admin.topics()}
        with self._lock:
            self._topics |= known
        return cast("Transport", super().establish_connection())

    def close_connection(self, connection: Any) -> None:
        """Close the channels, then send what waits and disconnect."""
        super().close_connection(connection)
        with self._lock:
            producer, self._producer = self._producer, None
            admin, self._admin = self._admin, None
        if producer is not None:
            producer.close(_CLOSE_S)
        if admin is not None:
            admin.close()

    def drain_events(  # type: ignore[override]
        self, connection: Any, timeout: float | None = None
    ) -> None:
        """Deliver what has arrived on one channel, waiting up to `timeout` seconds for it.

        Raises: TimeoutError: nothing arrived.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._arrived.clear()
            with suppress(Empty):
                cast("Any", self.cycle).get(self._deliver, timeout=timeout)
                return
            left = _WAIT_S if end is None else end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._arrived.wait(min(left, _WAIT_S))

    def waited_for(self, get: Callable[[], Any]) -> Any:
        """Return what `get` returns as soon as that is not None, or None after a moment."""
        end = time.monotonic() + _GET_S
        while True:
            self._arrived.clear()
            found, left = get(), end - time.monotonic()
            if found is not None or left <= 0:
                return found
            self._arrived.wait(left)

    def notify(self) -> None:
        """Wake who waits for a message; any thread."""
        self._arrived.set()

    # Topics.

    def topic_of(self, queue: str) -> str:
        """Return the topic of a durable queue: its name, with what topics lack as `%` and hex."""
        return re.sub(r"[^a-zA-Z0-9_|-]", lambda found: _escaped(found[0]), queue)

    def topic_of_exchange(self, exchange: str) -> str:
        """Return the topic that transient queues of an exchange read."""
        return f"{_EXCHANGE_PREFIX}{self.topic_of(exchange)}"

    def _asking(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(self.name_servers, **self.client_settings)
            return self._admin

    def has_topic(self, topic: str) -> bool:
        """Return True if a broker has the topic."""
        return any(found.name == topic for found in self._asking().topics())

    def knows(self, queue: str) -> bool:
        """Return True if a durable queue is there, or only an administrator could tell."""
        topic = self.topic_of(queue)
        with self._lock:
            if topic in self._topics or not self.options["create_topics"]:
                return True
        is_there = self.has_topic(topic)
        if is_there:
            with self._lock:
                self._topics.add(topic)
        return is_there

    def require_topic(self, topic: str, queues: int = 0) -> None:
        """Create a topic that is not there, unless the options leave that to others."""
        with self._lock:
            if topic in self._topics or not self.options["create_topics"]:
                return
        with suppress(StateError):  # another process was faster
            if not self.has_topic(topic):
                self._asking().create_topic(topic, queues or self.options["queues"])
        with self._lock:
            self._topics.add(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages."""
        self._asking().delete_topic(topic)
        with self._lock:
            self._topics.discard(topic)

    def size_of(self, queue: str) -> int:
        """Return the number of messages of a durable queue that are not acknowledged."""
        topic, admin = self.topic_of(queue), self._asking()
        ends = admin.topic(topic).queues
        group = admin.group(f"{self.options['group']}-{topic}", [topic], ask_members=False)
        return sum(
            max(
                found.end - (group.progress[each].done if each in group.progress else found.first),
                0,
            )
            for each, found in ends.items()
        )

    def pass_over(self, queue: str) -> None:
        """Move the queue's group to the end of its topic; messages that run are not stopped."""
        topic = self.topic_of(queue)
        group = f"{self.options['group']}-{topic}"
        self._asking().reset(group, topic, "last", wait_s=_RESET_S)

    # Sending.

    def send(self, topic: str, message: dict[str, Any], routing_key: str | None) -> None:
        """Store a message; returns when the broker has it.

        Raises: as `Producer.send`.
        """
        headers, properties = message["headers"], message["properties"]
        identity = headers.get("id") or properties.get("correlation_id") or ""
        options: dict[str, Any] = {}
        deliver_at_ms = self._deliver_at_ms(headers.get("eta"))
        if deliver_at_ms:
            options["deliver_at_ms"] = deliver_at_ms
        if routing_key:
            options["properties"] = {_ROUTING_KEY: routing_key}
        made = Message(
            topic,
            dumps(message).encode(),
            keys=(str(identity),) if identity and " " not in str(identity) else (),
            **options,
        )
        # Without a key of its own a message waits for no other one.
        key = headers.get(_KEY) or properties["delivery_tag"]
        self._sending().send(made, sharding_key=str(key))

    def _deliver_at_ms(self, eta: object) -> int:
        """Return when a broker shall deliver a message, 0 for at once."""
        if not isinstance(eta, str) or not self.options["eta_at_broker"]:
            return 0
        try:
            moment = datetime.fromisoformat(eta)
        except ValueError:
            return 0  # its consumer understands it, or not
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        now_ms = _now_ms()
        wanted = int(moment.timestamp() * 1_000)
        # One that is farther away is delivered earlier, and its worker waits for the rest.
        return min(wanted, now_ms + _MOST_DELAY_MS) if wanted > now_ms else 0

    def _sending(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    self.options["group"],
                    name_servers=self.name_servers,
                    **{**self.client_settings, **self.options["producer"]},
                ).start()
            return self._producer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _address(client: Any) -> str:
    return f"{client.hostname or '127.0.0.1'}:{client.port or _DEFAULT_PORT}"


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = given.keys() - _OPTIONS.keys() - _OF_KOMBU
    # Celery adds options of its own to those of every transport.
    for name in sorted(unknown):
        _log.debug("transport option %r is not one of ordermq", name)
    found = {name: given.get(name, default) for name, default in _OPTIONS.items()}
    for name in ("client", "producer", "consumer"):
        if not isinstance(found[name], Mapping):
            raise ConfigError(
                f"transport_options[{name!r}]={found[name]!r}: expected a dict of settings"
            )
    return found


TRANSPORT_ALIASES["ordermq"] = "ordermq.contrib.kombu:Transport"
