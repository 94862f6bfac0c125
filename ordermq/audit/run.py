"""What the checker knows of the whole run: processes, queues, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ordermq.audit.history import Event
from ordermq.audit.ledger import Ledger, QueueName, StoredQueue, Tenure

MS = 1_000_000


@dataclass(slots=True)
class Process:
    """One process incarnation after another, under one name."""

    incarnation: int = 0
    closed: bool = False
    crashed: bool = False
    is_broker: bool = False
    last_active: int = 0  # last START or LOCK_OK


class Run:
    """The state all rules share; see `ordermq.audit.audit` for the arguments."""

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
        self.ledgers: dict[QueueName, Ledger] = {}
        self.broker_life: Counter[str] = Counter()  # broker name -> incarnations seen
        self.brokers_of: dict[str, set[str]] = {}  # broker process -> names it spoke for
        self.last = 0  # time of the newest event

    def process(self, event: Event) -> Process:
        name = event.get("p", "")
        process = self.processes.get(name)
        if process is None:
            process = self.processes[name] = Process()
        return process

    def broker_speaks(self, event: Event) -> None:
        """Note a broker's life: its lock table dies with it."""
        process = self.process(event)
        life = f"{event.get('p', '')}#{process.incarnation}"
        names = self.brokers_of.setdefault(life, set())
        process.is_broker = True
        name = event.get("broker", "")
        if name not in names:
            names.add(name)
            self.broker_life[name] += 1

    def lost_with_broker(self, tenure: Tenure, ledger: Ledger) -> bool:
        return tenure.loss != self.broker_life[ledger.name[2]]

    def stored_queue(self, place: tuple[str, str, int]) -> StoredQueue:
        stored = self.stored.get(place)
        if stored is None:
            stored = self.stored[place] = StoredQueue()
        return stored

    def ledger(self, event: Event) -> Ledger:
        name = (
            event.get("group", ""),
            event.get("topic", ""),
            event.get("broker", ""),
            event["queue"],
        )
        return self.ledgers.get(name) or self.new_ledger(name)

    def new_ledger(self, name: QueueName) -> Ledger:
        ledger = self.ledgers[name] = Ledger(name)
        if isinstance(self.starts, int):
            ledger.start = self.starts
        elif self.starts is not None:
            ledger.start = self.starts.get(name)
        return ledger

    def both(self, event: Event) -> tuple[Ledger, StoredQueue]:
        ledger = self.ledger(event)
        return ledger, self.stored_queue(ledger.name[1:])

    def done_by(self, ledger: Ledger, offset: int) -> int:
        i = offset - ledger.base
        return ledger.done_by[i] if 0 <= i < len(ledger.done_by) else -1

    def violate(self, invariant: str, ledger: Ledger, text: str, *refs: int) -> None:
        if invariant not in self.found:
            group, topic, broker, queue = ledger.name
            place = f"group {group!r}, {topic}@{broker}/{queue}"
            self.found[invariant] = (f"{text} [{place}]", tuple(dict.fromkeys(refs)))


def named(offsets: Sequence[int]) -> str:
    """Offsets in words."""
    if len(offsets) == 1:
        return f"offset {offsets[0]}"
    return f"offsets {offsets[0]}..{offsets[-1]}"
