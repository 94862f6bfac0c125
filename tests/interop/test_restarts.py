"""A broker or the name server is killed under load and restarted."""

from __future__ import annotations

import pytest

from tests.interop.cluster import eventually
from tests.interop.run import Run

pytestmark = pytest.mark.restarts


def test_a_broker_killed_under_load_and_restarted_causes_no_loss_and_no_disorder(
    run: Run,
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    run.producer_settings = {"route_interval_ms": 200}  # keys stay, though half of the queues go
    run.member("one")
    run.member("two")
    with run.flow():
        run.wait_for_shares(one=4, two=4)
        run.wait_for(lambda seen: len(seen) > 200, "both at work")
        queues = run.cluster.route(run.topic)
        run.cluster.kill("broker-b")
        run.broker_died("broker-b", queues)
        run.cluster.start("broker-b")
        before = len(run.deliveries)
        run.wait_for(
            lambda seen: any(d.queue.broker_name == "broker-b" for d in seen[before:]),
            "messages of the broker that came back",
        )
        run.wait_for_shares(one=4, two=4)
    run.assert_sound()


def test_a_name_server_killed_under_load_stops_nothing_and_serves_new_clients_after_restart(
    run: Run,
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 4, "broker-b": 4})
    # So the producer meets the name server while only one broker has registered anew.
    run.producer_settings = {"route_interval_ms": 200}
    run.member("one")
    with run.flow():
        run.wait_for_more(100, "one")
        run.cluster.kill("name-server")
        run.wait_for_more(100, "one")
        run.cluster.start("name-server")
        run.wait_for_more(100, "one")
        eventually(lambda: len(run.cluster.route(run.topic)) == 2, "both brokers registered anew")
        run.member("two")
        run.wait_for_shares(one=4, two=4)
        run.wait_for_more(50, "two")
    run.assert_sound()
    assert run.duplicates() == 0
