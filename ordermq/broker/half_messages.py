"""Halves of transactions that wait for word of the other halves; kept apart, durable."""

from __future__ import annotations

from dataclasses import dataclass

from ordermq.broker.group_commit import QueueLog, Statement
from ordermq.broker.set_aside import Removal, SetAside
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Store
from ordermq.config import BrokerConfig
from ordermq.model import properties as props
from ordermq.model.names import HALF_TOPIC
from ordermq.model.stored_message import StoredMessage


@dataclass(slots=True, eq=False)
class Half:
    """One waiting half message."""

    offset: int
    group: str  # of its producer
    stored_ms: int
    due_ms: int  # wall clock: not asked about before
    times_asked: int


class HalfMessages:
    """The waiting halves; on the loop thread. In memory are a few words of each."""

    def __init__(self, store: Store, config: BrokerConfig, statistics: BrokerStatistics) -> None:
        self._timeout_ms = config.transaction_timeout_ms
        self._statistics = statistics
        self._aside = SetAside(store, HALF_TOPIC)
        self._waiting: dict[int, Half] = {}
        for offset, times_asked in self._aside.load():
            message = StoredMessage.read(self._aside.record(offset))
            self.add(offset, props.decode_bytes(message.properties), message.stored_ms, times_asked)

    @property
    def log(self) -> QueueLog:
        """Where they lie."""
        return self._aside.log

    def add(
        self, offset: int, properties: dict[str, str], stored_ms: int, times_asked: int = 0
    ) -> None:
        """Let a durable half wait."""
        self.put_back(
            Half(
                offset,
                properties.get(props.PRODUCER_GROUP, ""),
                stored_ms,
                stored_ms + _immunity_ms(properties.get(props.CHECK_IMMUNITY_S), self._timeout_ms),
                times_asked,
            )
        )

    def get(self, offset: int) -> Half | None:
        """The half waiting at an offset."""
        return self._waiting.get(offset)

    def all(self) -> list[Half]:
        """Every waiting half."""
        return list(self._waiting.values())

    def record(self, half: Half) -> bytes:
        """Its stored record."""
        return self._aside.record(half.offset)

    def asked(self, half: Half) -> Statement:
        """Count a question; what a write carries for that."""
        half.times_asked += 1
        return self._aside.renumber(half.offset, half.times_asked)

    def take(self, half: Half) -> Removal:
        """A half no longer waits; nobody else can end it. Then `left`, or `put_back`."""
        del self._waiting[half.offset]
        self._statistics.half_messages = len(self._waiting)
        return self._aside.removal(half.offset)

    def put_back(self, half: Half) -> None:
        """It waits on: it could not leave."""
        self._waiting[half.offset] = half
        self._statistics.half_messages = len(self._waiting)

    def left(self, removal: Removal) -> None:
        """The removal is durable."""
        self._aside.removed(removal)


def _immunity_ms(text: str | None, timeout_ms: int) -> int:
    """How long a producer wants not to be asked; junk and -1 leave it to the broker, as Java."""
    try:
        seconds = int(text) if text else -1
    except ValueError:
        seconds = -1
    return timeout_ms if seconds < 0 else seconds * 1_000
