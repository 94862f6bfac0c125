"""POP of the embedded broker against its model, whatever is asked in which order, with restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from tests.component.broker.wire_client import BROKER, WireClient
from tests.pop_scripts import INVISIBLE_MS, PopClient, PopModel, Step

ATTEMPTS = st.sampled_from([None, None, "one", "two"])
TIMES = st.sampled_from([INVISIBLE_MS, 10 * INVISIBLE_MS])


class PopMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.model = PopModel()
        self.start()
        self.client.client.create_topic("orders", 1)

    def start(self) -> None:
        path = Path(self.folder.name) / "broker.db"
        self.broker = EmbeddedBroker(path, clock=self.clock).start()
        client = WireClient(self.broker.port)
        self.client = PopClient(
            client, BROKER, "orders", "group", self.clock.wall_ms, self.clock.advance
        )

    def stop(self) -> None:
        self.client.client.close()
        self.broker.close()

    def teardown(self) -> None:
        self.stop()
        self.folder.cleanup()

    def both(self, step: Step) -> Any:
        expected = self.model.run(step)
        assert self.client.run(step) == expected, step
        return expected

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        self.both(("send", count))

    @rule(count=st.integers(1, 5), invisible_ms=TIMES, attempt=ATTEMPTS)
    def pop(self, count: int, invisible_ms: int, attempt: str | None) -> None:
        self.both(("pop", count, invisible_ms, attempt))

    @precondition(lambda self: self.model.pops)
    @rule(back=st.integers(1, 3), places=st.sets(st.integers(0, 4), min_size=1))
    def acknowledge(self, back: int, places: set[int]) -> None:
        self.both(("ack", max(self.model.pops - back, 0), sorted(places)))
        self.both(("committed",))

    @precondition(lambda self: self.model.pops)
    @rule(
        back=st.integers(1, 3),
        place=st.integers(0, 4),
        invisible_ms=st.sampled_from([0, INVISIBLE_MS, 10 * INVISIBLE_MS]),
    )
    def change(self, back: int, place: int, invisible_ms: int) -> None:
        self.both(("change", max(self.model.pops - back, 0), place, invisible_ms))

    @rule(duration_ms=st.sampled_from([1, INVISIBLE_MS // 2, 2 * INVISIBLE_MS]))
    def wait(self, duration_ms: int) -> None:
        self.both(("wait", duration_ms))

    @rule()
    def restart(self) -> None:
        """Each message that is not done stays with its member for the whole time again."""
        handles = self.client.handles
        self.stop()
        self.start()
        self.client.handles = handles
        batch = self.model.batch
        if batch is not None:
            until_ms = self.model.now_ms + self.invisible_ms_of(batch.number)
            batch.visible_ms = {at: max(batch.visible_ms[at], until_ms) for at in batch.offsets}

    def invisible_ms_of(self, pop: int) -> int:
        found = self.client.handles[pop]
        assert found is not None
        return found[0].invisible_ms


TestPop = PopMachine.TestCase
TestPop.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
