"""The offsets of a read: where it begins, where the queues end, how far the next batch goes.

`StreamOffset` and `advance` are pure. `resolve_boundary` and `resolve_snapshot` ask the brokers
once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from ordermq.client.queue_life import QueueMark
from ordermq.client.session import ClientSession
from ordermq.client.store_times import offset_at_time
from ordermq.core.status import MAX_OFFSET
from ordermq.errors import ConfigError, DataLoss, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import (
    Boundary,
    Edge,
    Selection,
    SourceOptions,
    parse_queue,
    queue_text,
)
from ordermq.spark.session import closed_brokers, closed_error, queues_of, selected_topics
from ordermq.spark.source.queue_lives import Marks, StoreTimes

_T = TypeVar("_T")
_log = logging.getLogger("ordermq.spark")
# No topic name is empty, so no queue can have these names. Checkpoints have them: never change
# them.
_RUN_ID: Final = "@lease"
_TASKS: Final = "@tasks"
_GROUP: Final = "@group"  # in no checkpoint: only in what a query reports of its queues' ends
_ANEW: Final = "@anew"
_START: Final = "@start"
_MARKS: Final = "@marks "  # and the topic and broker, as in `_compact`
_STORED: Final = "@stored "  # likewise
_VERSION: Final = "@version"  # only where a version before it could not read the offset
_PACKED_VERSION: Final = 2
_MARKED_VERSION: Final = 3
_STARTED_VERSION: Final = 4
_NEWEST_VERSION: Final = 5  # with store times
# With more queues than this the offsets of a broker are one text: those of 1,000 queues would be
# 26 KB, which Spark writes twice per batch and passes to Python at each call.
_MOST_BY_NAME: Final = 64
Offsets = dict[MessageQueue, int]
OffsetJson = dict[str, int | str]  # as Spark stores it
Ranges = dict[MessageQueue, tuple[int, int]]  # first offset, and end, exclusive


# Pure functions over {queue: next offset to read}.


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset of a stream, as Spark keeps it in the checkpoint.

    Args:
        queues: the next offset to read of each queue.
        run_id: of the run that wrote it, `@lease` in the checkpoint; None when it holds no locks.
        tasks: of the batch that ends here, `@tasks`; None: each queue is read by one of its own.
        group: of the query, `@group`, where the ends of its queues are reported; else empty.
        marks: by which the lives of queues are known again, `@marks ...`, one text per broker.
        stored: a time in ms per topic and broker, `@stored ...`: what is before the offsets there
            was stored by then.
        anew: queues that go on in a new life from here on, `@anew`: this batch reads none of them.
        is_start: the stream begins here, `@start`: this batch reads nothing, wherever a start that
            is decided again would be.
    """

    queues: Offsets
    run_id: int | None = None
    tasks: int | None = None
    group: str = ""
    marks: Marks = field(default_factory=dict)
    stored: StoreTimes = field(default_factory=dict)
    anew: frozenset[MessageQueue] = frozenset()
    is_start: bool = False

    @classmethod
    def of(cls, members: Any) -> StreamOffset:
        """Read what `to_json` made.

        Raises: StateError: the checkpoint is not one of this source, or of a later version.
        """
        try:
            named = dict(members)
            _check_version(named.pop(_VERSION, None))
            run_id = _whole_or_none(named.pop(_RUN_ID, None), "a lease")
            tasks = _whole_or_none(named.pop(_TASKS, None), "a number of tasks", least=1)
            group, is_start = str(named.pop(_GROUP, "")), bool(named.pop(_START, False))
            anew = frozenset(map(parse_queue, filter(None, named.pop(_ANEW, "").split(","))))
            queues: Offsets = {}
            marks: Marks = {}
            stored: StoreTimes = {}
            for key, at in named.items():
                if key.startswith(_MARKS):
                    marks |= _by_number(key.removeprefix(_MARKS), at, QueueMark.parse)
                    continue
                if key.startswith(_STORED):
                    place = _topic_and_broker(key.removeprefix(_STORED))
                    stored[place] = _whole(at, "a store time")
                    continue
                found = _queues_of_text(key, at) if isinstance(at, str) else {parse_queue(key): at}
                for queue, offset in found.items():
                    if queue in queues:
                        raise ValueError(f"{key!r} names {queue_text(queue)} a second time")
                    queues[queue] = _whole(offset, f"an offset of {queue_text(queue)}")
            return cls(queues, run_id, tasks, group, marks, stored, anew, is_start)
        except (ValueError, TypeError, AttributeError) as error:
            raise StateError(
                "the checkpoint holds no offset of this source: give this query a "
                "checkpointLocation of its own. It may have been written by another query: "
                f"{error}"
            ) from error

    def to_json(self) -> OffsetJson:
        """Return what Spark stores: the same text for the same offsets."""
        # Spark compares offsets as JSON texts and starts a batch where two differ. Sorted keys and
        # plain ints (not NumPy's) give one text per offset.
        is_compact = len(self.queues) > _MOST_BY_NAME
        members: OffsetJson = {}
        if is_compact:
            members |= _compact(self.queues)
        else:
            members |= {queue_text(queue): int(at) for queue, at in self.queues.items()}
        if self.run_id is not None:
            members[_RUN_ID] = self.run_id
        if self.tasks is not None:
            members[_TASKS] = self.tasks
        if self.group:
            members[_GROUP] = self.group
        if self.anew:
            members[_ANEW] = ",".join(queue_text(queue) for queue in sorted(self.anew))
        for name, marks in _by_broker(self.marks).items():
            members[_MARKS + name] = _numbered(marks)
        for (topic, broker), stored_ms in self.stored.items():
            members[f"{_STORED}{topic}@{broker}"] = stored_ms
        if self.is_start:
            members[_START] = 1
        if self.stored:
            members[_VERSION] = _NEWEST_VERSION
        elif self.is_start:
            members[_VERSION] = _STARTED_VERSION
        elif self.anew or self.marks:
            members[_VERSION] = _MARKED_VERSION
        elif is_compact or self.tasks is not None:
            members[_VERSION] = _PACKED_VERSION
        return dict(sorted(members.items()))


