"""A group's events of one process, told by queue (docs/internals/semantics.md#invariants)."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.events import EventType, Recorder
from ordermq.model.message_queue import MessageQueue


class EventRecorder:
    """Records events of the group's queues; any thread.

    Args:
        recorder: where they go; nowhere unless the user asked for a history.
    """

    def __init__(self, recorder: Recorder, group: str) -> None:
        self._recorder = recorder
        self._group = group
        self.enabled = recorder.enabled

    def record(
        self,
        event: EventType,
        queue: MessageQueue,
        epoch: int = 0,
        **members: int | str | Sequence[int] | Sequence[str | None],
    ) -> None:
        """Append one event of `queue`; see `ordermq.events` for the members."""
        self._recorder.record(
            event,
            group=self._group,
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            epoch=epoch,
            **members,
        )

    def close(self) -> None:
        """Write the last line; a second call does nothing."""
        self._recorder.close()
