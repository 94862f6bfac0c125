"""EventRecorder: the events of a group's queues, for `ordermq audit`
(docs/internals/semantics.md#invariants)."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.events import EventType, Recorder
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue

Member = int | str | Sequence[int] | Sequence[str | None]


class EventRecorder:
    """Records the events of one member's queues; any thread.

    Args:
        recorder: a history file, or one that drops everything.
    """

    def __init__(self, recorder: Recorder, group: str) -> None:
        self._recorder = recorder
        self._group = group
        # Read once: callers ask before they build an event's members, so that a consumer
        # without a history decodes no key and copies no offset.
        self.enabled = recorder.enabled

    def record(
        self, event: EventType, queue: MessageQueue, epoch: int = 0, **members: Member
    ) -> None:
        """Append one event of `queue`; `ordermq.events` lists the members."""
        self._recorder.record(
            event,
            group=self._group,
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            epoch=epoch,
            **members,
        )

    def record_messages(
        self,
        event: EventType,
        queue: MessageQueue,
        epoch: int,
        messages: Sequence[MessageView],
        **members: Member,
    ) -> None:
        """Append one event about `messages`, with their offsets and keys."""
        # `members` come last: of a parked message, the offset in its source queue replaces the
        # one it has in the parking topic.
        about: dict[str, Member] = {
            "offs": [message.queue_offset for message in messages],
            "keys": [message.sharding_key for message in messages],
        }
        self.record(event, queue, epoch, **(about | members))

    def close(self) -> None:
        """Write the last line; a second call does nothing."""
        self._recorder.close()
