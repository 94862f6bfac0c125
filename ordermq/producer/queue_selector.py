"""Queue selection: the caller's queue, the queue of the sharding key, or the next in turn.

A sharding key goes through a selector (docs/internals/semantics.md#ordered-sends). Clients of
other languages choose different queues for the same key, so each choice has a name: all
producers of one ordered topic must use the same.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ordermq.callables import require_plain, require_plain_result
from ordermq.client.routes import (
    IF_IT_EXISTS,
    Routes,
    are_brokers_away,
    publish_queues,
    why_no_queue,
)
from ordermq.clock import Clock
from ordermq.config import SendConfig
from ordermq.config.checks import meant_value
from ordermq.errors import ConfigError, OrderingError, RouteError, StateError
from ordermq.model.hashing import key_hash, key_text, string_hash
from ordermq.model.message import Message
from ordermq.model.message_queue import UNTOLD, MessageQueue
from ordermq.model.names import AUTO_CREATE_TOPIC
from ordermq.remoting.bodies import TopicRoute
from ordermq.value import Value

ShardingKey = str | int
QueueSelector = Callable[[Sequence[MessageQueue], Message, ShardingKey], MessageQueue]

_KEYS_KEPT = 4_096  # of each producer: the selectors of other clients take up to 50 us a key
_MASK = 0xFFFFFFFFFFFFFFFF


def java_index(key: ShardingKey, count: int) -> int:
    """Return the index of Java's `SelectMessageQueueByHash`: |hashCode % n|.

    Java's % truncates towards zero, Python's rounds down.
    """
    return abs(key_hash(key)) % count


def go_index(key: ShardingKey, count: int) -> int:
    """Return the index of the Go client: FNV-1a, 32 bits, over UTF-8."""
    value = 0x811C9DC5
    for byte in key_text(key).encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % count


def sha256_index(key: ShardingKey, count: int) -> int:
    """Return the index that the 5.x Python client computes: SHA-256 as one big number.

    RocketMQ's proxy stores its messages elsewhere (`grpc_index`).
    """
    import hashlib  # here, for it loads OpenSSL's hashes and few choose them

    return int.from_bytes(hashlib.sha256(key_text(key).encode()).digest(), "big") % count


def sip_index(key: ShardingKey, count: int) -> int:
    """Return the index that the 5.x Java and Go clients compute: SipHash-2-4 as a signed long.

    RocketMQ's proxy stores their messages elsewhere (`grpc_index`).
    """
    value = _sip_hash_24(key_text(key).encode())
    return (value - (1 << 64) if value >> 63 else value) % count


def grpc_index(key: ShardingKey, count: int) -> int:
    """Return the index of RocketMQ 5's proxy, for the message groups of gRPC clients.

    Guava's `Hashing.consistentHash` of Java's hash code of the text.
    """
    state, found = string_hash(key_text(key)) & _MASK, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK
        drawn = (state >> 33) + 1
        if drawn == 1 << 31:  # overflows in Java, whose next candidate is negative
            return found
        following = int((found + 1) / (drawn / 2.0**31))
        if following >= count:
            return found
        found = following


def _sip_hash_24(data: bytes) -> int:
    # The 128-bit key is 00 01 .. 0f, that of the reference implementation's test vectors.
    k0, k1 = 0x0706050403020100, 0x0F0E0D0C0B0A0908
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = _rotate(v1, 13) ^ v0
            v0 = _rotate(v0, 32)
            v2 = (v2 + v3) & _MASK
            v3 = _rotate(v3, 16) ^ v2
            v0 = (v0 + v3) & _MASK
            v3 = _rotate(v3, 21) ^ v0
            v2 = (v2 + v1) & _MASK
            v1 = _rotate(v1, 17) ^ v2
            v2 = _rotate(v2, 32)

    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v3 ^= word
        rounds(2)
        v0 ^= word
    v2 ^= 0xFF
    rounds(4)
    return v0 ^ v1 ^ v2 ^ v3


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


_INDEXES: dict[str, Callable[[ShardingKey, int], int]] = {
    "java": java_index,
    "go": go_index,
    "grpc": grpc_index,
    "sip": sip_index,
    "sha256": sha256_index,
}


def index_of(choice: str) -> Callable[[ShardingKey, int], int]:
    """Return the function of a selector's name: (key, number of queues) -> index of the queue.

    Raises: ConfigError: an unknown name.
    """
    index = _INDEXES.get(choice)
    if index is None:
        raise ConfigError(
            f"selector {choice!r}: expected one of {sorted(_INDEXES)}, or a function "
            f"(queues, message, key) -> queue{meant_value(choice, _INDEXES)}"
        )
    return index


def selector_of(choice: str | QueueSelector) -> QueueSelector:
    """Return the selector of this name, or the caller's own function.

    Raises: ConfigError: an unknown name, or an asynchronous function.
    """
    if callable(choice):
        require_plain("selector", choice)
        return choice
    index = index_of(choice)

    # Only of texts: 1, True and 1.0 are one key to a cache.
    index_of_text = functools.lru_cache(_KEYS_KEPT)(index)

    def select(queues: Sequence[MessageQueue], message: Message, key: ShardingKey) -> MessageQueue:
        if type(key) is str:
            return queues[index_of_text(key, len(queues))]
        return queues[index(key, len(queues))]

    return select


# Java's LatencyFaultToleranceImpl: a send that took this long makes its broker unavailable for
# this long, both in ms.
_PENALTIES = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))
_UNANSWERED_MS = 10_000  # counted for a send that had no answer


class LatencyFaults:
    """Brokers that unordered messages avoid for a while because they were slow or silent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[str, int] = {}

    def record(self, broker_name: str, latency_ms: int) -> None:
        """Record how long a broker took to answer; a quick answer makes it available at once."""
        for at_least_ms, penalty_ms in _PENALTIES:
            if latency_ms >= at_least_ms:
                self._until_ms[broker_name] = self._clock.now_ms() + penalty_ms
                return
        self._until_ms.pop(broker_name, None)

    def record_unanswered(self, broker_name: str) -> None:
        """Record that a broker did not answer, or could not be reached."""
        self.record(broker_name, _UNANSWERED_MS)

    def is_available(self, broker_name: str) -> bool:
        """Return False while the broker should be avoided."""
        until_ms = self._until_ms.get(broker_name)
        return until_ms is None or until_ms <= self._clock.now_ms()


