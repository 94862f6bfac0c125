"""A message that always fails, in an ordered group: Java's way to let it pass, beside ours."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from ordermq import ConsumeResult, Message, MessageView, PushConsumer
from tests.interop.cluster import eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

POISON, PASSES, COUNT = b"4", 3, 12


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_message_passes_once_its_reconsume_times_are_high_as_in_java(
    run: Run, batch: int, kind: str
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    for number in range(COUNT):
        run.producer.send(Message(run.topic, str(number).encode()), sharding_key="k")
    told: dict[str, list[str]] = {"java": [], "ours": []}
    ended = threading.Event()

    def is_over(calls: list[str]) -> bool:
        return bool(calls) and calls[-1].split()[-1].startswith(f"{COUNT - 1}:")

    def listen(messages: Sequence[MessageView], context: Any) -> ConsumeResult:
        told["ours"].append(" ".join(f"{m.queue_offset}:{m.reconsume_times}" for m in messages))
        assert context.attempt == messages[0].reconsume_times
        # As in the Java listener beside it.
        if any(bytes(m.body) == POISON and m.reconsume_times < PASSES for m in messages):
            return ConsumeResult.SUSPEND
        if is_over(told["ours"]):
            ended.set()
        return ConsumeResult.SUCCESS

    async def listen_async(messages: Sequence[MessageView], context: Any) -> ConsumeResult:
        return listen(messages, context)

    java = JavaProcess(
        run.cluster.version,
        "Poison",
        run.folder,
        on_line=lambda line: told["java"].append(line["call"]) if "call" in line else None,
        name_servers=run.cluster.name_servers,
        group=f"{run.group}-java",
        topic=run.topic,
        poison=POISON.decode(),
        passes=PASSES,
        batch=batch,
    )
    consumer = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        consume_from_where="first_offset",
        consume_message_batch_max_size=batch,
        suspend_current_queue_time_ms=10,
    )
    consumer.subscribe(run.topic)
    consumer.orderly(listen if kind == "plain" else listen_async)
    try:
        with consumer:
            assert ended.wait(60.0), told
            eventually(lambda: is_over(told["java"]), "Java's last message")
            assert consumer.statistics["oldest_blocked_ms"] == 0
    finally:
        java.leave()
    # Where one call ends and the next begins depends on what had arrived, so compare messages.
    times = {
        name: [message for call in calls for message in call.split() if message.startswith("4:")]
        for name, calls in told.items()
    }
    assert times["java"] == times["ours"] == ["4:0", "4:1", "4:2", "4:3"]
    if batch == 1:
        assert told["java"] == told["ours"]


def test_a_limit_alone_makes_a_dead_letter_after_as_many_calls_as_in_java(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    for number in range(COUNT):
        run.producer.send(Message(run.topic, str(number).encode()), sharding_key="k")
    told: dict[str, list[str]] = {"java": [], "ours": []}

    def listen(messages: Sequence[MessageView], context: Any) -> ConsumeResult:
        (message,) = messages
        told["ours"].append(f"{message.queue_offset}:{message.reconsume_times}")
        is_bad = bytes(message.body) == POISON
        return ConsumeResult.SUSPEND if is_bad else ConsumeResult.SUCCESS

    java = JavaProcess(
        run.cluster.version,
        "Poison",
        run.folder,
        on_line=lambda line: told["java"].append(line["call"]) if "call" in line else None,
        name_servers=run.cluster.name_servers,
        group=f"{run.group}-java",
        topic=run.topic,
        poison=POISON.decode(),
        passes=1_000,
        most=2,
        batch=1,
    )
    consumer = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        consume_from_where="first_offset",
        max_reconsume_times=2,
        suspend_current_queue_time_ms=10,
    )
    consumer.subscribe(run.topic)
    consumer.orderly(listen)
    last = f"{COUNT - 1}:0"
    try:
        with consumer:
            eventually(lambda: last in told["ours"] and last in told["java"], "both at the end")
    finally:
        java.leave()
    expected = [f"{n}:0" for n in range(4)] + ["4:0", "4:1", "4:2"]
    assert told["java"] == told["ours"] == expected + [f"{n}:0" for n in range(5, COUNT)]
    assert consumer.statistics["diverted"] == 1
