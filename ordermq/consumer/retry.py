"""Messages that fail again and again: what happens after `max_attempts` (semantics 4.5, 10.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ordermq.client.instance import ClientInstance
from ordermq.model import properties as props
from ordermq.model.message import MessageView
from ordermq.model.names import retry_topic
from ordermq.remoting.headers import SendHeader


@dataclass(frozen=True, slots=True)
class Retry:
    """Try for ever, at the head of the queue: order before progress. The default."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Move the message to the group's dead-letter topic, durably, then go on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the queue, keep its lock, and tell a person (an ERROR in the log)."""


FailurePolicy = Retry | DeadLetter | Stop


class GiveUp(Enum):
    """What to do with a failed message now."""

    TRY_AGAIN = auto()
    DIVERT = auto()
    STOP = auto()


def decide(policy: FailurePolicy, attempts: int, max_attempts: int) -> GiveUp:
    """The next step for a message that has failed `attempts` times; 0 = no limit."""
    if max_attempts == 0 or attempts < max_attempts or isinstance(policy, Retry):
        return GiveUp.TRY_AGAIN
    return GiveUp.DIVERT if isinstance(policy, DeadLetter) else GiveUp.STOP


def resume_delay_ms(asked_ms: int, default_ms: int) -> int:
    """The pause before a failed batch comes again, clamped to 10..30000 (semantics 4.1)."""
    return min(max(default_ms if asked_ms == -1 else asked_ms, 10), 30_000)


async def send_dead_letter(
    client: ClientInstance, group: str, message: MessageView, attempts: int
) -> None:
    """Store `message` in the group's dead-letter topic and await the acknowledgement.

    A classic orderly consumer sends to the retry topic with the limit exceeded, which every
    broker turns into the dead-letter topic (protocol 3.3). It goes to the broker the message
    came from, which surely hosts the group (semantics 4.5 R).

    Raises: RemotingError: not stored, as far as we know; the message must stay.
    """
    queue = message.message_queue
    # A copy: a failed send must not leave its marks on the live message (semantics 4.5).
    properties = dict(message.properties)
    properties[props.RETRY_TOPIC] = message.topic
    properties.setdefault(props.ORIGIN_MESSAGE_ID, message.message_id)
    properties[props.RECONSUME_TIME] = str(attempts)
    properties[props.MAX_RECONSUME_TIMES] = str(attempts - 1)
    for name in ("TRAN_MSG", props.DELAY, "MIN_OFFSET", "MAX_OFFSET"):
        properties.pop(name, None)
    header = SendHeader(
        producer_group="CLIENT_INNER_PRODUCER",
        topic=retry_topic(group),
        queue_id=0,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        flag=message.flag,
        properties=props.encode(properties),
        reconsume_times=attempts,
        max_reconsume_times=attempts - 1,
        broker_name=queue.broker_name,
    )
    address = client.routes.master_of(queue.broker_name)
    # As stored: the copied sysFlag still says how it is compressed.
    body = bytes(message.stored_body)
    await client.api.send(address, header, body, client.config.offset_timeout_ms)
