"""Members of a group with different subscriptions, and a group that is set to POP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import LitePullConsumer, PushConsumer
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

Make = Callable[..., PushConsumer]


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    return caplog


def is_told(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    return any(all(word in record.message for word in words) for record in caplog.records)


@pytest.fixture
def make(run: Run) -> Iterator[Make]:
    made: list[PushConsumer] = []

    def start(way: str, listener: Any, *topics: str, tags: str = "*") -> PushConsumer:
        consumer = PushConsumer(
            run.group, name_servers=run.cluster.name_servers, consume_from_where="first_offset"
        )
        for topic in topics or (run.topic,):
            consumer.subscribe(topic, tags)
        getattr(consumer, way)(listener)
        consumer.start()
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close(10.0)


def ignore(messages: Any, context: Any) -> None:
    return None


def test_members_with_different_tags_are_warned_about_each_other(
    run: Run, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    one = make("orderly", ignore, tags="a")
    two = make("orderly", ignore, tags="a || b")
    for other in (one, two):
        eventually(
            lambda other=other: is_told(
                caplog, run.group, run.topic, other.client_id, "'a || b'", "subscribe and listen"
            ),
            f"a warning about {other.client_id}",
        )


def test_members_with_other_topics_or_another_listener_type_are_warned(
    run: Run, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    run.cluster.put_topic(f"{run.topic}-too", {"broker-a": 2})
    make("orderly", ignore, run.topic)
    make("concurrently", ignore, run.topic, f"{run.topic}-too")
    for words in ((f"{run.topic}-too", "not subscribed"), ("listening is", "concurrently")):
        eventually(
            lambda words=words: is_told(caplog, run.group, *words), f"a warning with {words}"
        )


def test_a_lite_pull_consumer_in_a_group_of_listeners_is_warned(
    run: Run, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    push = make("orderly", ignore, tags="a")
    lite = LitePullConsumer(run.group, name_servers=run.cluster.name_servers)
    lite.subscribe(run.topic, "b")
    with lite:
        for other, tags in ((push, "'b' here and"), (lite, "'a' here and")):
            eventually(
                lambda other=other, tags=tags: is_told(caplog, run.group, other.client_id, tags),
                f"a warning about {other.client_id}",
            )


def test_a_java_member_with_another_subscription_is_named(
    run: Run, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2})
    theirs = run.java(tags="b")
    try:
        make("orderly", ignore, tags="a")
        eventually(
            lambda: is_told(caplog, run.group, theirs.ready, "'a' here", "'b'"),
            "a warning that names Java's member",
        )
    finally:
        theirs.kill()


def test_members_with_equal_subscriptions_are_not_warned(
    run: Run, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.member("one")
    run.member("two")
    run.wait_for_shares(one=2, two=2)
    run.send(20)
    run.assert_sound()
    assert not is_told(caplog, run.group, "subscribe")


@pytest.fixture(scope="module")
def admin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    folder: Path = tmp_path_factory.mktemp("tool")
    process = JavaProcess(
        cluster.version, "Admin", folder, options=[f"-Drocketmq.home.dir={folder}"]
    )
    yield process
    process.kill()


@pytest.mark.parametrize("way", ["orderly", "concurrently"])
def test_a_group_set_to_pop_is_served_and_warned(
    run: Run, make: Make, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest, way: str
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    pops = run.cluster.version >= "5"  # brokers before have one way only
    if pops:
        where = f"-n {run.cluster.name_servers} -c DefaultCluster -t {run.topic} -g {run.group}"
        said = request.getfixturevalue("admin").ask(f"setConsumeMode {where} -m POP -q 0")["told"]
        assert "success" in said, said
    run.send(40)
    bodies: list[int] = []

    def listen(messages: Any, context: Any) -> None:
        bodies.extend(int(bytes(message.body)) for message in messages)

    make(way, listen)
    eventually(lambda: sorted(bodies) == list(range(40)), "every message, by pulls")
    words = (run.group, run.topic, "setConsumeMode", "set the mode to PULL")
    eventually(lambda: is_told(caplog, *words) == pops, "a warning, where there is a reason")