def _all_of(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    return queues


def _one_of_each_broker(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    return tuple(sorted({queue._replace(queue_id=UNTOLD) for queue in queues}))


class _Latest(Value):
    """The queues made of a topic's latest route; a route that changed is another object."""

    route: TopicRoute
    queues: tuple[MessageQueue, ...]  # of keys
    unkeyed: tuple[MessageQueue, ...]  # of messages without one


class QueueRouting:
    """Chooses the queues of one producer's messages; any thread.

    Args:
        is_behind_proxy: the proxy chooses the queue of a message without a key. Such messages of a
            broker have one queue here, of id -1, so that those that come together leave together.
    Raises: ConfigError: an unknown selector name.
    """

    def __init__(
        self,
        selector: str | QueueSelector,
        config: SendConfig,
        latency_faults: LatencyFaults | None = None,
        *,
        is_behind_proxy: bool = False,
    ) -> None:
        self._selector = selector_of(selector)
        # User code is slow or raises or sends, so it never runs on the I/O thread.
        self.runs_user_code = callable(selector)
        self._selecting = threading.local()
        self._config = config
        self.latency_faults = latency_faults  # brokers to avoid; None uses all of them in turn
        self.is_behind_proxy = is_behind_proxy
        # The queues of a topic must not change under its keys
        # (docs/internals/semantics.md#ordered-sends).
        self._pinned: dict[str, tuple[MessageQueue, ...]] = {}
        self._latest: dict[str, _Latest] = {}
        self._unkeyed = _one_of_each_broker if is_behind_proxy else _all_of
        self._turns = itertools.count()  # `next` of it is atomic

    def choose(
        self, routes: Routes, message: Message, key: ShardingKey | None, queue: MessageQueue | None
    ) -> MessageQueue:
        """Return the queue for a message of a topic with a known route (`learn`).

        Raises: ConfigError: `queue` belongs to another topic, or the selector returned none of
            the queues it was given. Else as `queues`.
        """
        if queue is not None:
            if not isinstance(queue, MessageQueue):
                raise ConfigError(
                    f"queue={queue!r}: expected a MessageQueue, one of producer.queues(topic)",
                    topic=message.topic,
                )
            if queue.topic != message.topic:
                raise ConfigError(
                    f"queue {queue} belongs to another topic than the message: name one of "
                    "producer.queues(topic)",
                    topic=message.topic,
                )
            return queue
        if key is None:
            queues = self._latest_of(routes, message.topic).unkeyed
            self._require_some(message.topic, queues)
            return self._next_in_turn(queues)
        queues = self.queues(routes, message.topic)
        if not self.runs_user_code:
            return self._selector(queues, message, key)
        self._selecting.is_active = True
        try:
            target = require_plain_result(
                "selector", self._selector, self._selector(queues, message, key)
            )
        finally:
            self._selecting.is_active = False
        if target not in queues:  # another topic's, or one that no consumer would read
            raise ConfigError(
                f"the selector returned {target!r}: expected one of the queues it was given",
                topic=message.topic,
            )
        return target

    def check_not_selecting(self, topic: str) -> None:
        """Raise StateError if the producer's own selector sends while it selects."""
        # While the route is unknown, the message whose queue is being selected stands in front
        # of the selector's own: they would wait for each other.
        if self.runs_user_code and getattr(self._selecting, "is_active", False):
            raise StateError(
                "a queue selector sent a message with its own producer: a selector may only "
                "choose a queue; send before or after",
                topic=topic,
            )

    def fallback(self, routes: Routes, queue: MessageQueue) -> MessageQueue | None:
        """Return a queue of the same topic on another broker; None if there is none."""
        others = [
            other
            for other in self._latest_of(routes, queue.topic).unkeyed
            if other.broker_name != queue.broker_name
        ]
        return self._next_in_turn(others) if others else None

    def _next_in_turn(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        found = queues[next(self._turns) % len(queues)]
        if self.latency_faults is None:
            return found
        for _ in queues:
            if self.latency_faults.is_available(found.broker_name):
                break
            found = queues[next(self._turns) % len(queues)]
        return found  # if every broker was slow, the last one looked at

    def queues(self, routes: Routes, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a learned topic that the selector chooses from, sorted.

        They include those of brokers that are away, even all of them: their keys wait while a
        send is retried, and no key moves.

        Raises:
            RouteError: no broker has the topic, or none has accepted its messages so far.
            OrderingError: they changed since a key was first sent, and keys would move.
        """
        latest = self._latest.get(topic)
        # Nearly always: no lock, no comparison, no call but one.
        if latest is not None and latest.route is routes.known(topic):
            queues = latest.queues
        else:
            queues = self._latest_of(routes, topic).queues
        if queues is self._pinned.get(topic):
            return queues
        return self._pin(topic, queues)

    def _pin(self, topic: str, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        pinned = self._pinned.get(topic)
        if pinned is None:
            self._require_some(topic, queues)
            # One step: two threads that come here together must not pin two sets.
            pinned = self._pinned.setdefault(topic, queues)
        if pinned == queues:
            self._pinned[topic] = queues
            return queues
        route = self._latest[topic].route
        may_move = self._config.allow_queue_change and queues
        if not may_move and are_brokers_away(route, queues, pinned):
            return pinned  # they come back with the same queues
        if not queues:  # withdrawn, and there is no queue to move to
            raise OrderingError(
                f"the topic had {len(pinned)} queues when a key was first sent and has none now: "
                f"{why_no_queue(route)}",
                topic=topic,
            )
        if not may_move:
            raise OrderingError(
                f"the topic had {len(pinned)} queues when a key was first sent and has "
                f"{len(queues)} now: keys would move to other queues, ahead of messages before "
                "them. Let consumers catch up and start a new producer, or set "
                "allow_queue_change=True",
                topic=topic,
            )
        self._pinned[topic] = queues
        return queues

    def _latest_of(self, routes: Routes, topic: str) -> _Latest:
        # The queues of the latest route, perhaps none.
        route = self._route(routes, topic)
        latest = self._latest.get(topic)
        if latest is None or latest.route is not route:
            queues = tuple(publish_queues(topic, route))
            latest = self._latest[topic] = _Latest(route, queues, self._unkeyed(queues))
        return latest

    def _require_some(self, topic: str, queues: tuple[MessageQueue, ...]) -> None:
        if not queues:
            route = self._latest[topic].route
            raise RouteError(why_no_queue(route), topic=topic)

    async def learn(self, routes: Routes, topic: str) -> None:
        """Get the route of a topic; if it does not exist yet, that of the template topic instead.

        Raises: RouteError: no name server answers.
        """
        if await routes.get(topic) is None:
            await routes.get(AUTO_CREATE_TOPIC)

    def _route(self, routes: Routes, topic: str) -> TopicRoute:
        route = routes.known(topic)
        if route is not None:
            return route
        # The first send creates the topic, with at most the number of queues it asks for.
        template = routes.known(AUTO_CREATE_TOPIC)
        if template is None:
            raise RouteError(
                "topic not found on any broker, and no broker creates topics on first use: "
                f"create it first; {IF_IT_EXISTS}",
                topic=topic,
            )
        most = self._config.default_topic_queue_nums
        return TopicRoute(
            template.brokers,
            tuple(
                replace(
                    data,
                    read_queue_nums=min(data.read_queue_nums, most),
                    write_queue_nums=min(data.write_queue_nums, most),
                )
                for data in template.queues
            ),
        )
