"""State that all rules share: processes, queues, and the violations found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ordermq.audit.delivered_offsets import DeliveredOffsets, Ownership, QueueName, StoredQueue
from ordermq.audit.history import Event

MS = 1_000_000


@dataclass(slots=True)
class Process:
    """A process, with all its incarnations under one name."""

    incarnation: int = 0
    closed: bool = False
    crashed: bool = False
    is_broker: bool = False
    last_active: int = 0  # last START or LOCK_OK
    positions: set[QueueName] = field(default_factory=set)  # queues with a POSITION
    blind_starts: dict[QueueName, int] = field(default_factory=dict)  # first START without one


class Run:
    """State of the whole run; `ordermq.audit.audit` describes the arguments."""

    def __init__(
        self,
        subscription_tags: Collection[str] | None,
        start_offsets: int | Mapping[QueueName, int] | None,
    ) -> None:
        self.tags = None if subscription_tags is None else frozenset(subscription_tags)
        self.starts = start_offsets
        self.found: dict[str, tuple[str, tuple[int, ...]]] = {}  # first violation of each
        self.processes: dict[str, Process] = {}
        self.stored: dict[tuple[str, str, int], StoredQueue] = {}
        self.progress_by_queue: dict[QueueName, DeliveredOffsets] = {}
        self.unlocked_groups: set[str] = set()  # concurrent groups
        self.broker_life: Counter[str] = Counter()  # broker name -> incarnations seen
        self.brokers_of: dict[str, set[str]] = {}  # broker process -> its broker names
        self.last = 0  # time of the newest event

    def process(self, event: Event) -> Process:
        name = event.get("p", "")
        process = self.processes.get(name)
        if process is None:
            process = self.processes[name] = Process()
        return process

    def broker_speaks(self, event: Event) -> None:
        """Note a new incarnation of a broker: its lock table may be lost."""
        process = self.process(event)
        life = f"{event.get('p', '')}#{process.incarnation}"
        names = self.brokers_of.setdefault(life, set())
        process.is_broker = True
        name = event.get("broker", "")
        if name not in names:
            names.add(name)
            self.broker_life[name] += 1

    def lost_with_broker(self, ownership: Ownership, progress: DeliveredOffsets) -> bool:
        return ownership.loss != self.broker_life[progress.name[2]]

    def stored_queue(self, place: tuple[str, str, int]) -> StoredQueue:
        stored = self.stored.get(place)
        if stored is None:
            stored = self.stored[place] = StoredQueue()
        return stored

    def progress(self, event: Event) -> DeliveredOffsets:
        name = (
            event.get("group", ""),
            event.get("topic", ""),
            event.get("broker", ""),
            event["queue"],
        )
        return self.progress_by_queue.get(name) or self.new_progress(name)

    def new_progress(self, name: QueueName) -> DeliveredOffsets:
        progress = self.progress_by_queue[name] = DeliveredOffsets(name)
        if isinstance(self.starts, int):
            progress.start = self.starts
        elif self.starts is not None:
            progress.start = self.starts.get(name)
        return progress

    def both(self, event: Event) -> tuple[DeliveredOffsets, StoredQueue]:
        progress = self.progress(event)
        return progress, self.stored_queue(progress.name[1:])

    def done_by(self, progress: DeliveredOffsets, offset: int) -> int:
        i = offset - progress.base
        return progress.done_by[i] if 0 <= i < len(progress.done_by) else -1

    def violate(self, invariant: str, progress: DeliveredOffsets, text: str, *refs: int) -> None:
        if invariant not in self.found:
            group, topic, broker, queue = progress.name
            place = f"group {group!r}, {topic}@{broker}/{queue}"
            self.found[invariant] = (f"{text} [{place}]", tuple(dict.fromkeys(refs)))


def named(offsets: Sequence[int]) -> str:
    """Return offsets as text."""
    if len(offsets) == 1:
        return f"offset {offsets[0]}"
    return f"offsets {offsets[0]}..{offsets[-1]}"
