"""POP without order of the embedded broker against its model, with restarts."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from tests.component.broker.wire_client import BROKER, WireClient
from tests.pop_scripts import INVISIBLE_MS, UnorderedPops
from tests.unordered_pop_model import LONG_MS, UnorderedSteps

TIMES = st.sampled_from([INVISIBLE_MS, LONG_MS])
NUMBERS = st.integers(0, 20)
DEADLINE_S = 20.0


class UnorderedPopMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.start()
        self.pops.client.create_topic("orders", 1)
        self.steps = UnorderedSteps(self.pops, BROKER, self.clock.wall_ms, self.clock.advance)

    def start(self) -> None:
        path = Path(self.folder.name) / "broker.db"
        self.broker = EmbeddedBroker(path, clock=self.clock).start()
        client = WireClient(self.broker.port)
        self.pops = UnorderedPops(client, "orders", "group", self.clock.wall_ms)

    def stop(self) -> None:
        self.pops.client.close()
        self.broker.close()

    def teardown(self) -> None:
        try:
            self.steps.drain(self.eventually)
            self.steps.pop(32, LONG_MS)  # nothing that is done comes again
        finally:
            self.stop()
            self.folder.cleanup()

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        """Wait while the clock of the broker goes on."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}"
            self.clock.advance(LONG_MS)
            threading.Event().wait(0.002)  # the broker's thread repeats what is due

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        self.steps.send(count)

    @rule(count=st.integers(1, 5), invisible_ms=TIMES)
    def pop(self, count: int, invisible_ms: int) -> None:
        self.steps.pop(count, invisible_ms)

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=3, unique=True))
    def acknowledge(self, numbers: list[int]) -> None:
        self.steps.acknowledge(numbers)

    @rule()
    def acknowledge_by_an_older_handle(self) -> None:
        self.steps.acknowledge_by_an_older_handle()

    @rule(number=NUMBERS, invisible_ms=st.sampled_from([0, INVISIBLE_MS, LONG_MS]))
    def change(self, number: int, invisible_ms: int) -> None:
        self.steps.change(number, invisible_ms)

    @rule(duration_ms=st.sampled_from([1, INVISIBLE_MS // 2, 2 * INVISIBLE_MS]))
    def wait(self, duration_ms: int) -> None:
        self.steps.wait(duration_ms)

    @rule()
    def restart(self) -> None:
        """Start the broker again; no lease ends earlier by that."""
        self.stop()
        self.start()
        self.steps.pops = self.pops


TestUnorderedPop = UnorderedPopMachine.TestCase
TestUnorderedPop.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_message_is_given_back_in_the_millisecond_of_its_pop() -> None:
    """The second batch of a millisecond has the next one as its time, which is yet to come."""
    machine = UnorderedPopMachine()
    try:
        machine.send(2)
        machine.pop(1, INVISIBLE_MS)
        machine.pop(1, INVISIBLE_MS)
        machine.change(1, 0)
        machine.acknowledge([1])
    finally:
        machine.teardown()
