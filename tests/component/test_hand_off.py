"""Queues moving between members: nothing lost, nothing twice, nothing early
(docs/internals/semantics.md#hand-off)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordermq import ConsumeResult, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]


class Flow:
    """A producer thread sending numbered events until it is stopped.

    Args:
        sent: how many have been sent before, so the number of its first.
    """

    def __init__(self, producer: Producer, keys: int = 16, sent: int = 0) -> None:
        self._producer = producer
        self._keys = keys
        self._stop = threading.Event()
        self.sent = sent
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            send_all(self._producer, numbered(4, self._keys, self.sent))
            self.sent += 4

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_join_and_leave_under_load_repeat_nothing_and_lose_nothing(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(16, keys=16))
    with Flow(producer, sent=16) as flow:
        first = make_consumer(seen.take, consume_message_batch_max_size=4)
        first.start()
        seen.wait_for_count(50)
        for _ in range(3):
            second = make_consumer(seen.take, consume_message_batch_max_size=4)
            second.start()
            eventually(lambda second=second: len(second.assigned_queues()) >= 4, "a share")
            seen.wait_for_count(len(seen.deliveries) + 100)
            assert second.close(10)
            eventually(lambda: len(first.assigned_queues()) >= 8, "all queues back")
            seen.wait_for_count(len(seen.deliveries) + 50)
    seen.wait_for_count(flow.sent)
    assert first.close(10)
    assert seen.duplicates() == 0
    assert_in_order(seen, flow.sent, keys=16)
    assert committed(broker) == flow.sent


def test_a_revoked_queue_waits_for_its_listener_and_repeats_nothing(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(80, keys=16))
    gate, inside = threading.Event(), threading.Semaphore(0)
    revoked_seen = threading.Event()

    def slow(messages: Any, context: Any) -> ConsumeResult:
        inside.release()
        while not gate.wait(0.01):
            if context.is_revoked():
                revoked_seen.set()
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    first = make_consumer(slow)
    first.start()
    # A listener in each queue: one that has none running is handed over at once.
    for _ in range(8):
        assert inside.acquire(timeout=10)
    second = make_consumer(seen.take)
    second.start()
    assert revoked_seen.wait(10)
    # The lock stays with the running listener, however long it takes.
    assert len(first.assigned_queues()) == 8
    gate.set()
    seen.wait_for_count(80)
    assert second.close(10)
    assert first.close(10)
    assert seen.duplicates() == 0
    assert_in_order(seen, 80, keys=16)


def test_a_slow_queue_does_not_delay_the_revocation_of_the_others(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(160, keys=16))
    gate = threading.Event()
    blocked = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        if context.message_queue.queue_id == 0:
            blocked.set()
            gate.wait(20)
        seen.take(messages, context)

    first = make_consumer(listen)
    first.start()
    assert blocked.wait(10)
    second = make_consumer(seen.take)
    second.start()
    closing = threading.Thread(target=first.close, args=(20,))
    closing.start()
    eventually(lambda: len(second.assigned_queues()) >= 7, "the seven idle queues moved")
    assert closing.is_alive()
    gate.set()
    closing.join()
    seen.wait_for_count(160)
    assert seen.duplicates() == 0


def test_a_member_cut_off_from_the_broker_comes_back_under_its_own_lease(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(100))
    consumer = make_consumer(seen.take)
    with consumer:
        seen.wait_for_count(100)
        member = consumer._live()
        runtime, connections = member._runtime, member.client.connections

        async def cut() -> None:
            for connection in list(connections._open.values()):
                connection.abort(ConnectionResetError("cut by the test"))

        before = {str(a.queue): a.lease.epoch for a in member._rebalancer.assigned() if a.lease}
        runtime.call(cut())
        send_all(producer, numbered(100, start=100))
        seen.wait_for_count(200)
        after = {str(a.queue): a.lease.epoch for a in member._rebalancer.assigned() if a.lease}
        assert before.items() <= after.items()
    assert seen.duplicates() == 0
    assert_in_order(seen, 200)


def test_the_history_of_moves_passes_the_audit(
    producer: Producer, make_consumer: MakeConsumer, seen: Seen, tmp_path: Path
) -> None:
    from ordermq.audit import audit

    send_all(producer, numbered(200, keys=16))
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    first = make_consumer(seen.take, history=files[0], consume_message_batch_max_size=3)
    first.start()
    seen.wait_for_count(50)
    second = make_consumer(seen.take, history=files[1], consume_message_batch_max_size=3)
    second.start()
    send_all(producer, numbered(200, keys=16, start=200))
    seen.wait_for_count(400)
    assert second.close(10)
    assert first.close(10)
    report = audit(files)
    assert report.ok, report.violations


def test_a_forced_close_keeps_the_lock_and_commits_nothing_later(
    producer: Producer, broker: EmbeddedBroker, make_consumer: MakeConsumer, tmp_path: Path
) -> None:
    send_all(producer, numbered(5, keys=1))
    gate, inside, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck(messages: Any, context: Any) -> None:
        inside.set()
        gate.wait(20)
        ended.set()

    history = tmp_path / "stuck.jsonl"
    consumer = make_consumer(stuck, history=history)
    consumer.start()
    assert inside.wait(10)
    results: list[bool] = []
    closing = threading.Thread(target=lambda: results.append(consumer.close(60)))
    closing.start()
    eventually(lambda: history.read_text().count('"UNLOCK"') == 8, "the idle queues moved")
    consumer.close()  # the second call forces the first
    closing.join(10)
    assert results == [False]
    gate.set()
    assert ended.wait(10)
    assert committed(broker) == 0
    assert history.read_text().count('"UNLOCK"') == 8
