"""Handlers of POP: messages leased in order or without, acknowledged, renewed and given back
(docs/internals/protocol.md#pop; the rules of docs/internals/semantics.md#pop and
#pop-without-order).

A request with `omqFenced`, as ordermq's clients send it, is refused with OMQ_FENCED where its batch
has been given to another member. To others that is answered with success, as RocketMQ does it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.consumer_offsets import OffsetKey
from ordermq.broker.context import BrokerContext, Handler
from ordermq.broker.held_pops import HeldPop
from ordermq.broker.pop_leases import PopLease, next_lease
from ordermq.broker.processors.pull import readers_of, wanted_tags
from ordermq.broker.store import Done, QueueLog, Write, joined
from ordermq.errors import StoreError
from ordermq.events import EventType
from ordermq.model import properties as props
from ordermq.model.stored_message import StoredMessage, queue_offsets, split_records
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import (
    BROKERS_TIME,
    FROM_FIRST,
    MAX_POPPED,
    NORMAL,
    ORDERED,
    RETRIES,
    UNORDERED,
    AckHeader,
    BatchAck,
    ChangeInvisibleHeader,
    ChangeInvisibleReplyHeader,
    PopHandle,
    PopHeader,
    PoppedOffsets,
    PopReplyHeader,
    acks_from_body,
    offsets_to_texts,
    real_topic,
)

_LATE_MS = 500  # as RocketMQ's isTimeoutTooMuch
MAX_INVISIBLE_MS = 7 * 24 * 3_600_000


class _Found(NamedTuple):
    """Messages that a pop found in one queue, and the offset behind what it has looked at."""

    key: OffsetKey
    start: int
    end: int
    offsets: list[int]
    body: bytes
    rest: int


def pop(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = PopHeader.from_ext(request.ext)
    context.statistics.pops += 1
    tag_hashes = _check(context, header)
    now_ms = context.steady.ms()
    held = HeldPop(connection, request, header, tag_hashes, now_ms + header.poll_ms, 0)
    if _answer(context, held):
        return
    if header.poll_ms <= 0:
        _reply_nothing(context, held, ResponseCode.POLLING_TIMEOUT)
    elif not context.held_pops.hold(held):
        context.statistics.pulls_refused += 1
        _reply_nothing(context, held, ResponseCode.POLLING_FULL)


def look_again(context: BrokerContext, held: HeldPop) -> bool:
    """Evaluate a held pop again; return False if it must go on waiting."""
    context.topics.existing(held.header.topic)  # it may have been deleted meanwhile
    if _answer(context, held):
        return True
    if context.steady.ms() < held.deadline_ms:
        return False
    _reply_nothing(context, held, ResponseCode.POLLING_TIMEOUT)
    return True


def _check(context: BrokerContext, header: PopHeader) -> tuple[int, ...]:
    """Check that the pop is allowed; return the tag hashes it filters by, none for all."""
    _, topic = readers_of(context, header.group, header.topic, header.expression_type)
    _check_range(header.queue_id, -1, topic.read_queues - 1, f"queue of topic {topic.name!r}")
    _check_range(header.max_messages, 1, MAX_POPPED, "messages of a pop")
    _check_range(header.invisible_ms, 1, MAX_INVISIBLE_MS, "invisible time in ms")
    # Clients that pop by their own clock follow changes of the system's; those that know this
    # broker's have its steady one from its answers.
    age_ms = min(context.clock.wall_ms(), context.steady.ms()) - header.born_ms
    if header.born_ms != BROKERS_TIME and age_ms - max(header.poll_ms, 0) > _LATE_MS:
        raise RequestRefused(
            ResponseCode.POLLING_TIMEOUT,
            f"the pop is {age_ms} ms old, and wanted to wait {header.poll_ms} ms: set the clocks "
            "of client and broker",
        )
    return wanted_tags(header.expression or "*")


def _check_range(number: int, least: int, most: int, what: str) -> None:
    if not least <= number <= most:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"{what}: {number}: expected {least}..{most}"
        )


def _answer(context: BrokerContext, held: HeldPop) -> bool:
    """Lease what there is to the pop and answer it; False if there is nothing now."""
    header = held.header
    topic = context.topics.existing(header.topic)
    queues: Sequence[int] = (header.queue_id,)
    if header.queue_id < 0:
        # Begun anywhere, as in RocketMQ, so that no queue is served before all others.
        first = random.randrange(topic.read_queues)
        queues = [(first + at) % topic.read_queues for at in range(topic.read_queues)]
    keys = [(header.group, header.topic, queue_id) for queue_id in queues]
    if not header.order:
        # First, as it is older. Every pop of the topic has a share in it.
        retries = real_topic(header.topic, header.group, RETRIES)
        if context.topics.sendable(retries) is not None:
            keys.insert(0, (header.group, retries, 0))
    found: list[_Found] = []
    held.look_ms = held.deadline_ms
    left, left_bytes = header.max_messages, context.config.max_pull_bytes
    for key in keys:
        if left <= 0 or left_bytes <= 0:
            break
        until_ms = _blocked_until_ms(context, header, key)
        if context.offsets.is_resetting(key) or context.topics.is_ending(header.topic):
            until_ms = -1  # its end wakes this pop
        if until_ms:
            if until_ms > 0:
                held.look_ms = min(held.look_ms, until_ms)
            continue
        part = _look_into(context, held, key, left, left_bytes)
        if part is not None:
            found.append(part)
            left -= len(part.offsets)
            left_bytes -= len(part.body)
    if found:
        _grant(context, held, found)
    return bool(found)


def _blocked_until_ms(context: BrokerContext, header: PopHeader, key: OffsetKey) -> int:
    """Return when a queue may be popped; 0: now, -1: when what changes it now is durable."""
    if header.order:
        return context.pop_leases.blocked_until_ms(key, header.attempt_id)
    return -1 if context.open_pops.is_popping(key) else 0


def _look_into(
    context: BrokerContext, held: HeldPop, key: OffsetKey, count: int, max_bytes: int
) -> _Found | None:
    """Return the next messages of a queue that nobody has leased; None if it has none now."""
    context.offsets.take_reset(key)
    log = context.store.readable_log(key[1], key[2])
    stored = context.offsets.get(key)
    start = _first_offset(context, held.header, log) if stored is None else stored
    # Told once: the group is moved behind them, by the lease or without one.
    held.expired += max(log.min_offset - start, 0)
    # Retention may have overtaken the group; beyond the end is an offset of an earlier life.
    start = min(max(start, log.min_offset), log.max_offset)
    if start == log.max_offset:
        if stored != start:
            _move(context, key, start)
        return None
    if held.tag_hashes:
        body, end = context.store.read_tagged(log, start, count, max_bytes, held.tag_hashes)
    else:
        body, end = context.store.read(log, start, count, max_bytes)
    if not body:
        # Other tags only, or the gap of a restored back-up. The move wakes this pop.
        _move(context, key, context.store.next_stored(log, end))
        return None
    return _Found(key, start, end, queue_offsets(body), body, log.max_offset - end)


def _first_offset(context: BrokerContext, header: PopHeader, log: QueueLog) -> int:
    """Return where a group without an offset starts, as RocketMQ's broker decides it."""
    if header.init_mode == FROM_FIRST or log.topic != header.topic:
        return log.min_offset  # messages to repeat were never skipped
    if context.config.new_groups_start_at_zero and log.min_offset == 0:
        return 0
    return max(log.max_offset - 1, 0)  # its last message is popped


