"""Producer and consumer of ordermq on RocketMQ."""

from __future__ import annotations

import asyncio

import pytest

from ordermq import DeadLetter, Message, Producer
from ordermq.errors import OrderingError, RouteError
from ordermq.model.names import dead_letter_topic
from tests.interop.cluster import eventually
from tests.interop.run import Run

TEXTS = {
    "blank": "two words",
    "umlaut": "Größe",
    "han": "订单",
    "emoji": "😀x",
    "line": "a\nb\tc\r",
    "quotes": "{\"a\": 'b\\'}",
    "long": "x" * 5_000,
    "名": "a name may be any text too",
}


def test_every_send_method_stores_in_order_and_is_delivered(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    producer, key = run.producer, "o-17"

    def message() -> Message:
        run.sent += 1
        return Message(run.topic, str(run.sent - 1).encode())

    receipts = [producer.send(message(), sharding_key=key)]
    receipts += producer.send_many([(message(), key) for _ in range(40)])
    receipts += producer.send_batch([message() for _ in range(10)], sharding_key=key)
    receipts.append(asyncio.run(producer.asend(message(), sharding_key=key)))
    target = receipts[0].message_queue
    receipts.append(producer.send(message(), queue=target))
    for receipt in receipts:
        run.stored(receipt.message_queue, receipt.queue_offset, key)
    producer.send_oneway(message(), sharding_key=key)
    run.member("one")
    run.wait_for_all()
    assert [receipt.queue_offset for receipt in receipts] == list(range(53))
    assert {receipt.message_queue for receipt in receipts} == {target}
    assert [int(delivery.body) for delivery in run.deliveries] == list(range(54))
    assert run.finish().ok


def test_properties_of_any_text_and_large_bodies_arrive_unchanged(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    body = bytes(range(256)) * 4_096
    for queue in run.producer.queues(run.topic):
        run.producer.send(
            Message(
                run.topic, body, tags="tag-名", keys=["k1", "订单-2"], properties=TEXTS, flag=-5
            ),
            queue=queue,
        )
    seen = []

    def listen(messages, context):
        seen.extend(
            (m.topic, m.tags, m.keys, m.flag, bytes(m.body), m.properties) for m in messages
        )
        taken(messages, context)

    taken = run.listener("one")
    run.listener = lambda name: listen
    run.member("one")
    run.wait_for(lambda deliveries: len(deliveries) == 2, "both messages")
    for topic, tags, keys, flag, received, properties in seen:
        assert (topic, tags, keys, flag) == (run.topic, "tag-名", ["k1", "订单-2"], -5)
        assert received == body
        assert {name: properties[name] for name in TEXTS} == TEXTS


def test_members_that_join_and_leave_under_load_cause_no_loss_and_no_duplicate(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.member("one")
    with run.flow():
        run.wait_for_more(50, "one")
        run.member("two")
        run.wait_for_shares(one=4, two=4)
        run.wait_for_more(50, "two")
        run.member("three")
        run.wait_for_shares(one=3, two=3, three=2)
        run.wait_for_more(50, "three")
        run.leave("one")
        run.wait_for_shares(two=4, three=4)
        run.wait_for_more(50, "three")
    report = run.assert_sound()
    assert run.duplicates() == 0
    assert {hand_off.kind for hand_off in report.hand_offs} == {"join", "leave"}


def test_only_subscribed_tags_arrive_even_if_hashes_collide(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    # Aa and BB have one hash in Java: the broker passes both, the client must not.
    for number in range(200):
        tag = ("Aa", "BB", "other", None)[number % 4]
        message = Message(run.topic, str(number).encode(), tags=tag)
        run.producer.send(message, sharding_key=f"k{number % 7}")
    run.member("one", tags="Aa || other")
    run.wait_for(lambda seen: len(seen) >= 100, "the wanted half")
    run.leave("one")
    assert sorted(int(d.body) for d in run.deliveries) == [n for n in range(200) if n % 2 == 0]


def test_a_message_that_is_given_up_becomes_a_dead_letter_and_the_rest_continues(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    run.send(60)
    taken = run.listener("one")

    def listen(messages, context):
        if any(bytes(m.body) in (b"7", b"8") for m in messages):
            raise ValueError("a test's own failure")
        taken(messages, context)

    run.listener = lambda name: listen
    run.member(
        "one",
        on_failure=DeadLetter(),
        max_attempts=3,
        suspend_current_queue_time_ms=10,
        consume_message_batch_max_size=1,
    )
    run.wait_for(lambda seen: len(seen) == 58, "all others")
    report = run.finish()
    assert report.ok, "\n".join(map(str, report.violations))
    assert report.diverted == 2
    dead = Run(run.cluster, run.folder, "dead-letters")
    dead.topic = dead_letter_topic(run.group)
    try:
        dead.member("reader")
        dead.wait_for(lambda seen: len(seen) == 2, "the dead letters")
        assert sorted(delivery.body for delivery in dead.deliveries) == [b"7", b"8"]
    finally:
        dead.close()


def test_a_message_sent_back_is_redelivered_through_the_retry_topic(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    run.member("one")  # makes the group and its retry topic
    receipt = run.producer.send(Message(run.topic, b"again", properties={"mark": "m"}))
    run.wait_for(lambda seen: len(seen) == 1, "the first delivery")
    answer = run.cluster.ask(
        "broker-a",
        36,
        {
            "offset": str(int(receipt.offset_message_id[16:], 16)),
            "group": run.group,
            "delayLevel": "1",
            "originMsgId": receipt.message_id,
            "originTopic": run.topic,
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        },
    )
    assert answer.code == 0, answer.remark
    run.wait_for(lambda seen: len(seen) == 2, "the second delivery")
    first, second = run.deliveries
    assert second.body == first.body
    assert second.queue.topic == f"%RETRY%{run.group}"
    assert run.finish().ok


def test_a_member_follows_an_admins_reset(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    run.send(40)
    # 4.x tells members by request 220, 5.x by the next pull, as soon as there is one.
    run.member("one", broker_suspend_ms=1_000)
    run.wait_for_all()
    ext = {"topic": run.topic, "group": run.group, "timestamp": "0", "isForce": "true"}
    # 4.x knows no group that has not committed every queue yet.
    eventually(lambda: run.cluster.ask("broker-a", 222, ext).code == 0, "the reset is taken")
    run.wait_for(lambda seen: len(seen) == 80, "everything again")
    run.leave("one")
    assert run.duplicates() == 40


def test_a_read_only_topic_is_consumed_to_its_end_and_refuses_messages(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4})
    run.send(100)
    run.cluster.put_topic(run.topic, {"broker-a": 4}, perm=4)
    run.member("one")
    run.wait_for_all()
    with (
        Producer("late", name_servers=run.cluster.name_servers) as late,
        pytest.raises(RouteError, match="no queue of this topic may be written to"),
    ):
        late.send(Message(run.topic, b"x"))
    run.assert_sound()


def test_queues_that_are_no_longer_writable_are_still_consumed(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 8})
    run.send(100, keys=50)
    run.cluster.put_topic(run.topic, {"broker-a": 8}, write=4)
    run.member("one")
    run.wait_for_all()
    assert len({delivery.queue for delivery in run.deliveries}) == 8
    with Producer("late", name_servers=run.cluster.name_servers) as late:
        assert len(late.queues(run.topic)) == 4
    run.assert_sound()


def test_a_topic_that_gets_more_queues_under_load_is_consumed_completely(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4})
    run.producer_settings = {"allow_queue_change": True, "route_interval_ms": 100}
    run.member("one")
    run.member("two")
    with run.flow():
        run.wait_for_more(50, "one")
        run.cluster.put_topic(run.topic, {"broker-a": 8, "broker-b": 2})
        run.wait_for_shares(one=5, two=5)
        run.wait_for(lambda seen: len({d.queue for d in seen}) == 10, "messages of ten queues")
    run.wait_for_all()
    report = run.finish()
    assert report.ok, "\n".join(map(str, report.violations))
    assert run.duplicates() == 0


def test_a_producer_refuses_to_move_its_keys_when_a_topic_gets_more_queues(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4})
    with Producer(
        "strict", name_servers=run.cluster.name_servers, route_interval_ms=50
    ) as producer:
        producer.send(Message(run.topic, b"x"), sharding_key="k")
        run.cluster.put_topic(run.topic, {"broker-a": 5})

        def is_refused() -> bool:
            try:
                return len(producer.queues(run.topic)) != 4
            except OrderingError:
                return True

        eventually(is_refused, "the new route is known")
        with pytest.raises(OrderingError, match="had 4 queues"):
            producer.send(Message(run.topic, b"x"), sharding_key="k")
