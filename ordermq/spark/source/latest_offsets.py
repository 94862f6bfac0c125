"""The ends of a running stream's queues, kept in memory on the driver.

A broker tells the ends of all queues of a topic in one answer. While a stream is idle even that is
not asked for: pulls that the brokers hold until a message arrives tell when to ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, Final, NamedTuple

from ordermq.client.queue_life import is_told_by_routes
from ordermq.client.runtime import cancelled
from ordermq.client.session import ClientSession
from ordermq.clock import wait_until_set
from ordermq.errors import BrokerError, OrderMQError, ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import QueueEnds, queue_ends_from_body
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader
from ordermq.spark.options import Selection
from ordermq.spark.session import closed_brokers, queues_of, selected_topics
from ordermq.spark.source.offsets import Offsets
from ordermq.spark.source.queue_lives import StoreTimes
from ordermq.threads import Lock

_log = logging.getLogger("ordermq.spark")
REFRESH_MS: Final = 25  # an answer older than this starts a refresh in the background
_STALE_MS: Final = 100  # an older one is not returned: the caller waits for the refresh
# While every queue has a held pull: for new queues, and for a broker that forgot a pull.
_REFRESH_WATCHED_MS: Final = 1_000
_IDLE_MS: Final = 75  # pause of an idle stream, so that a message is seen within 100 ms
_HOLD_MS: Final = 60_000  # of a held pull; the broker counts from its arrival
_HOLD_TIMEOUT_MS: Final = _HOLD_MS + 10_000
_RETRY_HOLD_MS: Final = 5_000  # after a held pull failed: the broker is away, or does not hold


class _Told(NamedTuple):
    """The answer of a broker to the question for the ends of a topic.

    Args: stored_ms: store time of the newest message; None where it is not told.
    """

    ends: Offsets
    stored_ms: int | None = None


class LatestOffsets:
    """The ends of all queues of a selection, new queues and topics included.

    An idle query asks 92 times per second. It is answered from memory; a request is sent only if
    what is in memory is too old. Nobody asks while a long batch runs, so no request is sent.

    Args: group: named by the pulls that brokers hold.
    Attributes:
        version: rises whenever an end has changed, or a queue has come.
        routed: the queues in the routes, as far as they could be asked for.
        gone: known queues that are in no route any more, and since when.
        missing: topics that were known, and that no name server has had for the time after which
            brokers are forgotten, too.
        closed: topics and brokers whose queues an admin has closed for reads.
        silent: brokers that did not answer the last question, and their errors; their queues keep
            the end before.
        told: the ends, and by when the messages before them were stored, both of one answer: a
            later time would hide that others took an offset. Without a time where none is told.
        connected: over how many connections, one after the other, each broker has answered: behind
            another one it may have been started anew, or be another, with a part of what was read.
    """

    def __init__(self, session: ClientSession, selection: Selection, group: str) -> None:
        self._session = session
        self._selection = selection
        self._topics: Sequence[str] | None = None  # on the I/O thread; None before they are known
        self._group = group
        self._routed_ms: int | None = None
        # Spark's thread reads, the I/O thread writes. Only one refresh may be under way, or two
        # answers that overtake each other would make a queue's end go back.
        self._lock = Lock()
        self._known: Offsets = {}
        self.version = 0
        self.routed: frozenset[MessageQueue] | None = None
        self.gone: dict[MessageQueue, int] = {}
        self.missing: frozenset[str] = frozenset()
        self.closed: frozenset[tuple[str, str]] = frozenset()
        self.silent: Mapping[str, OrderMQError] = {}
        self.connected: Mapping[str, int] = {}
        self._stored: StoreTimes = {}
        self.told: tuple[Offsets, StoreTimes] = {}, {}
        self._asked_ms: int | None = None  # send time of the request that was answered last
        self._refresh: Future[None] | None = None
        self._last_warning = ""
        # On the I/O thread.
        self._answers: dict[tuple[str, str], tuple[bytes, dict[int, int], int | None]] = {}
        self._connections: dict[str, Any] = {}  # by broker, of its last answer
        self._one_by_one: set[tuple[str, str]] = set()  # topics and brokers without such answers
        self._held: dict[MessageQueue, asyncio.Task[None]] = {}
        self._hold_again_ms = 0
        self._arrived = asyncio.Event()
        self._is_watched = False

    def get(self) -> Offsets:
        """Return the ends, asked at most 100 ms ago, or unchanged since.

        Raises: RemotingError, RouteError: no broker has answered, ever.
        """
        self.refresh()
        return dict(self._known)

    def refresh(self) -> None:
        """Ask the brokers if what is in memory is too old; raises as `get`."""
        now_ms = self._session.clock.now_ms()
        with self._lock:
            age_ms = None if self._asked_ms is None else now_ms - self._asked_ms
            if self._refresh is not None and self._refresh.done():
                self._refresh = None
            has_arrived, is_watched = self._arrived.is_set(), self._is_watched
            refresh_ms = _REFRESH_WATCHED_MS if is_watched else REFRESH_MS
            is_old = age_ms is None or age_ms > refresh_ms
            if self._refresh is None and (is_old or has_arrived):
                self._refresh = self._session.submit(self._ask())
            refresh = self._refresh
        is_stale = age_ms is None or (age_ms > _STALE_MS and not is_watched)
        if refresh is not None and (is_stale or has_arrived):
            refresh.result()

    def get_now(self) -> Offsets:
        """Ask the brokers and return the ends.

        Raises: as `get`.
        """
        self._ask_and_wait()
        return dict(self._known)

    def _ask_and_wait(self) -> None:
        with self._lock:
            if self._refresh is None or self._refresh.done():
                self._refresh = self._session.submit(self._ask())
            refresh = self._refresh
        refresh.result()

    def wait(self, pause_ms: int) -> None:
        """Wait until messages have arrived, at most this long or 75 ms.

        A stream that has been idle for so long waits by pulls which the brokers hold.
        """
        self._session.call(self._wait(pause_ms))
        if not self._is_watched:
            self._ask_and_wait()

    def close(self) -> None:
        """Let the held pulls go."""
        self._session.call(self._let_go())

    # On the I/O thread.

    async def ask(self) -> Offsets:
        """Ask the brokers and return the ends; not while another thread uses this object.

        Raises: as `get`.
        """
        await self._ask()
        return self._known

    async def _wait(self, pause_ms: int) -> None:
        if pause_ms >= _IDLE_MS and not self._arrived.is_set():
            self._watch()
        await wait_until_set(self._arrived, self._session.clock, min(pause_ms, _IDLE_MS))

    def _watch(self) -> None:
        """Have a pull held at the end of every queue."""
        now_ms = self._session.clock.now_ms()
        if now_ms >= self._hold_again_ms and len(self._held) < len(self._known):
            for queue, end in self._known.items():
                if queue not in self._held and queue not in self.gone:
                    work = self._hold(queue, end)
                    self._held[queue] = self._session.runtime.spawn(work, "held pull")
        self._is_watched = len(self._held) >= len(self._known) - len(self.gone)

    async def _hold(self, queue: MessageQueue, end: int) -> None:
        """Pull at the end of a queue, which the broker answers when a message is there."""
        header = PullHeader(
            self._group,
            queue.topic,
            queue.queue_id,
            end,
            1,
            PullFlag.SUBSCRIPTION | PullFlag.SUSPEND,
            suspend_timeout_ms=_HOLD_MS,
            subscription="*",
            expression_type="TAG",
            broker_name=queue.broker_name,
        )
        session = self._session
        asked_ms = session.clock.now_ms()
        try:
            address = session.routes.master_of(queue.broker_name)
            code, _, _ = await session.api.pull(address, header, _HOLD_TIMEOUT_MS)
        except OrderMQError as error:
            # Until the broker holds pulls again the ends are asked for, as of a busy stream.
            self._hold_again_ms = session.clock.now_ms() + _RETRY_HOLD_MS
            session.report_failure(queue.broker_name, "held pull", error)
            self._doubt(queue.topic, error)
            code = ResponseCode.SUCCESS
        finally:
            del self._held[queue]
            self._is_watched = False
        if code != ResponseCode.PULL_NOT_FOUND:
            self._arrived.set()
        elif session.clock.now_ms() - asked_ms < _HOLD_MS // 2:
            # A broker with longPollingEnable=false answers at once: ask as before, and try later.
            self._hold_again_ms = session.clock.now_ms() + _HOLD_MS

    async def _let_go(self) -> None:
        await cancelled(*self._held.values())

    async def _ask(self) -> None:
        asked_ms = self._session.clock.now_ms()
        # Before the request: what arrives from here on may not be in its answer.
        self._arrived.clear()
        try:
            queues = await self._queues(asked_ms)
        except OrderMQError as error:
            self._warn_once(error)
            if not self._known:
                raise
            queues = sorted(self._known)
        else:
            self._note_routed(queues, asked_ms)
        parts = [
            (topic, broker, list(part))
            for (topic, broker), part in groupby(queues, lambda q: (q.topic, q.broker_name))
        ]
        answers = await asyncio.gather(
            *(self._ends_at(*part) for part in parts), return_exceptions=True
        )
        silent: dict[str, OrderMQError] = {}
        for (topic, broker, _), answer in zip(parts, answers, strict=True):
            if isinstance(answer, OrderMQError):
                # One broker may be away for a while. Its queues keep their last known end, and
                # those of the other brokers go on.
                self._session.report_failure(broker, "query of the ends", answer)
                self._doubt(topic, answer)
                silent[broker] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._learn((topic, broker), answer)
        if silent and not self._known:
            raise next(iter(silent.values()))
        self.silent = silent
        self._asked_ms = asked_ms

    def _doubt(self, topic: str, error: OrderMQError) -> None:
        # For a topic that no name server has the session asks anyway, less often.
        if is_told_by_routes(error) and not self._session.routes.is_missing(topic):
            self._session.doubt_route(topic)

    def _note_routed(self, queues: list[MessageQueue], now_ms: int) -> None:
        self.routed = frozenset(queues)
        gone = self._known.keys() - self.routed
        self.gone = {queue: self.gone.get(queue, now_ms) for queue in gone}

    def _learn(self, place: tuple[str, str], told: _Told) -> None:
        known = self._known
        changed = {queue: end for queue, end in told.ends.items() if known.get(queue) != end}
        # New dicts: Spark's thread may be copying the old ones.
        if self._stored.get(place) != told.stored_ms:
            others = {each: ms for each, ms in self._stored.items() if each != place}
            own = {} if told.stored_ms is None else {place: told.stored_ms}
            self._stored = others | own
        self._known = known = known | changed if changed else known
        self.told = known, self._stored
        self.version += bool(changed)

    async def _note_connection(self, broker: str, address: str) -> None:
        """Note whether a broker has answered over another connection than the last time."""
        # Asked for behind the answer: what was told over a new connection is never taken for what
        # the old one told.
        connection = await self._session.connections.get(address)
        if self._connections.get(broker) is not connection:
            self._connections[broker] = connection
            self.connected = {**self.connected, broker: self.connected.get(broker, 0) + 1}

    async def _queues(self, now_ms: int) -> list[MessageQueue]:
        if self._routed_ms is None:
            self._routed_ms = now_ms
        elif now_ms - self._routed_ms > self._session.config.route_interval_ms:
            self._routed_ms = now_ms
            await self._session.routes.refresh_all()  # a topic may have more queues by now
            self._topics = await selected_topics(self._session, self._selection)
        if self._topics is None:
            self._topics = await selected_topics(self._session, self._selection)
        known = {queue.topic for queue in self._known}
        routes = await self._session.routes.get_all(self._topics)
        missing = frozenset(topic for topic in known if topic in routes and routes[topic] is None)
        there = [topic for topic in self._topics if topic not in missing]
        queues = await queues_of(self._session, self._selection, there)
        self.closed = frozenset(await closed_brokers(self._session, there))
        self.missing = missing
        return queues

    async def _ends_at(self, topic: str, broker: str, queues: list[MessageQueue]) -> _Told:
        """Return the ends of a topic's queues at a broker, by one request where it has it."""
        address = self._session.routes.master_of(broker)
        told = await self._asked_ends(address, topic, broker, queues)
        await self._note_connection(broker, address)
        return told

    async def _asked_ends(
        self, address: str, topic: str, broker: str, queues: list[MessageQueue]
    ) -> _Told:
        if all(queue not in self._known for queue in queues):
            # The first time both ways: of a static topic of RocketMQ 5 the statistics have the
            # offsets of the broker's own log, which are lower than those that are pulled.
            ends = await self._each_end(address, queues)
            together = await self._ends_together(address, topic, broker, queues)
            if any(together.ends.get(queue, -1) < end for queue, end in ends.items()):
                self._one_by_one.add((topic, broker))
                return _Told(ends)
            return together
        together = await self._ends_together(address, topic, broker, queues)
        if any(together.ends.get(queue, -1) < self._known.get(queue, 0) for queue in queues):
            return _Told(await self._each_end(address, queues))
        return together

    async def _ends_together(
        self, address: str, topic: str, broker: str, queues: list[MessageQueue]
    ) -> _Told:
        """Return the ends as the topic's statistics have them; empty where there are none."""
        if (topic, broker) in self._one_by_one:
            return _Told({})
        try:
            body = await self._session.api.topic_statistics(address, topic)
            before, ends, stored_ms = self._answers.get((topic, broker), (b"", {}, None))
            if before != body:
                told = queue_ends_from_body(body)
                ends = {queue.queue_id: each.end for queue, each in told.items()}
                stored_ms = _newest(told.values())
                self._answers[topic, broker] = body, ends, stored_ms
        except (BrokerError, ProtocolError) as error:
            if not error.retriable:  # not known to this broker, or not allowed to this account
                _log.info("%s: ends of %s are asked for one by one: %s", broker, topic, error)
                self._one_by_one.add((topic, broker))
            return _Told({})
        own = {queue: ends[queue.queue_id] for queue in queues if queue.queue_id in ends}
        return _Told(own, stored_ms)

    async def _each_end(self, address: str, queues: list[MessageQueue]) -> Offsets:
        api = self._session.api
        ends = await asyncio.gather(*(api.max_offset(address, queue) for queue in queues))
        return dict(zip(queues, ends, strict=True))

    def _warn_once(self, error: OrderMQError) -> None:
        # Once per outage: 92 requests per second would log as many lines.
        if str(error) != self._last_warning:
            self._last_warning = str(error)
            _log.warning("routes not refreshed, using the known queues: %s", error)


def _newest(told: Iterable[QueueEnds]) -> int | None:
    """Return the store time of the newest message; None where a queue's is not told."""
    times = [each.last_stored_ms for each in told if each.messages]
    return max(times) if times and min(times) > 0 else None
