"""Ordered POP: RocketMQ answers the scripts of tests/pop_scripts.py as the model says, and so as
the embedded broker does (tests/property/test_pop_machine.py)."""

from __future__ import annotations

import contextlib
import time

import pytest

from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.interop.cluster import Cluster
from tests.interop.run import Run
from tests.pop_scripts import PopClient, PopModel, script_of


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
