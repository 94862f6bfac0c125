"""Messages that fail again and again: what happens after `max_attempts`
(docs/internals/semantics.md#failures-and-dead-letters,
docs/internals/semantics.md#failure-policies)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto

from ordermq.client.session import ClientSession
from ordermq.errors import RemotingError, RouteError
from ordermq.model import properties as props
from ordermq.model.message import MessageView
from ordermq.model.names import check_topic, retry_topic
from ordermq.remoting.headers import SendBackHeader, SendHeader

_log = logging.getLogger("ordermq.consumer")
_FIRST_DEFECT_DELAY_MS = 1_000
_MOST_DEFECT_DELAY_MS = 60_000
_FIRST_RETRY_LEVEL = 3  # try n waits at level 3 + n, 10 s at first


@dataclass(frozen=True, slots=True)
class Retry:
    """Try for ever, at the head of the queue: order before progress. The default."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Move the message to the group's dead-letter topic, durably, then go on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the queue, keep its lock, and tell a person (an ERROR in the log)."""


@dataclass(frozen=True, slots=True)
class ParkKey:
    """Hold the key's messages back until `consumer.unpark`; other keys go on
    (docs/internals/semantics.md#failure-policies).

    With `order_by_key=True` only.

    Args:
        topic: where they are moved to, durably and in order, so that the queue's commit goes on
            and every later owner knows. Unparked, they are consumed from there before newer
            ones. One topic may serve many groups; it is read whole when a queue is assigned.
            "": they stay in the queue, uncommitted, so at most `max_ahead_per_queue` offsets
            behind the first of them are consumed meanwhile, and a member that takes the queue
            over tries the key again.
    """

    topic: str = ""

    def __post_init__(self) -> None:
        if self.topic:
            check_topic(self.topic)


FailurePolicy = Retry | DeadLetter | Stop | ParkKey


class GiveUp(Enum):
    """What to do with a failed message now."""

    TRY_AGAIN = auto()
    DIVERT = auto()
    STOP = auto()
    PARK = auto()


_GIVE_UP = {DeadLetter: GiveUp.DIVERT, Stop: GiveUp.STOP, ParkKey: GiveUp.PARK}


def decide(policy: FailurePolicy, attempts: int, max_attempts: int) -> GiveUp:
    """The next step for a message that has failed `attempts` times; 0 = no limit."""
    if max_attempts == 0 or attempts < max_attempts or isinstance(policy, Retry):
        return GiveUp.TRY_AGAIN
    return _GIVE_UP[type(policy)]


def defect_delay_ms(defects: int) -> int:
    """How long a queue rests after so many turns in a row broke by an error of ours, >= 1."""
    return min(_FIRST_DEFECT_DELAY_MS << min(defects - 1, 10), _MOST_DEFECT_DELAY_MS)


def resume_delay_ms(asked_ms: int, default_ms: int) -> int:
    """The pause before a failed batch comes again, clamped to 10..30000
    (docs/internals/semantics.md#orderly-constants)."""
    return min(max(default_ms if asked_ms == -1 else asked_ms, 10), 30_000)


async def send_dead_letter(
    client: ClientSession, group: str, message: MessageView, attempts: int
) -> None:
    """Store `message` in the group's dead-letter topic and await the acknowledgement.

    A classic orderly consumer sends to the retry topic with the limit exceeded, which every
    broker turns into the dead-letter topic (docs/internals/protocol.md#sending). It goes to the
    broker the message
    came from, which surely hosts the group (docs/internals/semantics.md#failures-and-dead-letters).

    Raises: RemotingError: not stored, as far as we know; the message must stay.
    """
    await _store_again(client, group, message, attempts, attempts - 1)


async def send_back(
    client: ClientSession, group: str, message: MessageView, delay_level: int, most: int
) -> None:
    """Have a failed message of a concurrent group stored again, to come later
    (docs/internals/semantics.md#concurrent-consumption).

    The broker that has it does so without its body on the way; if that fails, we send it, as
    Java does. After a time-out both may happen: then it comes twice.

    Args:
        delay_level: as in `ConcurrentContext`.
        most: times it may be sent back before the dead-letter topic.
    Raises: RemotingError, RouteError: not stored, as far as we know; the message must stay.
    """
    queue = message.message_queue
    header = SendBackHeader(
        message.physical_offset,
        group,
        delay_level,
        origin_message_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=most,
        broker_name=queue.broker_name,
    )
    try:
        await client.api.send_back(client.routes.master_of(queue.broker_name), header)
        return
    except (RemotingError, RouteError) as error:
        _log.info("%s: sending offset %d ourselves: %s", queue, message.queue_offset, error)
    times = most + 1 if delay_level < 0 else message.reconsume_times + 1
    level = max(delay_level, 0) or _FIRST_RETRY_LEVEL + message.reconsume_times
    await _store_again(client, group, message, times, most, level)


async def _store_again(
    client: ClientSession,
    group: str,
    message: MessageView,
    times: int,
    most: int,
    delay_level: int = 0,
) -> None:
    """Send a copy to the group's retry topic; `times` above `most` makes it a dead letter."""
    queue = message.message_queue
    # A copy: a failed send must not leave its marks on the live message
    # (docs/internals/semantics.md#failures-and-dead-letters).
    properties = dict(message.properties)
    properties[props.RETRY_TOPIC] = message.topic
    properties.setdefault(props.ORIGIN_MESSAGE_ID, message.message_id)
    properties[props.RECONSUME_TIME] = str(times)
    properties[props.MAX_RECONSUME_TIMES] = str(most)
    for name in ("TRAN_MSG", props.DELAY, "MIN_OFFSET", "MAX_OFFSET"):
        properties.pop(name, None)
    if delay_level:
        properties[props.DELAY] = str(delay_level)
    header = SendHeader(
        producer_group="CLIENT_INNER_PRODUCER",
        topic=retry_topic(group),
        queue_id=0,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        flag=message.flag,
        properties=props.encode(properties),
        reconsume_times=times,
        max_reconsume_times=most,
        broker_name=queue.broker_name,
    )
    address = client.routes.master_of(queue.broker_name)
    # As stored: the copied sysFlag still says how it is compressed.
    body = bytes(message.stored_body)
    await client.api.send(address, header, body, client.config.offset_timeout_ms)
