"""Unordered messages during the outage of a broker; messages with a key wait for it."""

from __future__ import annotations

import pytest

from ordermq import Message
from tests.interop.run import Run

pytestmark = pytest.mark.restarts


def test_unordered_messages_go_to_another_broker_during_an_outage_and_arrive_once(
    run: Run,
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.producer_settings = {"send_latency_fault": True, "send_timeout_ms": 2_000}
    assert {q.broker_name for q in run.producer.queues(run.topic)} == {"broker-a", "broker-b"}
    run.producer.send(Message(run.topic, b"before"))
    run.cluster.kill("broker-b")
    try:
        receipts = [
            run.producer.send(Message(run.topic, str(number).encode())) for number in range(40)
        ]
    finally:
        run.cluster.start("broker-b")
    assert {receipt.message_queue.broker_name for receipt in receipts} == {"broker-a"}
    places = {(receipt.message_queue, receipt.queue_offset) for receipt in receipts}
    assert len(places) == 40
    run.member("m")
    run.wait_for(lambda seen: len({d.body for d in seen}) == 41, "all messages")
    assert run.duplicates() == 0