def _move(context: BrokerContext, key: OffsetKey, offset: int) -> None:
    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.statistics.writes_failed += 1
        else:
            context.held_pops.wake(key[:2], key[2])

    context.offsets.commit(key, offset, finish)


def _grant(context: BrokerContext, held: HeldPop, found: Sequence[_Found]) -> None:
    header = held.header
    leases = [_lease_of(context, header, part) for part in found]
    # One time for all queues of an answer, which has one field for it.
    pop_ms = max(lease.pop_ms for lease in leases)
    for lease in leases:
        lease.pop_ms = pop_ms

    def answer() -> None:
        if header.order:
            until_ms = min(lease.blocked_until_ms for lease in leases)
            context.held_pops.note_lease((header.group, header.topic), until_ms)
        parts, bodies = [], []
        for part, lease in zip(found, leases, strict=True):
            is_retry = part.key[1] != header.topic
            kind = RETRIES if is_retry else NORMAL
            parts.append(
                PoppedOffsets(part.key[2], part.start, lease.offsets, lease.deliveries, kind)
            )
            bodies.append(_repeated(context, header, part, lease) if is_retry else part.body)
        body = b"".join(bodies)
        context.statistics.bytes_pulled += len(body)
        reply = PopReplyHeader(
            pop_ms,
            header.invisible_ms,
            _revive_queue(header),
            sum(part.rest for part in found),
            *offsets_to_texts(parts),
            fenced=True if header.fenced and header.order else None,
            expired=held.expired or None,
        )
        held.connection.reply(held.request, ResponseCode.SUCCESS, reply.to_ext(), body, "FOUND")

    done = context.when_durable(held.connection, held.request, answer)
    both = zip(found, leases, strict=True)
    if header.order:
        context.pop_leases.grant([(part.key, part.start, lease) for part, lease in both], done)
    else:
        context.open_pops.grant([(part.key, part.end, lease) for part, lease in both], done)


