"""An exception that is sent to a listener's thread, anywhere behind a call: its queues go on.

Libraries that limit the time of a function (`PyThreadState_SetAsyncExc`) may send one too late.
Each case is run again and again, interrupted one place later each time. ORDERMQ_INTERRUPTS_STRIDE
says how many places to go on by, as in test_interrupts.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.dispatch import consume_loop
from tests.component.conftest import eventually
from tests.component.interruption import InterruptedCall
from tests.component.test_interrupts import STRIDE

TOPIC = "orders"
LIMIT_S = 20.0
PLACES = 100  # of the thread, behind the call
Listener = Callable[[Any, Any], None]


class LateLimit(BaseException):
    """Sent by a library that limits the time of a listener."""


class Listening:
    """A consumer of three messages of a queue, whose thread is interrupted behind the second call.

    Args:
        fails: the second call raises, too, the first time.
    """

    def __init__(self, at: int, *, fails: bool) -> None:
        self.interruption = InterruptedCall(at, LateLimit)
        self.arrived: list[bytes] = []
        self.running: dict[str, int] = {}
        self.overlaps: list[bytes] = []
        self._fails = fails
        self._armed: threading.Thread | None = None

    def __call__(self, messages: Any, _: Any) -> None:
        body = bytes(messages[0].body)
        key = str(messages[0].sharding_key)
        self.running[key] = self.running.get(key, 0) + 1
        try:
            if self.running[key] > 1:
                self.overlaps.append(body)
            self.arrived.append(body)
            if body == b"2" and self._armed is None:
                self._armed = threading.current_thread()
                self.interruption.__enter__()
                if self._fails:
                    raise ValueError("fails once")
        finally:
            self.running[key] -= 1


@pytest.fixture
def producer(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    monkeypatch.setattr(consume_loop, "_FIRST_RESTART_MS", 1)
    monkeypatch.setattr(consume_loop, "_THREADS_LOOK_MS", 20, raising=False)
    with Producer("sender", name_servers=broker.name_servers) as producer:
        producer.send(Message(TOPIC, b"0"), sharding_key="k")
        yield producer


MODES: dict[str, dict[str, Any]] = {
    "orderly": {},
    "by key": {"order_by_key": True},
    "concurrent": {},
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_an_exception_behind_a_call_stops_no_queue(
    broker: EmbeddedBroker, producer: Producer, mode: str, fails: bool
) -> None:
    for at in range(1, PLACES, STRIDE):
        listening = Listening(at, fails=fails)
        consumer = PushConsumer(
            f"group-{at}",
            name_servers=broker.name_servers,
            consume_message_batch_max_size=1,
            consume_thread_count=2,
            suspend_current_queue_time_ms=10,
            **MODES[mode],
        )
        consumer.subscribe(TOPIC)
        (consumer.concurrently if mode == "concurrent" else consumer.orderly)(listening)

        def consumes(body: bytes) -> None:
            producer.send(Message(TOPIC, body), sharding_key="k")
            eventually(
                lambda: body in listening.arrived,  # noqa: B023
                f"{body!r}, interrupted at place {at} {listening.interruption.raised_at}",  # noqa: B023
                LIMIT_S,
            )

        with consumer:
            eventually(lambda: bool(consumer.assigned_queues()), "it holds its queues")  # noqa: B023
            for body in (b"1", b"2", b"3"):
                consumes(body)
            number = 0
            while not listening.interruption.raised_at:
                consumes(str(number := number - 1).encode())
            consumes(b"last")
        assert mode == "concurrent" or not listening.overlaps, listening.interruption.raised_at
