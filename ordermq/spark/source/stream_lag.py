"""The lag of a streaming query: how far the queues are ahead of its finished micro-batches.

Nothing runs in the query, and pyspark is not needed: the offsets are those which Spark reports, the
ends of the queues those which the brokers tell a session of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ordermq.client.queue_scan import scan
from ordermq.client.session import ClientSession
from ordermq.consumer.queue.statistics import Lag
from ordermq.errors import OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import READ_GROUP, Selection
from ordermq.spark.source.latest_offsets import LatestOffsets
from ordermq.spark.source.offsets import Offsets, StreamOffset
from ordermq.threads import Lock

_MOST_TOGETHER: Final = 16  # pulls at once: a thousand queues behind do not flood a broker


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Report of Spark about a micro-batch, its offsets as JSON texts: one of each source.

    Args:
        name: of the query, if it has one.
        timestamp: of the batch's begin, ISO 8601.
        starts, ends: where the batch begins and ends.
        reported: the ends of the queues, as known while the batch was planned.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp: str
    starts: tuple[str | None, ...]
    ends: tuple[str | None, ...]
    reported: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of one queue.

    Args:
        rows: offsets of the last micro-batch.
        done: end of the last micro-batch.
        end: of the queue.
    """

    rows: int
    done: int
    end: int
    lag: Lag


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a query at one moment."""

    batch: BatchOffsets
    group: str
    measured_ms: int
    queues: Mapping[MessageQueue, QueueLag]

    @property
    def title(self) -> str:
        """The group; else the query's name, or its id."""
        return self.group or self.batch.name or self.batch.query_id

    def lag_of(self, topic: str | None = None) -> Lag:
        """Return the lag of a topic, or of all: the sum, and the oldest message's age."""
        lags = [
            each.lag for queue, each in self.queues.items() if topic is None or queue.topic == topic
        ]
        ages = [lag.seconds for lag in lags if lag.seconds is not None]
        # Not known only where none is: the age of one queue is the least that it can be.
        return Lag(
            sum(lag.messages for lag in lags),
            max(ages) if ages else (None if lags else 0.0),
            all(lag.is_current for lag in lags),
        )

    @property
    def topics(self) -> list[str]:
        """The topics that the query reads."""
        return sorted({queue.topic for queue in self.queues})

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, with the names that `lastProgress` has."""
        measured = datetime.fromtimestamp(self.measured_ms / 1_000, UTC)
        return {
            "id": self.batch.query_id,
            "runId": self.batch.run_id,
            "name": self.batch.name,
            "group": self.group or None,
            "batchId": self.batch.batch_id,
            "timestamp": self.batch.timestamp,
            "measured": measured.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "lag": _members(self.lag_of()),
            "topics": {topic: _members(self.lag_of(topic)) for topic in self.topics},
            "queues": [
                {
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queue": queue.queue_id,
                    "rows": each.rows,
                    "endOffset": each.done,
                    "latestOffset": each.end,
                    **_members(each.lag),
                }
                for queue, each in sorted(self.queues.items())
            ],
        }


def _members(lag: Lag) -> dict[str, Any]:
    return {"messages": lag.messages, "seconds": lag.seconds, "isCurrent": lag.is_current}


class StreamLag:
    """Measures the lag of one query.

    The ends of the queues are one request per topic and broker, as `LatestOffsets` asks. The age of
    the oldest message is that of the one at the query's offset, which is pulled: one message of
    each queue that is behind, whenever the query has gone on in it.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._lock = Lock()  # Spark's thread notes, the I/O thread reads
        self._noted: BatchOffsets | None = None
        # On the I/O thread.
        self._ends: dict[str, LatestOffsets] = {}
        self._stored: dict[MessageQueue, tuple[int, int]] = {}  # offset, and its store time
        self._turn = asyncio.Lock()
        self._pulls = asyncio.Semaphore(_MOST_TOGETHER)

    def note(self, batch: BatchOffsets) -> None:
        """Take the newest report of Spark, from any thread."""
        # Read when somebody asks for the lag: thousands of queues are a long text, and a busy query
        # reports some times per second.
        with self._lock:
            self._noted = batch

    async def measure(self) -> LagReport | None:
        """Return the lag now, on the I/O thread; None of a query that reads no queues of ours.

        A queue whose broker does not answer keeps its last known end.
        """
        async with self._turn:
            with self._lock:
                batch = self._noted
            if batch is None:
                return None
            done, _ = _offsets(batch.ends)
            if not done:
                return None
            started, _ = _offsets(batch.starts)
            reported, group = _offsets(batch.reported)
            ends, silent = await self._ask(done, reported)
            ages = await self._ages(done, ends, group or READ_GROUP)
            return LagReport(
                batch,
                group,
                self._session.clock.wall_ms(),
                {
                    queue: QueueLag(
                        max(at - started.get(queue, at), 0),
                        at,
                        ends[queue],
                        Lag(max(ends[queue] - at, 0), ages[queue], queue not in silent),
                    )
                    for queue, at in sorted(done.items())
                },
            )

    async def _ask(self, done: Offsets, reported: Offsets) -> tuple[Offsets, set[MessageQueue]]:
        """Return the end of each queue, and those whose broker did not answer."""
        topics = sorted({queue.topic for queue in done})
        for topic in topics:
            if topic not in self._ends:
                self._ends[topic] = LatestOffsets(self._session, Selection((topic,)), READ_GROUP)
        answers = await asyncio.gather(
            *(self._ends[topic].ask() for topic in topics), return_exceptions=True
        )
        ends = {queue: max(at, reported.get(queue, at)) for queue, at in done.items()}
        silent = set(done)
        for topic, answer in zip(topics, answers, strict=True):
            if isinstance(answer, OrderMQError):
                # Its routes, or a broker, were never there: `LatestOffsets` has logged it.
                continue
            if isinstance(answer, BaseException):
                raise answer
            latest = self._ends[topic]
            for queue in done.keys() & answer.keys():
                ends[queue] = answer[queue]
                if queue.broker_name not in latest.silent and queue not in latest.gone:
                    silent.discard(queue)
        return ends, silent

    async def _ages(
        self, done: Offsets, ends: Offsets, group: str
    ) -> dict[MessageQueue, float | None]:
        """Return the age of each queue's oldest message, in seconds; None where it is unknown."""
        behind = [queue for queue, at in done.items() if ends[queue] > at]
        self._stored = {queue: self._stored[queue] for queue in behind if queue in self._stored}
        await asyncio.gather(
            *(
                self._pull(queue, done[queue], group)
                for queue in behind
                if self._stored.get(queue, (-1, 0))[0] != done[queue]
            )
        )
        now_ms = self._session.clock.wall_ms()
        ages: dict[MessageQueue, float | None] = dict.fromkeys(done, 0.0)
        for queue in behind:
            offset, stored_ms = self._stored.get(queue, (-1, 0))
            # The broker's clock may be ahead of this machine's.
            is_known = offset == done[queue]
            ages[queue] = max(now_ms - stored_ms, 0) / 1_000 if is_known else None
        return ages

    async def _pull(self, queue: MessageQueue, offset: int, group: str) -> None:
        async with self._pulls:
            try:
                async for message in scan(self._session, group, queue, offset, offset + 1):
                    self._stored[queue] = offset, message.store_timestamp_ms
            except OrderMQError as error:
                self._session.report_failure(queue.broker_name, "pull of the oldest message", error)


def _offsets(texts: Iterable[str | None]) -> tuple[Offsets, str]:
    """Return the offsets and the group among the texts; those of other sources are left out."""
    found: Offsets = {}
    group = ""
    for text in texts:
        try:
            offset = StreamOffset.of(json.loads(text or "null"))
        except (ValueError, StateError):
            continue  # of another format; or Spark has not asked for it yet
        found |= offset.queues
        group = group or offset.group
    return found, group