def _check_version(version: Any) -> None:
    if version is not None and version not in range(_PACKED_VERSION, _NEWEST_VERSION + 1):
        raise StateError(
            f"the checkpoint has version {version}, this ordermq reads up to {_NEWEST_VERSION}: "
            "continue with the later ordermq that wrote it, or give this query a new "
            "checkpointLocation"
        )


def _whole(value: Any, what: str, least: int = 0) -> int:
    # A number that is brought into form would be another place in the queue, in silence.
    if type(value) is not int or not least <= value <= MAX_OFFSET:
        raise ValueError(f"{value!r} is not {what}")
    return value


def _whole_or_none(value: Any, what: str, least: int = 0) -> int | None:
    return None if value is None else _whole(value, what, least)


def _by_broker(by_queue: Mapping[MessageQueue, _T]) -> dict[str, dict[int, _T]]:
    """Return the values by `topic@broker`, and queue id."""
    found: dict[str, dict[int, _T]] = {}
    for queue, value in by_queue.items():
        found.setdefault(f"{queue.topic}@{queue.broker_name}", {})[queue.queue_id] = value
    return found


def _numbered(values: Mapping[int, object]) -> str:
    # By queue id from 0 on; nothing between two commas where a queue is missing.
    return ",".join(str(values[n]) if n in values else "" for n in range(max(values) + 1))


def _by_number(name: str, text: str, value: Callable[[str], _T]) -> dict[MessageQueue, _T]:
    """Return the values of a text made by `_numbered`, for the queues of a `topic@broker`."""
    topic, broker = _topic_and_broker(name)
    return {
        MessageQueue(topic, broker, number): value(each)
        for number, each in enumerate(text.split(","))
        if each
    }


def _topic_and_broker(name: str) -> tuple[str, str]:
    topic, _, broker = name.partition("@")
    if not topic or not broker:
        raise ValueError(f"{name!r} is no topic@broker")
    return topic, broker


def _compact(queues: Offsets) -> dict[str, str]:
    """Return the offsets of each topic and broker as a text: the lowest, and what to add to it."""
    texts: dict[str, str] = {}
    for name, offsets in _by_broker(queues).items():
        lowest = min(offsets.values())
        more = {number: int(at - lowest) for number, at in offsets.items()}
        texts[name] = f"{int(lowest)}+{_numbered(more)}"
    return texts


