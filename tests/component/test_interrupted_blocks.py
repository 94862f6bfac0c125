"""An exception of a signal handler in the constructor or at the beginning of a `with` block.

Nobody closes what such a block was to hold. Each case is run again and again, interrupted one place
later each time, as in test_interrupts.py: nothing of ours is left.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import (
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import eventually
from tests.component.interruption import InterruptedCall, quick_collections
from tests.component.test_interrupts import LIMIT_S, STRIDE, TOPIC

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # A socket or a loop that an exception stopped before its owner had it: the collector's.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def push(at: str) -> PushConsumer:
    consumer = PushConsumer("starting", name_servers=at)
    consumer.subscribe(TOPIC)
    return consumer.orderly(lambda *_: None) and consumer


def lite(at: str) -> LitePullConsumer:
    consumer = LitePullConsumer("starting", name_servers=at)
    consumer.subscribe(TOPIC)
    return consumer


def transactions(at: str) -> TransactionProducer:
    return TransactionProducer(
        "starting",
        check=lambda _: None,
        execute=lambda *_: TransactionState.COMMIT,
        name_servers=at,
    )


CLIENTS: dict[str, Callable[[str], Any]] = {
    "push": push,
    "lite": lite,
    "pull": lambda at: PullConsumer("starting", name_servers=at),
    "producer": lambda at: Producer("starting", name_servers=at),
    "transactions": transactions,
    "admin": Admin,
    "broker": lambda _: EmbeddedBroker(),
    "grpc producer": lambda _: Producer("starting", name_servers="grpc://127.0.0.1:9"),
}


def is_ours(thread: threading.Thread) -> bool:
    return thread.is_alive() and thread.name.startswith("ordermq-")


@pytest.mark.parametrize("kind", CLIENTS)
@quick_collections()
def test_an_interrupted_beginning_of_a_block_leaves_nothing(
    broker: EmbeddedBroker, kind: str
) -> None:
    at_broker = broker.name_servers
    with Producer("first", name_servers=at_broker) as producer:
        producer.send(Message(TOPIC, b"x"), sharding_key="k")
    with CLIENTS[kind](at_broker):  # imports what a first start does
        pass
    gc.collect()
    before = {thread for thread in threading.enumerate() if is_ours(thread)}
    # All is closed by now; the broker may be about to notice it.
    eventually(lambda: not broker.statistics.connections, "nobody is connected", LIMIT_S)
    at, raised_at = 1, "begun"
    while raised_at:
        interruption = InterruptedCall(at, TimeoutError)
        raised: BaseException | None = None
        try:
            with interruption:
                client = CLIENTS[kind](at_broker).__enter__()
            client.close()
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised = error
        raised_at = interruption.raised_at
        assert type(raised) is (TimeoutError if raised_at else type(None)), (
            f"{raised_at}: {raised!r}"
        )
        raised = client = None
        gc.collect()
        eventually(
            lambda: {each for each in threading.enumerate() if is_ours(each)} <= before,
            f"no thread, interrupted at {raised_at}",
            LIMIT_S,
        )
        eventually(
            lambda: not broker.statistics.connections,
            f"no connection, interrupted at {raised_at}",
            LIMIT_S,
        )
        at += STRIDE if STRIDE == 1 else 5 * STRIDE  # each place waits until threads have ended
    assert at > 10
