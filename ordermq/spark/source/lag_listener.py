"""LagListener: the lag of a session's streaming queries, for people, programs and Prometheus."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.consumer.queue.statistics import Lag
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import client_of
from ordermq.spark.source.stream_lag import BatchOffsets, LagReport, StreamLag
from ordermq.threads import Lock

_log = logging.getLogger("ordermq.spark")


class LagListener(StreamingQueryListener):
    """Reports how far the streaming queries of a session are behind, per topic and queue.

        lag = LagListener(name_servers="127.0.0.1:9876")
        spark.streams.addListener(lag)

    The queries do not notice: Spark reports their offsets anyhow, and this listener asks the
    brokers by itself, on its own connections. `report` has the lag as JSON, the logger
    `ordermq.spark` a line per query and topic, `PrometheusMetrics.watch_queries` the metrics of
    consumers (docs/metrics.md).

    Tested on classic sessions only: with Spark Connect, Spark calls listeners in the client, which
    would have to reach the brokers.

    Args:
        log_interval_ms: minimum time between two lines about a topic; they come with Spark's
            reports, of an idle query every 10 s.
        clock: for tests.
        options: `name_servers` and the options of accounts and connections, as of the source.
    Raises: ConfigError: an option is missing or wrong.
    """

    def __init__(
        self, *, log_interval_ms: int = 10_000, clock: Clock | None = None, **options: Any
    ) -> None:
        name_servers, remoting = client_of(options)
        self._session = ClientSession(name_servers, remoting, clock=clock)
        self._log_interval_ms = log_interval_ms
        self._lock = Lock()  # Spark's thread, the user's and a scrape's come here
        self._queries: dict[str, StreamLag] = {}
        self._logged_ms: int | None = None
        self._is_closed = False

    def report(self) -> list[dict[str, Any]]:
        """Return the lag of each running query now, as JSON with the names of `lastProgress`.

        Waits for the brokers, for at most some seconds where one is away: its queues have
        `isCurrent: false` and their last known end. `seconds` is the age of the oldest message that
        the query has not finished; null if it is not known.
        """
        return [each.to_dict() for each in self._measure()]

    def lag(self) -> dict[str, dict[MessageQueue, Lag]]:
        """Return the lag of each queue, by the group of its query, or else the query's name or id.

        Waits as `report`.
        """
        found: dict[str, dict[MessageQueue, Lag]] = {}
        for each in self._measure():
            lags = found.setdefault(each.title, {})
            for queue, one in each.queues.items():
                # Two queries of one group that hold no locks: the one that is farther behind.
                lags[queue] = max(lags.get(queue, one.lag), one.lag, key=lambda lag: lag.messages)
        return found

    def close(self) -> None:
        """Disconnect; after `spark.streams.removeListener`. Nothing is reported afterwards."""
        with self._lock:
            self._is_closed = True
            self._queries.clear()
        self._session.close()

    # Called by Spark, on a thread of its own. None of them waits: events behind them would.

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the query has no offsets yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Note the offsets of a finished micro-batch."""
        batch = batch_of(event.progress)
        with self._lock:
            if self._is_closed:
                return
            self._queries.setdefault(batch.query_id, StreamLag(self._session)).note(batch)
        self._log_if_due()

    def onQueryIdle(self, event: Any) -> None:
        """Log the lag of a query without messages: it may be behind in what it waits for."""
        self._log_if_due()

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query."""
        with self._lock:
            self._queries.pop(str(event.id), None)

    def _log_if_due(self) -> None:
        now_ms = self._session.clock.now_ms()
        with self._lock:
            is_due = self._logged_ms is None or now_ms - self._logged_ms >= self._log_interval_ms
            if not is_due or self._is_closed or not _log.isEnabledFor(logging.INFO):
                return
            self._logged_ms = now_ms
            runtime = self._session.runtime
            runtime.post(lambda: runtime.spawn(self._log_lag(), "lag of queries"))

    def _measure(self) -> list[LagReport]:
        # Within the lock: the I/O thread takes nothing after `close`, and would not answer.
        with self._lock:
            if self._is_closed:
                return []
            work = self._session.submit(self._reports())
        try:
            return work.result()
        except concurrent.futures.CancelledError:
            return []  # closed meanwhile

    # On the I/O thread.

    async def _reports(self) -> list[LagReport]:
        with self._lock:
            queries = list(self._queries.values())
        reports = await asyncio.gather(*(query.measure() for query in queries))
        return [report for report in reports if report is not None]

    async def _log_lag(self) -> None:
        for report in await self._reports():
            for topic in report.topics:
                lag = report.lag_of(topic)
                behind = {
                    queue: each.lag.messages
                    for queue, each in report.queues.items()
                    if queue.topic == topic and each.lag.messages
                }
                _log.info(
                    "lag: query=%s topic=%s batch=%d messages=%d seconds=%s queues_behind=%d "
                    "most=%s%s",
                    report.title,
                    topic,
                    report.batch.batch_id,
                    lag.messages,
                    "unknown" if lag.seconds is None else f"{lag.seconds:.1f}",
                    len(behind),
                    max(behind, key=lambda queue: behind[queue]) if behind else "none",
                    "" if lag.is_current else " (a broker does not answer: last known ends)",
                )


def batch_of(progress: Mapping[str, Any]) -> BatchOffsets:
    """Return what a progress report of Spark says about offsets."""
    sources = progress["sources"]
    return BatchOffsets(
        str(progress["id"]),
        str(progress["runId"]),
        progress["name"],
        progress["batchId"],
        progress["timestamp"],
        tuple(source["startOffset"] for source in sources),
        tuple(source["endOffset"] for source in sources),
        tuple(source["latestOffset"] for source in sources),
    )