def _lease_of(context: BrokerContext, header: PopHeader, part: _Found) -> PopLease:
    if not header.order:
        return context.open_pops.next_lease(part.key, header.invisible_ms, part.offsets)
    before, now_ms = context.pop_leases.get(part.key), context.steady.ms()
    return next_lease(before, now_ms, header.invisible_ms, header.attempt_id, part.offsets)


def _revive_queue(header: PopHeader) -> int:
    return ORDERED if header.order else UNORDERED


def _repeated(context: BrokerContext, header: PopHeader, part: _Found, lease: PopLease) -> bytes:
    """Return messages of a retry topic as RocketMQ's broker sends them: as of the topic itself."""
    found = []
    for record in split_records(part.body):
        message = StoredMessage.read(record)
        handle = PopHandle(
            part.start, lease.pop_ms, lease.invisible_ms, UNORDERED, RETRIES,
            context.config.broker_name, message.queue_id,
        )  # fmt: skip
        text = handle.text(message.queue_offset)
        properties = props.with_one(message.properties, props.POP_HANDLE, text)
        found.append(message.rewritten(header.topic, properties))
    return b"".join(found)


def _reply_nothing(context: BrokerContext, held: HeldPop, code: int) -> None:
    header = held.header
    reply = PopReplyHeader(
        context.steady.ms(),
        header.invisible_ms,
        _revive_queue(header),
        expired=held.expired or None,
    )
    held.connection.reply(held.request, code, reply.to_ext(), remark="NO_MESSAGE_IN_QUEUE")


