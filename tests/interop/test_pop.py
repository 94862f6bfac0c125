"""Ordered POP: RocketMQ answers the scripts of tests/pop_scripts.py as the model says, and so as
the embedded broker does (tests/property/test_pop_machine.py); and members that pop on RocketMQ."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from ordermq import Admin, PushConsumer
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.interop.cluster import Cluster, eventually
from tests.interop.popping import (
    bury_one,
    count_once,
    kill_one_of_two,
    poll_and_iterate,
    share_join_and_leave,
)
from tests.interop.run import Run
from tests.pop_scripts import (
    PopClient,
    PopModel,
    UnorderedPops,
    check_pops_without_order,
    script_of,
)
from tests.unordered_pop_model import UnorderedSteps, play


@pytest.fixture
def wire(cluster: Cluster) -> WireClient:
    if cluster.version.startswith("4."):
        pytest.skip("brokers before 5.0 have no POP")
    return WireClient(int(cluster.addresses["broker-a"].rsplit(":", 1)[1]))


@pytest.mark.parametrize("seed", range(8))
def test_a_script_of_pops_is_answered_as_the_model_says(
    cluster: Cluster, run: Run, wire: WireClient, seed: int
) -> None:
    cluster.put_topic(run.topic, {"broker-a": 1})
    group = f'{{"groupName":"{run.group}","consumeMessageOrderly":true}}'.encode()
    answer = cluster.ask("broker-a", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    assert answer.code == 0, answer.remark
    with contextlib.closing(wire):
        client = PopClient(
            wire,
            "broker-a",
            run.topic,
            run.group,
            lambda: time.time_ns() // 1_000_000,
            lambda duration_ms: time.sleep(duration_ms / 1000),
        )
        model = PopModel()
        for number, step in enumerate(script_of(seed)):
            # The model's time is that of the test: what a slow machine adds counts for both.
            model.now_ms = time.monotonic_ns() // 1_000_000
            found, expected = client.run(step), model.run(step)
            assert found == expected, f"seed {seed}, step {number}: {step}"


def test_pops_without_order_follow_the_rules(cluster: Cluster, run: Run, wire: WireClient) -> None:
    cluster.put_topic(run.topic, {"broker-a": 1})
    with contextlib.closing(wire):
        pops = UnorderedPops(wire, run.topic, run.group, lambda: time.time_ns() // 1_000_000)
        check_pops_without_order(
            pops, "broker-a", lambda duration_ms: time.sleep(duration_ms / 1000), eventually
        )


@pytest.mark.parametrize("seed", range(6))
def test_pops_without_order_are_answered_as_the_model_allows(
    cluster: Cluster, run: Run, wire: WireClient, seed: int
) -> None:
    cluster.put_topic(run.topic, {"broker-a": 1})
    with contextlib.closing(wire):
        pops = UnorderedPops(wire, run.topic, run.group, lambda: time.time_ns() // 1_000_000)
        steps = UnorderedSteps(
            pops,
            "broker-a",
            lambda: time.monotonic_ns() // 1_000_000,
            lambda duration_ms: time.sleep(duration_ms / 1000),
            may_give_less=True,
        )
        names: list[str] = []
        try:
            names.extend(play(steps, seed))
            steps.drain(eventually)
        except AssertionError as error:
            error.add_note(f"seed {seed}, step {len(names)}: {names[-5:]}")
            raise


POP = {"consume_mode": "pop", "pop_invisible_ms": 3_000, "pop_poll_ms": 500}
QUEUES = {"broker-a": 4, "broker-b": 4}


@pytest.fixture
def brokers(cluster: Cluster) -> Cluster:
    if cluster.version.startswith("4."):
        pytest.skip("brokers before 5.0 have no POP")
    return cluster


@pytest.mark.parametrize("by_key", [False, True])
def test_members_that_pop_share_join_and_leave_and_keep_the_order_of_keys(
    run: Run, brokers: Cluster, by_key: bool
) -> None:
    brokers.put_topic(run.topic, QUEUES)

    def look() -> None:  # brokers of 5.5.0 forget the way of a group with its last member
        with Admin(brokers.name_servers) as admin:
            assert admin.group(run.group).pops

    share_join_and_leave(run, look, order_by_key=by_key, **POP)


def test_a_member_that_pops_and_is_killed_delays_its_keys_by_its_leases(
    run: Run, brokers: Cluster
) -> None:
    brokers.put_topic(run.topic, QUEUES)
    kill_one_of_two(run, **POP)


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_member_without_order_had_comes_again_after_its_leases(
    run: Run, brokers: Cluster, fate: signal.Signals
) -> None:
    brokers.put_topic(run.topic, QUEUES)
    process = run.member_process("gone", concurrent=True, **POP)
    got = set[int]()
    consumer = PushConsumer(
        run.group, name_servers=brokers.name_servers, consume_from_where="first_offset", **POP
    )
    consumer.subscribe(run.topic)
    consumer.concurrently(lambda messages, context: got.update(int(m.body) for m in messages))
    with consumer:
        with run.flow():
            run.wait_for_more(100, "gone")
            eventually(lambda: len(got) > 100, "both at work")
            process.process.send_signal(fate)
            count = len(got)
            eventually(lambda: len(got) > count + 500, "the other one goes on")
        eventually(
            lambda: got | {int(each.body) for each in run.deliveries} == set(range(run.sent)),
            "all messages",
        )
    process.kill()


def test_tasks_and_pollers_share_a_group_and_keep_the_order_of_keys(
    run: Run, brokers: Cluster
) -> None:
    brokers.put_topic(run.topic, QUEUES)
    poll_and_iterate(run, brokers.name_servers, consume_from_where="first_offset", **POP)


def test_effects_are_in_a_database_once(run: Run, brokers: Cluster, tmp_path: Path) -> None:
    brokers.put_topic(run.topic, QUEUES)
    place = brokers.name_servers, tmp_path / "app.db"
    count_once(run, *place, consume_from_where="first_offset", **POP)


def test_a_message_that_keeps_failing_goes_to_the_dead_letters(run: Run, brokers: Cluster) -> None:
    brokers.put_topic(run.topic, QUEUES)
    bury_one(run, brokers.name_servers, consume_from_where="first_offset", **POP)


@pytest.mark.restarts
def test_a_broker_killed_under_members_that_pop_loses_no_message(
    run: Run, brokers: Cluster
) -> None:
    # Not the order: RocketMQ's brokers forget leases of the last seconds.
    brokers.put_topic(run.topic, QUEUES)
    run.producer_settings = {"route_interval_ms": 200}
    run.member("one", **POP)
    run.member("two", **POP)
    with run.flow():
        run.wait_for(lambda seen: len(seen) > 200, "both at work")
        brokers.kill("broker-b")
        brokers.start("broker-b")
        before = len(run.deliveries)
        run.wait_for(
            lambda seen: any(d.queue.broker_name == "broker-b" for d in seen[before:]),
            "messages of the broker that came back",
        )
    run.wait_for_all()
