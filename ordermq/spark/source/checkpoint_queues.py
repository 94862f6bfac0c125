"""The queues of a checkpoint: whether the query still selects them, and whether they are there.

Nothing here asks for what a queue holds: whether one that is there is still the queue that the
stream has read, `queue_lives.py` finds out.
"""

from __future__ import annotations

import logging

from ordermq.client.session import ClientSession
from ordermq.errors import DataLoss, OrderMQError, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import TopicRoute
from ordermq.spark.options import SourceOptions, queue_text
from ordermq.spark.session import closed_error
from ordermq.spark.source.latest_offsets import LatestOffsets
from ordermq.spark.source.offsets import Offsets, StreamOffset
from ordermq.spark.source.queue_lives import topic_and_broker
from ordermq.spark.source.task_ranges import Range

_log = logging.getLogger("ordermq.spark")
_RETRY_MS = 200  # of a batch that waits for queues without a route


class CheckpointQueues:
    """Tells which queues of a checkpoint one run of a query reads; on the driver's thread.

    A queue that is gone ends the query, or is warned of once, with `fail_on_data_loss=false`.

    Args: latest: of the same run; it knows the routes.
    """

    def __init__(
        self, session: ClientSession, options: SourceOptions, latest: LatestOffsets
    ) -> None:
        self._session = session
        self._options = options
        self._latest = latest
        self._began_ms = session.clock.now_ms()
        self._warned: set[str] = set()

    def selected(self, offsets: Offsets) -> Offsets:
        """Return those of queues that the query reads; raises as `check_selected`."""
        self.check_selected(offsets)
        reads = self._options.selection.reads
        return {queue: at for queue, at in offsets.items() if reads(queue)}

    def check_selected(self, offsets: Offsets) -> None:
        """Refuse the checkpoint of another selection; of what is read no more, or warn."""
        selection = self._options.selection
        left_out = [queue for queue in offsets if not selection.reads(queue)]
        if not left_out:
            return
        known = sorted({queue.topic for queue in offsets})
        missing = sorted(
            {queue_text(queue) if selection.queues else queue.topic for queue in left_out}
        )
        error = StateError(
            f"the checkpoint is of topic {', '.join(known)}, and the query reads {selection}: give "
            f"the query a checkpointLocation of its own, or add {', '.join(missing)} to option "
            f"{selection.option}. With fail_on_data_loss=false what is left out of several is read "
            "no more"
        )
        if len(left_out) == len(offsets):
            raise error
        self._fail_or_warn(error)

    def routed(self, offsets: Offsets) -> Offsets:
        """Return those of queues that are in a route, and not closed for reads."""
        routed = self._latest.routed
        return {queue: at for queue, at in offsets.items() if routed is None or queue in routed}

    def check_not_gone(self, start: Offsets, *, ends_here: bool) -> bool:
        """Return whether the routes have all queues; raise, or warn, where one is gone.

        Args: ends_here: the run ends, or may end, with the messages that exist now.
        Raises: DataLoss: a queue is gone. RouteError: one is closed, and the run may end here.
        """
        latest = self._latest
        routed = latest.routed
        if routed is None or routed.issuperset(start):
            return True
        absent = sorted(set(start) - routed)
        closed = [queue for queue in absent if topic_and_broker(queue) in latest.closed]
        if closed:
            self._tell_of_closed(closed, ends_here=ends_here)
        present = {topic_and_broker(queue) for queue in routed}
        gone = {
            queue: reason
            for queue in absent
            if queue not in closed
            and (reason := self._why_gone(queue, present, ends_here=ends_here))
        }
        if gone:
            first, reason = next(iter(gone.items()))
            self._fail_or_warn(
                DataLoss(
                    f"{len(gone)} queues of the stream are gone, {reason}. Bring it back, "
                    "or set fail_on_data_loss=false to continue without them. "
                    "What they had from the stream's offset on was not read",
                    topic=first.topic,
                    broker=first.broker_name,
                    queue_id=first.queue_id,
                    offset=start[first],
                )
            )
        return False

    def without_gone(self, ranges: list[Range]) -> list[Range]:
        """Return the ranges of a batch that runs again without the queues that are in no route.

        Waits for them as a running stream does, and warns of those that do not come back.
        """
        session = self._session
        topics = {queue.topic for queue, _, _ in ranges}
        deadline_ms = self._began_ms + session.config.forget_broker_after_ms
        while True:
            try:
                routes = session.call(self._routes_now(topics))
            except OrderMQError:
                return ranges  # nobody tells: whoever reads them waits, and says why
            routed = {
                MessageQueue(topic, data.broker_name, number)
                for topic, route in routes.items()
                for data in (() if route is None else route.queues)
                for number in range(data.read_queue_nums)
            }
            gone = [each for each in ranges if each[0] not in routed]
            # Also with `availableNow`: what this batch leaves out no later one reads.
            if not gone or session.clock.now_ms() > deadline_ms:
                break
            session.call(session.clock.sleep_ms(_RETRY_MS))
        for queue, start, end in gone:
            _log.warning(
                "%s: %d messages of a batch that runs again are left out, offsets %d to %d: the "
                "queue is in no route any more",
                queue_text(queue),
                end - start,
                start,
                end - 1,
            )
        return [each for each in ranges if each not in gone]

    async def _routes_now(self, topics: set[str]) -> dict[str, TopicRoute | None]:
        routes = self._session.routes
        await routes.refresh_all()
        return await routes.get_all(topics)

    def check_order(self, start: Offsets, end: StreamOffset, *, is_first: bool) -> None:
        """Refuse a batch that ends before its start.

        Args: is_first: it is the first one of the query.
        Raises: StateError: the checkpoint is not this query's. DataLoss: see `_taken_before`.
        """
        reads = self._options.selection.reads
        # The first batch begins at no offset of a checkpoint. Where it runs again, a queue that has
        # come since is none of it: the next batch lets it enter.
        for queue, at in start.items():
            if queue in end.anew or (is_first and queue not in end.queues):
                continue
            if is_first and end.queues[queue] < at:
                self._fail_or_warn(_taken_before(queue, at, end.queues[queue]))
            elif end.queues.get(queue, -1 if reads(queue) else at) < at:
                raise StateError(
                    f"the checkpoint has {queue_text(queue)} at {at}, then at "
                    f"{end.queues.get(queue)}: start with a new checkpoint. This one was changed "
                    "by hand, or belongs to another query"
                )

    def _why_gone(
        self, queue: MessageQueue, present: set[tuple[str, str]], *, ends_here: bool
    ) -> str:
        """Return why a queue without a route is gone; empty while it may come back by itself."""
        latest, session = self._latest, self._session
        if queue.topic in latest.missing:
            return f"no name server has topic {queue.topic} any more: it was deleted"
        # A broker that restarts is in no route for a while. Not so a queue whose broker still has
        # others of the topic, nor in a run that ends with what there is now.
        if topic_and_broker(queue) in present:
            return f"broker {queue.broker_name} has fewer queues of the topic now"
        since_ms = latest.gone.get(queue, self._began_ms)
        is_late = session.clock.now_ms() - since_ms > session.config.forget_broker_after_ms
        if is_late or ends_here:
            return f"broker {queue.broker_name} is in no route of the topic any more"
        return ""

    def _tell_of_closed(self, queues: list[MessageQueue], *, ends_here: bool) -> None:
        """Warn once that the stream waits for queues; raise in a run that ends with what is there.

        Raises: RouteError: the run would end as if it had read them.
        """
        topic = queues[0].topic
        error = closed_error(topic, {q.broker_name for q in queues if q.topic == topic})
        if ends_here:
            raise error
        self._warn_once(f"{error}. The query waits for it")

    def _fail_or_warn(self, error: OrderMQError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        self._warn_once(str(error))

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)


def _taken_before(queue: MessageQueue, at: int, end: int) -> DataLoss:
    return DataLoss(
        f"the first batch of the query, which runs again, ends at offset {end}, and its start is "
        f"at offset {at} now: begin with a new checkpoint, or set fail_on_data_loss=false to go "
        "on. Its messages expired, or another member of the group has taken them",
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        offset=end,
    )