def acknowledge(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = AckHeader.from_ext(request.ext)
    handle = PopHandle.of_text(header.handle)
    log = _log_of(context, header.topic, header.queue_id)
    if not log.min_offset <= header.offset <= log.max_offset:
        raise RequestRefused(ResponseCode.NO_MESSAGE, _not_stored(header.offset, log))
    # Here the topic is named as it is, in batches by its kind.
    handle = replace(handle, topic_kind=NORMAL)
    ack = BatchAck(header.group, header.topic, handle, (header.offset,))
    again = partial(acknowledge, context, connection, request)
    _acknowledge(
        context, connection, request, [ack], again, is_fenced=bool(header.fenced), is_strict=True
    )


def acknowledge_batch(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    acks = acks_from_body(request.body)
    if not acks:
        raise RequestRefused(ResponseCode.NO_MESSAGE, "the batch ack names no message")
    is_fenced = request.ext.get("omqFenced") == "true"
    again = partial(acknowledge_batch, context, connection, request)
    _acknowledge(context, connection, request, acks, again, is_fenced=is_fenced, is_strict=False)


def _acknowledge(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    acks: Sequence[BatchAck],
    again: partial[None],
    *,
    is_fenced: bool,
    is_strict: bool,
) -> None:
    """Acknowledge messages of several batches, and answer once all of it is durable.

    Args:
        is_strict: refuse a message that is not of its batch.
    """
    # Nothing is changed before all acks are found to be possible.
    changes: dict[OffsetKey, PopLease] = {}
    unordered: list[tuple[OffsetKey, BatchAck]] = []
    for ack in acks:
        is_ordered, queue_id = ack.handle.is_ordered, ack.handle.queue_id
        kind = NORMAL if is_ordered else ack.handle.topic_kind
        key = ack.group, real_topic(ack.topic, ack.group, kind), queue_id
        _log_of(context, key[1], queue_id)
        if not is_ordered:
            unordered.append((key, ack))
            continue
        if context.is_moving(key):
            _handle_later(context, connection, request, again)
            return
        lease = changes.get(key) or _current(context, key, ack.handle, is_fenced)
        if lease is None:
            continue
        own = [offset for offset in ack.offsets if offset in lease.offsets]
        if is_strict and not own:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset {ack.offsets[0]} is not of the batch that was popped at {lease.pop_ms}",
            )
        changes[key] = lease.acknowledged(own)
    if not changes and not unordered:
        connection.reply(request, ResponseCode.SUCCESS)
        return

    def answer() -> None:
        if changes:
            context.statistics.commits += 1
        connection.reply(request, ResponseCode.SUCCESS)

    writes = len(changes) + bool(unordered)
    finish = joined(writes, context.when_durable(connection, request, answer))
    if unordered:
        _acknowledge_unordered(context, unordered, finish)

    def stored(key: OffsetKey, lease: PopLease, error: StoreError | None) -> None:
        if error is None and context.history.enabled:
            context.history.record(
                EventType.COMMIT_ACK, group=key[0], topic=key[1],
                broker=context.config.broker_name, queue=key[2], epoch=lease.pop_ms,
                off=lease.next_offset,
            )  # fmt: skip
        finish(error)

    for key, lease in changes.items():
        # An offset that an administrator has set stands.
        offset = lease.next_offset
        is_behind = offset <= (context.offsets.get(key) or 0)
        moved = None if is_behind or context.offsets.has_unseen_reset(key) else offset
        done = finish if moved is None else partial(stored, key, lease)
        context.pop_leases.change(key, lease, moved, done)


def _acknowledge_unordered(
    context: BrokerContext, acks: Sequence[tuple[OffsetKey, BatchAck]], done: Done
) -> None:
    """Acknowledge messages of batches without order; what is over counts as acknowledged, too."""
    statements = []
    for key, ack in acks:
        lease = context.open_pops.get(key, ack.handle.pop_ms)
        if lease is not None:
            own = [offset for offset in ack.offsets if offset in lease.offsets]
            statements.append(context.open_pops.put(key, lease.acknowledged(own)))
    context.store.submit(Write(done, statements=statements))


def change_invisible(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    """Change when a message may be popped again: renew its lease, or give it back."""
    header = ChangeInvisibleHeader.from_ext(request.ext)
    handle = PopHandle.of_text(header.handle)
    _check_range(header.invisible_ms, 0, MAX_INVISIBLE_MS, "invisible time in ms")
    log = _log_of(context, header.topic, header.queue_id)
    if not log.min_offset <= header.offset < log.max_offset:
        raise RequestRefused(ResponseCode.NO_MESSAGE, _not_stored(header.offset, log))
    key = header.group, header.topic, header.queue_id
    if not handle.is_ordered:
        _change_unordered(context, connection, request, header, handle)
        return
    if context.is_moving(key):
        again = partial(change_invisible, context, connection, request)
        _handle_later(context, connection, request, again)
        return
    lease = _current(context, key, handle, bool(header.fenced))
    if lease is None or header.offset not in lease.offsets or header.offset in lease.acked:
        reply = ChangeInvisibleReplyHeader()
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())
        return
    changed = lease.extended(header.offset, context.steady.ms(), header.invisible_ms)

    def answer() -> None:
        if changed.blocked_until_ms:
            context.held_pops.note_lease(key[:2], changed.blocked_until_ms)
        reply = ChangeInvisibleReplyHeader(*_span(changed, header.offset), ORDERED)
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())

    done = context.when_durable(connection, request, answer)
    context.pop_leases.change(key, changed, None, done)