def _queues_of_text(name: str, text: str) -> Offsets:
    lowest, plus, more = text.partition("+")
    if not plus:
        raise ValueError(f"{name!r}: {text[:40]!r} are no offsets of a broker's queues")
    return _by_number(name, more, lambda each: int(lowest) + int(each))


def advance(start: Offsets, latest: Mapping[MessageQueue, int], limit: int | None) -> Offsets:
    """Return the end of the next batch: towards `latest`, at most `limit` messages altogether."""
    backlog = {queue: max(latest.get(queue, at) - at, 0) for queue, at in start.items()}
    # The sum of the offsets changes with each batch, so the remainder of the division goes to
    # other queues each time, and there is no counter to keep over restarts.
    steps = backlog if limit is None else share_fairly(backlog, limit, sum(start.values()))
    return {queue: at + steps[queue] for queue, at in start.items()}


def share_fairly(backlog: Mapping[MessageQueue, int], limit: int, rotation: int) -> Offsets:
    """Return how many messages of each queue make up to `limit`, equally divided.

    A queue with less than its share leaves the rest to the others.

    Args:
        backlog: messages waiting, by queue.
        rotation: which queues get the remainder of the division; with a number that changes, no
            queue is left out forever.
    """
    shares = dict(backlog)
    left = limit
    # Ascending by backlog, so that each queue with less than an equal share is settled before
    # the share of the others is computed.
    open_queues = sorted(backlog, key=lambda queue: (backlog[queue], queue))
    while open_queues and backlog[open_queues[0]] * len(open_queues) <= left:
        left -= backlog[open_queues.pop(0)]
    if open_queues:
        each, rest = divmod(left, len(open_queues))
        open_queues.sort()
        first = rotation % len(open_queues)
        for index, queue in enumerate(open_queues[first:] + open_queues[:first]):
            shares[queue] = each + (index < rest)
    return shares


# Resolving a boundary: the brokers are asked once, and the answer is kept.


async def resolve_snapshot(session: ClientSession, options: SourceOptions) -> Ranges:
    """Return the offsets that a batch read takes, of each queue that has any.

    Raises: as `resolve_boundary`.
    """
    start = options.batch_start()
    if start == Boundary(Edge.LATEST):
        raise ConfigError(
            "option starting_offsets='latest' reads nothing in a batch, which ends there, too: "
            "give earliest, offsets or starting_timestamp, or use spark.readStream"
        )
    check_past(start, session.clock.wall_ms())
    queues = await first_queues(session, options.selection)
    starts = await resolve_boundary(session, options, start, queues)
    warn_of_unnamed(start, queues)
    if not queues:
        raise ConfigError(
            f"option topic_pattern={str(options.selection)!r} matches no topic: a batch would read "
            "nothing. It must match whole names"
        )
    ends = await resolve_boundary(session, options, options.end, queues)
    if options.max_rows is not None:
        ends = advance(starts, ends, options.max_rows)
    return {queue: (at, ends[queue]) for queue, at in starts.items() if at < ends[queue]}


async def first_queues(session: ClientSession, selection: Selection) -> list[MessageQueue]:
    """Return the queues with which a query begins.

    Raises: ConfigError: a queue that is named does not exist. RemotingError, RouteError: no broker
        answers, none has a topic, or a topic is closed for reads.
    """
    topics = await selected_topics(session, selection)
    queues = await queues_of(session, selection, topics)
    closed = await closed_brokers(session, topics)
    for topic in sorted({topic for topic, _ in closed}):
        error = closed_error(topic, (broker for each, broker in closed if each == topic))
        if not any(queue.topic == topic for queue in queues):
            raise error
        _log.warning("%s. What they have is not read before", error)
    if unknown := sorted(selection.queues.difference(queues)):
        raise ConfigError(
            f"option queues names {queue_text(unknown[0])}, which does not exist: "
            "`ordermq topics describe TOPIC` lists the queues of a topic"
        )
    return queues


def check_past(start: Boundary, now_ms: int) -> None:
    """Refuse a start in the future: it would be the present end of each queue.

    Raises: ConfigError: names the time.
    """
    times = [at for _, at in start.timestamps]
    latest = max(times) if start.timestamp_ms is None and times else start.timestamp_ms
    if latest is not None and latest > now_ms:
        moment = datetime.fromtimestamp(latest / 1_000, UTC).isoformat()
        raise ConfigError(
            f"option starting_timestamp is {moment}, in the future: give ms since 1970 or ISO 8601 "
            "of a time that has passed; one without a zone is the driver's local time"
        )


