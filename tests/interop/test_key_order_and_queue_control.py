"""Key lanes, parked keys, seeks and released queues on RocketMQ, which has none of these."""

from __future__ import annotations

from typing import Any

from ordermq import ParkKey, PushConsumer
from ordermq.audit import audit
from tests.interop.cluster import eventually
from tests.interop.run import MEMBER_SETTINGS, Run


def committed(consumer: PushConsumer, topic: str) -> int:
    held = consumer._live()._rebalancer.assigned()
    return sum(item.committed_offset for item in held if item.queue.topic == topic)


def numbers_of(run: Run, key: str) -> list[int]:
    return [int(each.body) for each in run.deliveries if each.key == key]


def test_keys_run_in_parallel_and_each_in_order_while_members_change(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.member("one", order_by_key=True)
    run.send(300)
    run.wait_for(lambda seen: len(seen) >= 50, "50 messages")  # or all, by now
    run.member("two", order_by_key=True)
    run.send(300)
    run.wait_for_shares(one=2, two=2)
    run.leave("one")
    run.send(100)
    run.wait_for_all()
    eventually(lambda: committed(run.members["two"], run.topic) == run.sent, "all is committed")
    for key in range(16):
        first_seen = list(dict.fromkeys(numbers_of(run, f"k{key}")))
        assert first_seen == sorted(first_seen)
    report = run.finish()
    assert report.ok, report.violation


def test_a_key_is_parked_in_a_topic_and_replayed_by_the_next_owner(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    parked = f"parked-{run.group}"
    settings: dict[str, Any] = MEMBER_SETTINGS | {
        "order_by_key": True,
        "consume_message_batch_max_size": 1,
        "max_attempts": 2,
        "suspend_current_queue_time_ms": 10,
        "on_failure": ParkKey(parked),
    }
    poison = {b"33"}
    take = run.listener("any")

    def member(name: str) -> PushConsumer:
        history = run.folder / f"{name}.jsonl"
        consumer = PushConsumer(
            run.group, name_servers=run.cluster.name_servers, history=history, **settings
        )
        run.histories.append(history)
        consumer.subscribe(run.topic)

        @consumer.orderly
        def listen(messages: Any, context: Any) -> None:
            if any(bytes(message.body) in poison for message in messages):
                raise ValueError("a test's own failure")
            take(messages, context)

        return consumer

    run.send(100)  # 33 is of k1, as are 1, 17, 49, 65, 81, 97
    with member("one") as first:
        eventually(lambda: first.statistics["parked"] == 1, "it failed for good")
        run.cluster.put_topic(parked, {"broker-a": 1, "broker-b": 1})
        eventually(lambda: committed(first, run.topic) == 100, "what is parked holds no commit")
    assert numbers_of(run, "k1") == [1, 17]
    poison.clear()
    run.send(100)
    with member("two") as second:
        eventually(lambda: committed(second, run.topic) == 200, "newer ones are parked behind")
        assert numbers_of(run, "k1") == [1, 17]
        assert second.unpark("k1")
        run.wait_for_all()
        eventually(lambda: second.parked_keys() == {}, "unparked")
    assert numbers_of(run, "k1") == list(range(1, 200, 16))
    report = audit(run.histories)
    assert report.ok, report.violation


def test_a_backward_seek_and_a_released_queue_take_effect(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    one = run.member("one")
    run.send(100)
    run.wait_for_all()
    eventually(lambda: committed(one, run.topic) == 100, "all is committed")
    queue = next(q for q in one.assigned_queues() if q.topic == run.topic)
    length = one._live().control.find(queue).committed_offset
    one.seek(queue, 10).result(30)
    run.wait_for(lambda seen: len(seen) == 100 + length - 10, "the queue again, from offset 10")
    one.pause(queue, release=True)
    eventually(lambda: queue not in one.assigned_queues(), "it is handed over")
    run.send(50)
    one.resume(queue)
    run.wait_for_all()
    eventually(lambda: committed(one, run.topic) == 150, "all is committed")
    report = run.finish()
    assert report.ok, report.violation