def _change_unordered(
    context: BrokerContext,
    connection: BrokerConnection,
    request: Command,
    header: ChangeInvisibleHeader,
    handle: PopHandle,
) -> None:
    key = header.group, header.topic, header.queue_id
    lease = context.open_pops.get(key, handle.pop_ms)
    reply, statements = ChangeInvisibleReplyHeader(), []
    if lease is not None and header.offset in lease.offsets and header.offset not in lease.acked:
        changed = lease.extended(header.offset, context.steady.ms(), header.invisible_ms)
        statements = [context.open_pops.put(key, changed)]
        reply = ChangeInvisibleReplyHeader(*_span(changed, header.offset), UNORDERED)

    def answer() -> None:
        connection.reply(request, ResponseCode.SUCCESS, reply.to_ext())

    done = context.when_durable(connection, request, answer)
    context.store.submit(Write(done, statements=statements))


def _span(lease: PopLease, offset: int) -> tuple[int, int]:
    """Return the time of a lease's pop, and the ms from then until a message may be popped."""
    # A pop's time may be ahead of the clock, where two were in one millisecond.
    return lease.pop_ms, max(lease.visible_ms[offset] - lease.pop_ms, 0)


def _current(
    context: BrokerContext, key: OffsetKey, handle: PopHandle, is_fenced: bool
) -> PopLease | None:
    """Return the lease of a handle; None if the queue's last batch is another one.

    Raises: RequestRefused: so it is, and the client wants to be told.
    """
    lease = context.pop_leases.get(key)
    if lease is not None and lease.pop_ms == handle.pop_ms:
        return lease
    if not is_fenced:
        return None
    context.statistics.commits_fenced += 1
    known = "knows no batch of it" if lease is None else f"has popped it again at {lease.pop_ms}"
    raise RequestRefused(
        ResponseCode.OMQ_FENCED,
        f"queue {key[2]} of topic {key[1]!r}, group {key[0]!r}: the batch that was popped at "
        f"{handle.pop_ms} is over, the broker {known}",
    )


def _log_of(context: BrokerContext, name: str, queue_id: int) -> QueueLog:
    topic = context.topics.staying(name)
    if not 0 <= queue_id < topic.read_queues:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queue {queue_id} of topic {name!r}: expected 0..{topic.read_queues - 1}",
        )
    return context.store.readable_log(name, queue_id)


def _not_stored(offset: int, log: QueueLog) -> str:
    return (
        f"offset {offset} of queue {log.queue_id} of topic {log.topic!r}: the queue has "
        f"{log.min_offset}..{log.max_offset - 1}"
    )


def _handle_later(
    context: BrokerContext, connection: BrokerConnection, request: Command, again: partial[None]
) -> None:
    """Handle a request when the writes submitted before have ended: one is of its queue."""
    context.store.submit(Write(context.when_durable(connection, request, again)))


HANDLERS: dict[int, Handler] = {
    RequestCode.POP_MESSAGE: pop,
    RequestCode.ACK_MESSAGE: acknowledge,
    RequestCode.BATCH_ACK_MESSAGE: acknowledge_batch,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible,
}
