"""The history of a concurrent group: nothing lost, whatever is sent back or moves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordermq import Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import Seen, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all


def test_members_that_come_and_go_and_fail_lose_nothing_and_the_audit_says_so(
    producer: Producer,
    broker: EmbeddedBroker,
    broker_history: Path,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
    tmp_path: Path,
) -> None:
    failed: Counter[bytes] = Counter()
    lock = threading.Lock()

    def listen(messages: Any, context: Any) -> int | None:
        context.delay_level = 1
        for place, message in enumerate(messages):
            body = bytes(message.body)
            with lock:
                failed[body] += 1
                fails = int(body) % 50 == 0 and failed[body] == 1
            if fails:
                seen.take(messages[:place], context)
                return place
        seen.take(messages, context)
        return None

    settings = {
        "concurrent": True, "consume_message_batch_max_size": 4, "commit_interval_ms": 100,
    }  # fmt: skip
    files = [tmp_path / f"member{number}.jsonl" for number in range(3)]
    first = make_consumer(listen, history=files[0], **settings)
    first.start()
    send_all(producer, numbered(300))
    seen.wait_for(lambda got: len({queue for queue, *_ in got}) == 8, "something of each queue")
    eventually(lambda: committed(broker) > 0, "what only the first one has consumed")
    with make_consumer(listen, history=files[1], **settings) as second:
        # It gets queues that the first one has consumed, or without its file nothing would be
        # missing.
        eventually(lambda: len(second.assigned_queues()) >= 4, "the second one's share")
        send_all(producer, numbered(300, start=300))
        eventually(lambda: second.statistics["messages_done"] > 0, "what the second one consumes")
        seen.wait_for_count(350)
    first.close()
    with make_consumer(listen, history=files[2], **settings):
        seen.wait_for(lambda got: len({body for _, _, _, body in got}) == 600, "every message")
        eventually(lambda: committed(broker) == 600, "all is committed")
        eventually(lambda: committed(broker, "%RETRY%g") > 0, "what was sent back too")
    broker.close()
    report = audit([*files, broker_history])
    assert report.ok, report.violation
    assert report.sent_back >= 12
    assert report.diverted == 0
    # The witness is not blind: without one member's file its messages are lost.
    # Its start is told: the first commit the others know of may lie behind what it consumed.
    blind = audit([*files[1:], broker_history], start_offsets=0)
    assert [v.invariant for v in blind.violations] == ["I4"]