def warn_of_unnamed(start: Boundary, queues: Sequence[MessageQueue]) -> None:
    """Warn of queues that a start by queue does not name: they are read from their beginning."""
    unnamed = set(queues).difference(start.named)
    if start.named and unnamed:
        _log.warning(
            "the start names %d of %d queues, and the others are read from their beginning: to "
            "read only some, give option queues",
            len(start.named),
            len(start.named) + len(unnamed),
        )


async def resolve_boundary(
    session: ClientSession,
    options: SourceOptions,
    boundary: Boundary,
    queues: Sequence[MessageQueue],
) -> Offsets:
    """Return the offset of each queue at a boundary.

    Raises: ConfigError: it names an unknown queue, or an offset after the queue's end. DataLoss:
        it names an expired offset. RemotingError, RouteError: no broker answers.
    """
    if unknown := sorted(set(boundary.named).difference(queues)):
        known = ", ".join(map(queue_text, queues))
        raise ConfigError(
            f"offsets are given for {queue_text(unknown[0])}, which does not exist; the queues "
            f"are {known}"
        )
    named, times = dict(boundary.offsets), dict(boundary.timestamps)
    found = await asyncio.gather(
        *(
            _resolve(session, options, queue, named.get(queue, boundary.edge),
                     times.get(queue, boundary.timestamp_ms))
            for queue in queues
        )
    )  # fmt: skip
    return dict(zip(queues, found, strict=True))


async def earliest_offsets(session: ClientSession, queues: Sequence[MessageQueue]) -> Offsets:
    """Return the oldest offset that each queue still has."""
    found = await asyncio.gather(
        *(
            session.api.min_offset(session.routes.master_of(queue.broker_name), queue)
            for queue in queues
        )
    )
    return dict(zip(queues, found, strict=True))


async def _resolve(
    session: ClientSession,
    options: SourceOptions,
    queue: MessageQueue,
    where: int | Edge,
    timestamp_ms: int | None,
) -> int:
    api, address = session.api, session.routes.master_of(queue.broker_name)
    if isinstance(where, int):
        return await _checked(session, options, queue, where)
    if timestamp_ms is not None:
        return await offset_at_time(session, options.read_group, queue, timestamp_ms)
    if where is Edge.LATEST:
        return await api.max_offset(address, queue)
    if where is Edge.GROUP:
        stored = await api.query_offset(address, options.group, queue)
        # A group which never committed has no offset, or a negative one: the queue begins at its
        # earliest message then.
        if stored is not None and stored >= 0:
            return await _checked(session, options, queue, stored, is_groups=True)
    return await api.min_offset(address, queue)


async def _checked(
    session: ClientSession,
    options: SourceOptions,
    queue: MessageQueue,
    offset: int,
    *,
    is_groups: bool = False,
) -> int:
    """Return the offset, or the earliest one where it expired and data loss is allowed.

    Args: is_groups: the group has stored it. Past the end it is one of the topic's life before.
    """
    api, address = session.api, session.routes.master_of(queue.broker_name)
    earliest, latest = await asyncio.gather(
        api.min_offset(address, queue), api.max_offset(address, queue)
    )
    if earliest <= offset <= latest:
        return offset
    where = f"offset {offset} of {queue_text(queue)}; the broker has {earliest}..{latest}"
    if offset > latest and is_groups:
        if options.fail_on_data_loss:
            raise DataLoss(
                f"group {options.group} has {where}: give starting_offsets='earliest', or set "
                "fail_on_data_loss=false to begin with the first message. The topic was deleted "
                "and created again, or the broker lost messages",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                offset=offset,
            )
        _log.warning("group %s has %s: the queue is read from its beginning", options.group, where)
        return earliest
    if offset > latest:
        raise ConfigError(f"{where}: give an offset that is not after the queue's end")
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{where}: begin at a later offset, or set fail_on_data_loss=false. The messages "
            "before that expired",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=offset,
        )
    _log.warning("%s: %d messages expired before they were read", where, earliest - offset)
    return earliest
