"""Sends leave nothing to the garbage collector: programs run with it off, and others pay for it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from ordermq import Message, Producer

MESSAGE = Message("orders", b"x")
SENDS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send(MESSAGE, sharding_key="k"),
    "send without a key": lambda producer: producer.send(MESSAGE),
    "send_oneway": lambda producer: producer.send_oneway(MESSAGE),
    "send_batch": lambda producer: producer.send_batch([MESSAGE, MESSAGE], sharding_key="k"),
    "send_nowait": lambda producer: producer.send_nowait(MESSAGE, sharding_key="k").result(),
    "send_many": lambda producer: producer.send_many([(MESSAGE, "k"), (MESSAGE, "l")]),
    "send_stream": lambda producer: [*producer.send_stream([(MESSAGE, "k"), (MESSAGE, "l")])],
}


@pytest.mark.parametrize("name", SENDS)
def test_a_send_leaves_no_reference_cycle(name: str, producer: Producer) -> None:
    send, count = SENDS[name], 200
    for _ in range(20):  # what is made once
        send(producer)
    gc.collect()
    gc.disable()
    try:
        for _ in range(count):
            send(producer)
        found = gc.collect()
    finally:
        gc.enable()
    assert found < count // 2  # other threads may leave some
