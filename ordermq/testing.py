"""Testing programs that send and consume: read a topic, wait for a group, call a listener alone.

The fixtures of `ordermq.pytest_plugin` are these functions, at a broker in memory
(docs/testing.md). Nothing here needs pytest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ordermq.admin.admin import Admin
from ordermq.admin.topics import TopicState
from ordermq.clock import SystemClock
from ordermq.consumer.listener import ConcurrentContext, ConsumeContext
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    QueueCallbacks,
)
from ordermq.core import RecordWriter
from ordermq.errors import ConfigError, RouteError
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.codec import Codec, require_codec
from ordermq.model.hashing import key_text
from ordermq.model.identifiers import unique_message_id
from ordermq.model.message import Message, MessageBatch, MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import host_bytes
from ordermq.producer.queue_selector import ShardingKey

_PAUSE_S = 0.01
_MOST_READ = 10_000
_NAME = "testing"  # of the broker and the group of a made delivery
_HOST = host_bytes("127.0.0.1", 0)
Events = Iterable[Message | tuple[Message, ShardingKey | None]]


def read(
    name_servers: str | Sequence[str], topic: str, count: int, timeout_s: float = 10.0
) -> list[MessageView]:
    """Return the messages of a topic as soon as there are `count`; more, if more are there.

    Nothing is consumed, and no group is joined. The topic need not exist yet.

    Args:
        count: 1..10000.
        timeout_s: how long to wait for them.
    Returns: messages of one queue in their order; of several, by the time they were stored.
    Raises: AssertionError: fewer came in time; it tells which.
    """
    found: list[MessageView] = []
    with Admin(name_servers) as admin:
        for _ in _rounds(timeout_s):
            with suppress(RouteError):  # its first message makes the topic
                found = admin.peek(topic, _MOST_READ, start="first")
            if len(found) >= count:
                return found
    raise AssertionError(
        f"topic {topic}: expected {count} messages within {timeout_s:g} s, found {len(found)}: "
        f"{found}"
    )


def wait_until_consumed(
    name_servers: str | Sequence[str], group: str, topic: str, timeout_s: float = 10.0
) -> None:
    """Return as soon as a group has consumed the messages that the topic has now.

    Consumed is what its listeners have finished, or its pollers. A message that keeps failing
    counts once it has gone to the dead-letter topic, or in a concurrent group to the retry topic.

    Raises: AssertionError: it has not consumed them in time; it tells where each queue stands.
        RouteError: no broker has the topic: send to it, or create it, first.
    """
    with Admin(name_servers) as admin:
        wanted = admin.topic(topic)
        behind: list[str] = []
        for _ in _rounds(timeout_s):
            behind = _behind(admin, group, wanted)
            if not behind:
                return
    raise AssertionError(
        f"group {group}: expected it to consume topic {topic} within {timeout_s:g} s; "
        f"{', '.join(behind)}"
    )


def _behind(admin: Admin, group: str, wanted: TopicState) -> list[str]:
    state = admin.group(group, [wanted.name])
    done = {queue: progress.done for queue, progress in state.progress.items()}
    members = f"it has {len(state.members)} members"
    behind = [
        f"queue {queue.queue_id} of {queue.broker_name}: {done.get(queue, 0)} of {ends.end} are "
        "consumed"
        for queue, ends in wanted.queues.items()
        if done.get(queue, 0) < ends.end
    ]
    return [*behind, members] if behind else []


def _rounds(timeout_s: float) -> Iterator[None]:
    """Yield until the time is over, and once more behind it."""
    end, pause = time.monotonic() + timeout_s, threading.Event()
    while time.monotonic() < end:
        yield
        pause.wait(_PAUSE_S)
    yield


def delivery(
    events: Events,
    *,
    attempt: int = 0,
    queue_id: int = 0,
    offset: int = 0,
    epoch: int = 1,
    codec: Codec | None = None,
) -> tuple[MessageRun, ConsumeContext]:
    """Return the two arguments of a call of an orderly listener, made without a broker.

    For `result = bill(*delivery([(Message("orders", b"paid"), "o-17")]))`.

    Args:
        events: messages, or pairs of message and sharding key as of `send_many`, all of one topic.
        attempt: failed attempts before this call.
        queue_id, offset, epoch: of the first message, and of its fence token.
        codec: for `message.value()`.
    Raises: ConfigError: no messages, or of several topics, or something else.
    """
    lease = Lease(epoch, UNLOCKED.deadline_ms, is_fenced=True)
    made = _messages(events, queue_id, offset, 0)
    made.set_attempts(offset, attempt)
    assigned, claim = _claimed(made, lease, codec)
    return claim.messages, ConsumeContext(assigned, claim, claim.messages, attempt)


def concurrent_delivery(
    events: Events, *, attempt: int = 0, codec: Codec | None = None
) -> tuple[MessageRun, ConcurrentContext]:
    """`delivery` for a concurrent listener, whose context has `ack_index` and `delay_level`."""
    assigned, claim = _claimed(_messages(events, 0, 0, attempt), UNLOCKED, codec)
    return claim.messages, ConcurrentContext(assigned, claim, claim.messages, attempt)


def _messages(events: Events, queue_id: int, offset: int, reconsume_times: int) -> MessageBatch:
    pairs = [_pair_of(event) for event in _iterated(events)]
    topics = {message.topic for message, _ in pairs}
    if len(topics) != 1:
        raise ConfigError(f"expected messages of one topic, got {sorted(topics)}")
    topic, now_ms = topics.pop(), SystemClock().wall_ms()
    writer, records = RecordWriter(topic, queue_id, _HOST, _HOST), b""
    for place, (message, key) in enumerate(pairs, offset):
        text = message.wire_properties(None if key is None else key_text(key), unique_message_id())
        block = writer.write(
            bytes(message.body),
            text.encode(),
            flag=message.flag,
            sys_flag=0,
            born_ms=now_ms,
            stored_ms=now_ms,
            reconsume_times=reconsume_times,
        )
        ((_, _, record),) = block.rows(place, 0)
        records += record
    return MessageBatch(MessageQueue(topic, _NAME, queue_id), records)


def _iterated(events: Events) -> Events:
    if isinstance(events, Message):
        raise _no_event(events)
    return events


def _pair_of(event: object) -> tuple[Message, ShardingKey | None]:
    match event:
        case Message():
            return event, None
        case (Message() as message, str() | int() | None as key):
            return message, key
    raise _no_event(event)


def _no_event(event: object) -> ConfigError:
    return ConfigError(
        f"expected a list of messages, or of pairs (message, sharding key), got a "
        f"{type(event).__name__}"
    )


def _claimed(
    messages: MessageBatch, lease: Lease, codec: Codec | None
) -> tuple[AssignedQueue, BatchClaim]:
    first, end = messages[0].offset, messages.last_offset + 1
    callbacks = QueueCallbacks(_ignore, _ignore, _ignore, _ignore)
    assigned = AssignedQueue(messages.queue, _NAME, lease, first, callbacks)
    assigned.max_offset = end
    assigned.accept(assigned.generation, messages, end)
    claim, _ = assigned.claim(len(messages), 0)
    assert isinstance(claim, BatchClaim)
    if codec is not None:
        claim.messages.decode_with(require_codec(codec, _NAME))
    return assigned, claim


def _ignore(*_: object) -> None:
    """Nobody is to be told: nothing fetches, and the lease does not end."""
