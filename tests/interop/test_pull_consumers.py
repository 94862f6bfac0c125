"""Pull consumers of ordermq and Java: on RocketMQ, on the embedded broker, in one group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, MessageQueue, Producer, PullConsumer, PullStatus
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError
from ordermq.model.names import retry_topic
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

StartJava = Callable[..., JavaProcess]
Place = tuple[str, int, str]  # queue, offset, body
BROKERS = ("broker-a", "broker-b")


@pytest.fixture
def java(cluster: Cluster, tmp_path: Path) -> Iterator[StartJava]:
    """Start Java's lite pull consumers; they are killed after the test."""
    started: list[JavaProcess] = []

    def start(**arguments: object) -> JavaProcess:
        started.append(JavaProcess(cluster.version, "LitePull", tmp_path, **arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    # Java, too, begins where its own settings say.
    config = BrokerConfig(broker_name="embedded", durability="os", new_groups_start_at_zero=False)
    with EmbeddedBroker(tmp_path / "broker.db", config=config) as running:
        yield running


def two_brokers(run: Run, queues: int = 4) -> list[MessageQueue]:
    run.cluster.put_topic(run.topic, dict.fromkeys(BROKERS, queues))
    return [MessageQueue(run.topic, broker, n) for broker in BROKERS for n in range(queues)]


def send(producer: Producer, queues: list[MessageQueue], numbers: range, **message: Any) -> None:
    """Send numbered messages, to the queues in turn."""
    for number in numbers:
        target = queues[number % len(queues)]
        producer.send(Message(target.topic, str(number).encode(), **message), queue=target)


def lite(run: Run, **settings: Any) -> LitePullConsumer:
    settings = {"auto_commit": False, "consume_from_where": "first_offset"} | settings
    return LitePullConsumer(run.group, name_servers=run.cluster.name_servers, **settings)


def polled(consumer: LitePullConsumer, count: int) -> list[int]:
    """Return the numbers of the next messages; fails unless there are so many."""
    got: list[int] = []
    end = time.monotonic() + DEADLINE_S
    while len(got) < count:
        if time.monotonic() > end:
            pytest.fail(f"not within {DEADLINE_S} s: {count} messages; got {len(got)}")
        got += [int(bytes(message.body)) for message in consumer.poll(500)]
    return got


def quiet_ms() -> int:
    """A time in ms at which nothing is stored: what was sent is older, what will be is younger.

    Asked for a time, RocketMQ 4.9 answers with any one of the messages of that millisecond.
    """
    begin_ms = time.time_ns() // 1_000_000
    eventually(lambda: time.time_ns() // 1_000_000 >= begin_ms + 2, "two milliseconds")
    return begin_ms + 1


def polled_by_java(process: JavaProcess, count: int, timeout_ms: int = 30_000) -> list[Place]:
    places = []
    for text in answer(process, f"poll {count} {timeout_ms}"):
        queue, offset, body = text.split(" ")
        places.append((queue, int(offset), body))
    return places


def answer(process: JavaProcess, line: str) -> Any:
    said = process.ask(line)
    assert "error" not in said, said
    return said["answer"]


def test_classic_pulls_read_every_queue_and_store_offsets_at_its_broker(run: Run) -> None:
    queues = two_brokers(run)
    send(run.producer, queues, range(400))
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as consumer:
        assert consumer.fetch_subscribe_message_queues(run.topic) == queues
        got = []
        for queue in queues:
            offset = consumer.min_offset(queue)
            while (pull := consumer.pull(queue, "*", offset, 32)).status is PullStatus.FOUND:
                got += [int(bytes(message.body)) for message in pull.messages]
                offset = pull.next_begin_offset
            assert (pull.status, offset) == (PullStatus.NO_NEW_MSG, 50)
            assert consumer.max_offset(queue) == 50
            consumer.update_consume_offset(queue, offset)
        assert sorted(got) == list(range(400))
        assert consumer.pull(queues[0], "*", 51, 32).status is PullStatus.OFFSET_ILLEGAL
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as consumer:
        assert [consumer.fetch_consume_offset(queue) for queue in queues] == [50] * 8


def test_a_classic_pull_that_waits_returns_with_the_next_message(run: Run) -> None:
    queues = two_brokers(run)
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as consumer:
        results: list[Any] = []
        waiter = threading.Thread(
            target=lambda: results.append(consumer.pull_block_if_not_found(queues[5], "Aa", 0, 32))
        )
        waiter.start()
        # BB has the hash of Aa in Java: the broker wakes for it, the client must not take it.
        send(run.producer, queues[5:6], range(1), tags="BB")
        waiter.join(DEADLINE_S)
        assert results[0].status is PullStatus.NO_MATCHED_MSG
        send(run.producer, queues[5:6], range(1, 2), tags="Aa")
        result = consumer.pull_block_if_not_found(queues[5], "Aa", results[0].next_begin_offset, 32)
        assert [bytes(message.body) for message in result.messages] == [b"1"]


def test_a_message_sent_back_by_the_caller_is_stored_in_the_retry_topic(run: Run) -> None:
    queues = two_brokers(run)
    send(run.producer, queues[:1], range(1))
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as consumer:
        (message,) = consumer.pull(queues[0], "*", 0, 32).messages
        consumer.send_back(message, delay_level=1)  # a second
        again = MessageQueue(retry_topic(run.group), queues[0].broker_name, 0)
        eventually(lambda: run.cluster.route(again.topic), "the name server hears of the topic")
        (repeated,) = consumer.pull_block_if_not_found(again, "*", 0, 32).messages
    assert (repeated.topic, bytes(repeated.body), repeated.reconsume_times) == (run.topic, b"0", 1)


def test_lite_members_share_the_queues_of_two_brokers_and_continue_from_commits(run: Run) -> None:
    queues = two_brokers(run)
    send(run.producer, queues, range(400))
    with lite(run) as one, lite(run) as two:
        one.subscribe(run.topic)
        assert one.assignment() == queues
        two.subscribe(run.topic)
        eventually(lambda: len(one.assignment()) == 4, "one gave half of its queues up")
        assert sorted(one.assignment() + two.assignment()) == queues
        assert sorted(polled(one, 200) + polled(two, 200)) == list(range(400))
        one.commit()
        two.commit()
        two.close()
        eventually(lambda: one.assignment() == queues, "one has all of them")
        send(run.producer, queues, range(400, 440))
        assert sorted(polled(one, 40)) == list(range(400, 440))
        assert [one.committed(queue) for queue in queues] == [50] * 8
    with lite(run) as three:
        three.subscribe(run.topic)
        assert sorted(polled(three, 40)) == list(range(400, 440))


def test_lite_seeks_times_tags_and_columns(run: Run) -> None:
    queues = two_brokers(run, queues=2)
    for number in range(60):
        tag = ("Aa", "BB", "other")[number % 3]
        send(run.producer, queues[:1], range(number, number + 1), tags=tag)
    middle_ms = quiet_ms()
    send(run.producer, queues[:1], range(60, 90), tags="Aa")
    with lite(run, pull_batch_size=7) as consumer:
        consumer.assign(queues[:1], "Aa")
        assert polled(consumer, 50) == [*range(0, 60, 3), *range(60, 90)]
        consumer.seek(queues[0], consumer.offset_for_timestamp(queues[0], middle_ms))
        assert polled(consumer, 30) == list(range(60, 90))
        consumer.seek_to_begin(queues[0])
        tables = [batch.to_arrow() for batch in consumer.batches(timeout_ms=1_000)]
        tags = [tag for table in tables for tag in table["tags"].to_pylist()]
        assert tags == ["Aa"] * 50
        bodies = [body for table in tables for body in table["body"].to_pylist()]
        assert [int(body) for body in bodies] == [*range(0, 60, 3), *range(60, 90)]
        consumer.seek_to_end(queues[0])
        assert not consumer.poll(0)
        consumer.commit()
        assert consumer.committed(queues[0]) == 90


def test_auto_commits_of_a_lite_member_reach_the_broker(run: Run) -> None:
    queues = two_brokers(run)
    send(run.producer, queues, range(80))
    with lite(run, auto_commit=True, auto_commit_interval_ms=50) as consumer:
        consumer.subscribe(run.topic)
        assert sorted(set(polled(consumer, 80))) == list(range(80))
        while consumer.poll(0):
            # a send repeated under load is twice in its queue
            # (docs/internals/semantics.md#ordered-sends)
            pass
        ends = [consumer.position(queue) for queue in queues]
        eventually(
            lambda: [consumer.committed(queue) for queue in queues] == ends,
            f"commits of {ends}; {consumer.statistics.as_dict()}",
        )


def share_a_group(
    ours: LitePullConsumer,
    process: JavaProcess,
    producer: Producer,
    queues: list[MessageQueue],
) -> None:
    """Let members of Java and ordermq share `queues` and take over from each other's commits."""
    names = {str(queue): queue for queue in queues}

    def shares() -> tuple[list[MessageQueue], list[MessageQueue]]:
        theirs = [names[name] for name in answer(process, "assignment")]
        return ours.assignment(), theirs

    def is_shared() -> bool:
        mine, theirs = shares()
        return len(mine) == len(theirs) == 4 and sorted(mine + theirs) == queues

    eventually(is_shared, "each member has half of the queues")
    mine, theirs = shares()
    send(producer, queues, range(160))
    by_us = polled(ours, 80)
    by_java = polled_by_java(process, 80)
    assert sorted(by_us) == [n for n in range(160) if queues[n % 8] in mine]
    assert sorted(int(body) for _, _, body in by_java) == sorted(set(range(160)) - set(by_us))
    ends = [ours.position(mine[0])] * 4
    ours.commit()
    assert answer(process, "commit")
    # Each sees what the other has committed.
    assert [answer(process, f"committed {queue}") for queue in mine] == ends
    eventually(lambda: [ours.committed(queue) for queue in theirs] == ends, "Java's commits")
    process.leave()
    eventually(lambda: ours.assignment() == queues, "ours has all of them")
    send(producer, queues, range(160, 240))
    assert sorted(polled(ours, 80)) == list(range(160, 240))


def test_java_and_ordermq_lite_members_share_a_group_on_rocketmq(run: Run, java: StartJava) -> None:
    queues = two_brokers(run)
    with lite(run) as ours:
        ours.subscribe(run.topic)
        process = java(name_servers=run.cluster.name_servers, group=run.group, topic=run.topic)
        share_a_group(ours, process, run.producer, queues)


def test_java_and_ordermq_lite_members_share_a_group_on_the_embedded_broker(
    embedded: EmbeddedBroker, java: StartJava
) -> None:
    queues = [MessageQueue("orders", "embedded", number) for number in range(8)]
    with (
        Producer("p", name_servers=embedded.name_servers, default_topic_queue_nums=8) as producer,
        LitePullConsumer(
            "g",
            name_servers=embedded.name_servers,
            auto_commit=False,
            consume_from_where="last_offset",
        ) as ours,
    ):
        assert producer.queues("orders") == queues
        send(producer, queues, range(8))
        with PullConsumer("g", name_servers=embedded.name_servers) as before:
            for queue in queues:  # else Java's members begin with these eight
                before.update_consume_offset(queue, 1)
        ours.subscribe("orders")
        process = java(name_servers=embedded.name_servers, group="g", topic="orders")
        share_a_group(ours, process, producer, queues)


def test_javas_lite_consumer_assigns_seeks_and_searches_by_time_on_the_embedded_broker(
    embedded: EmbeddedBroker, java: StartJava
) -> None:
    with Producer("p", name_servers=embedded.name_servers) as producer:
        queues = producer.queues("orders")[:2]
        send(producer, queues, range(20))
        middle_ms = quiet_ms()
        send(producer, queues, range(20, 40))
    first, second = map(str, queues)
    process = java(name_servers=embedded.name_servers, group="g")
    assert answer(process, "queues orders")[:2] == [first, second]
    assert answer(process, f"committed {first}") == -1
    assert answer(process, f"assign {first} {second}")
    assert sorted(int(body) for _, _, body in polled_by_java(process, 40)) == list(range(40))
    offset = answer(process, f"time {first} {middle_ms}")
    assert offset == 10
    assert answer(process, f"seek {first} {offset}")
    assert polled_by_java(process, 10) == [(first, n, str(2 * n)) for n in range(10, 20)]
    assert answer(process, f"begin {second}")
    assert polled_by_java(process, 20) == [(second, n, str(2 * n + 1)) for n in range(20)]
    assert answer(process, f"end {first}")
    assert polled_by_java(process, 1, 300) == []
    assert "error" in process.ask(f"seek {first} 21")
    assert answer(process, f"commit {first}=7")
    assert answer(process, "commit")
    with PullConsumer("g", name_servers=embedded.name_servers) as other:
        eventually(
            lambda: other.fetch_consume_offset(queues[1], from_store=True) == 20, "Java's commit"
        )
    process.leave()


@pytest.mark.restarts  # brokers of its own, as those do
def test_sql_conditions_filter_by_properties_for_every_pull_consumer(
    cluster: Cluster, tmp_path: Path
) -> None:
    settings = {"enablePropertyFilter": "true"}
    with own_cluster(cluster.version, tmp_path / "rocketmq", **settings) as filtering:
        run = Run(filtering, tmp_path, "sql")
        filtering.put_topic(run.topic, {"broker-a": 1})
        queue = MessageQueue(run.topic, "broker-a", 0)
        for number in range(60):
            region = ("north", "south")[number % 2]
            send(
                run.producer,
                [queue],
                range(number, number + 1),
                properties={"price": str(number), "region": region},
            )
        wanted, condition = list(range(31, 60, 2)), "price > 30 AND region = 'south'"
        with lite(run) as subscribed, lite(run) as assigned:
            subscribed.subscribe(run.topic, sql=condition)
            assert polled(subscribed, 15) == wanted
            assigned.assign([queue], sql=condition)
            assigned.seek_to_begin(queue)
            assert polled(assigned, 15) == wanted
            with pytest.raises(BrokerError, match="price >"):
                subscribed.subscribe(run.topic, sql="price > > 3")
        with PullConsumer(run.group, name_servers=filtering.name_servers) as consumer:
            found, offset = [], 0
            while offset < 60:
                result = consumer.pull(queue, "*", offset, 32, sql=condition)
                found += [int(bytes(message.body)) for message in result.messages]
                offset = result.next_begin_offset
        assert found == wanted
        run.close()


def test_the_first_message_since_a_time_is_found_in_the_middle_of_a_millisecond(run: Run) -> None:
    queue = two_brokers(run, queues=1)[0]
    send(run.producer, [queue], range(33))
    quiet_ms()
    run.producer.send_batch([Message(run.topic, b"33")] * 200, queue=queue)
    quiet_ms()
    send(run.producer, [queue], range(34, 39))
    with PullConsumer(run.group, name_servers=run.cluster.name_servers) as consumer:
        eventually(lambda: consumer.max_offset(queue) == 238, "all messages")
        times: dict[int, int] = {}
        while (result := consumer.pull(queue, "*", len(times), 32)).messages:
            times |= {m.queue_offset: m.store_timestamp_ms for m in result.messages}
        for wall_ms in {stored_ms + by for stored_ms in times.values() for by in (-1, 0, 1)}:
            since = (at for at, stored_ms in times.items() if stored_ms >= wall_ms)
            assert consumer.search_offset(queue, wall_ms) == min(since, default=len(times))
