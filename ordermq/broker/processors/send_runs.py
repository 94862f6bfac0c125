"""Runs of sends: plain sends that came one after the other, stored with one write.

Clients with many sends in flight write them together, and so they are read together. One write for
all of them, one append per queue and one piece of answers take half of the time that as many writes
take. Plain is what needs nothing but its queue: known topic, no delay, no transaction, no retry,
no copy. Whatever else comes, malformed requests included, ends the run and is left to
`send.send`, which also answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext
from ordermq.broker.processors.fast_path import read_send_header, send_reply
from ordermq.broker.recent_sends import unique_id_of
from ordermq.broker.store import Append, QueueLog
from ordermq.broker.topics import is_retry_topic
from ordermq.core.contract import RecordBlock
from ordermq.errors import StoreError
from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command

# Takes requests from a position on, and returns how many of them it has handled.
SendRuns = Callable[[BrokerContext, BrokerConnection, Sequence[Command], int], int]


def no_run(
    context: BrokerContext, connection: BrokerConnection, requests: Sequence[Command], at: int
) -> int:
    """Leave every send to its handler: where requests are signed, each is checked before."""
    return 0


def send_run(
    context: BrokerContext, connection: BrokerConnection, requests: Sequence[Command], at: int
) -> int:
    """Store the plain sends from `at` on, up to the first request that is none."""
    # Two at least: one that comes alone costs less without what a run needs.
    for one in (at, at + 1):
        if one == len(requests) or requests[one].code != RequestCode.SEND_MESSAGE_V2:
            return 0
    run = _Run(context, connection)
    for number in range(at, len(requests)):
        if not run.add(requests[number]):
            break
    if run.requests:
        run.store()
    return len(run.requests)


def plain_log(context: BrokerContext, topic_name: str, queue_id: int) -> QueueLog | None:
    """Return the log of a queue whose sends are stored there as they come; None for any other."""
    topic = context.topics.sendable(topic_name)
    if (
        topic is None
        or not topic.is_writable
        or is_retry_topic(topic.name)
        or not 0 <= queue_id < max(topic.read_queues, topic.write_queues)
    ):
        return None
    return context.store.log(topic.name, queue_id)


class _Records:
    """The records of several sends to one queue; a `RecordBlock`."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: list[RecordBlock]) -> None:
        self._blocks = blocks  # of one record each

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def tags(self) -> list[int]:
        return [tag for block in self._blocks for tag in block.tags]

    def rows(self, queue_offset: int, physical_offset: int) -> list[tuple[int, int, bytearray]]:
        found: list[tuple[int, int, bytearray]] = []
        for number, block in enumerate(self._blocks):
            found += block.rows(queue_offset + number, physical_offset + number)
        return found


class _QueuePart:
    """Part of a run that one queue gets."""

    __slots__ = ("append", "blocks", "log", "stored_ms", "with_id", "write")

    def __init__(self, log: QueueLog, stored_ms: int, write: Callable[..., RecordBlock]) -> None:
        self.log = log
        self.stored_ms = stored_ms
        self.write = write
        self.blocks: list[RecordBlock] = []
        self.with_id: list[int] = []  # positions of messages that `RecentSends` has noted
        self.append = Append(log, _Records(self.blocks))


class _Run:
    """The sends of one run, and their answers."""

    __slots__ = ("_connection", "_context", "_part_of", "_parts", "_places", "requests")

    def __init__(self, context: BrokerContext, connection: BrokerConnection) -> None:
        self._context = context
        self._connection = connection
        # By the fields of a header that choose the queue, as they were sent; None: not plain.
        self._part_of: dict[tuple[str, ...], _QueuePart | None] = {}
        self._parts: dict[QueueLog, _QueuePart] = {}
        self.requests: list[Command] = []
        self._places: list[tuple[_QueuePart, int]] = []  # of each request, as its answer tells

    def add(self, request: Command) -> bool:
        """Take a request into the run, if it is a plain send."""
        if request.code != RequestCode.SEND_MESSAGE_V2 or request.is_response:
            return False
        ext, body = request.ext, request.body
        try:
            key = (ext["a"], ext["b"], ext["c"], ext["d"], ext["e"])
            part = self._part_of[key] if key in self._part_of else self._find_part(key, ext)
            properties = ext.get("i", "")
            if part is None or is_special(ext, properties):
                return False
            raw = properties.encode()
            if len(body) > self._context.config.max_message_bytes:
                return False
            record = part.write(
                body, raw,
                flag=int(ext["h"]), sys_flag=int(ext["f"]), born_ms=int(ext["g"]),
                stored_ms=part.stored_ms,
            )  # fmt: skip
            unique_id = unique_id_of(properties)
            if unique_id is not None:
                # Last, because it notes the id: what follows must not fail.
                if self._context.recent_sends.begin(part.log, unique_id) is not None:
                    return False
                part.with_id.append(len(part.blocks))
        except Exception:  # noqa: BLE001 - the handler of single sends meets it again and answers
            return False
        self._places.append((part, len(part.blocks)))
        part.blocks.append(record)
        self.requests.append(request)
        return True

    def _find_part(self, key: tuple[str, ...], ext: Mapping[str, str]) -> _QueuePart | None:
        header, part = read_send_header(ext), None
        log = plain_log(self._context, header.topic, header.queue_id)
        if log is not None:
            part = self._parts.get(log) or self._new_part(log)
        self._part_of[key] = part
        return part

    def _new_part(self, log: QueueLog) -> _QueuePart:
        write = self._connection.writer(log.topic, log.queue_id).write
        part = self._parts[log] = _QueuePart(log, self._context.routing.stored_now(log), write)
        return part

    def store(self) -> None:
        """Store the messages; their answers follow."""
        appends = [part.append for part in self._parts.values() if part.blocks]
        try:
            self._context.routing.append(appends, self._finish)
        except StoreError as error:  # the broker is closing
            self._finish(error)

    def _finish(self, error: StoreError | None) -> None:
        recent_sends = self._context.recent_sends
        for part in self._parts.values():
            for position in part.with_id:
                if error is None:
                    recent_sends.stored(part.log, part.append.first_offset + position)
                else:
                    recent_sends.failed(part.log)
        if error is None:
            self._answer()
            return
        for request in self.requests:
            self._context.reply_write_failed(self._connection, request, error)

    def _answer(self) -> None:
        host, answers = self._connection.store_host_hex, []
        for request, (part, position) in zip(self.requests, self._places, strict=True):
            if not request.is_oneway:
                offset = part.append.first_offset + position
                message_id = f"{host}{part.log.physical_offset(offset):016X}"
                answers.append(send_reply(request.opaque, message_id, part.log.queue_id, offset))
        if answers:
            self._connection.send(b"".join(answers))


def is_special(ext: Mapping[str, str], properties: str) -> bool:
    """Return True if a send may need more than its queue."""
    # Words in properties that mean nothing of this kind only cost a write of their own.
    return (
        ext.get("j", "0") != "0"  # a retry
        or "l" in ext
        or props.REPLY_TO_CLIENT in properties
        or props.TRANSACTION_PREPARED in properties
        or "DELAY" in properties
        or "TIMER_DELIVER" in properties
    )
