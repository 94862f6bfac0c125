"""Offsets: committed once durable, fenced by epoch, searched by time
(docs/internals/protocol.md#offsets)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.group_commit import GroupCommit
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.headers import QueryOffsetHeader
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, epochs
from tests.component.conftest import eventually


def test_a_group_without_an_offset_gets_query_not_found(client: WireClient) -> None:
    client.send("orders")
    assert client.committed("group", "orders") is None


def start_of(client: WireClient, set_zero_if_not_found: bool | None = None) -> str | None:
    """First offset of a new group, as a client asks that is about to start."""
    header = QueryOffsetHeader("group", "orders", 0, set_zero_if_not_found=set_zero_if_not_found)
    return client.call(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext()).ext.get("offset")


def test_a_new_group_starts_at_zero_in_a_young_queue_as_with_rocketmq(client: WireClient) -> None:
    client.send("orders")
    assert start_of(client) == start_of(client, True) == "0"
    assert start_of(client, False) is None
    client.commit("group", "orders", 1)
    assert start_of(client) == start_of(client, False) == "1"


def test_a_new_group_does_not_start_at_zero_where_the_first_message_is_gone() -> None:
    clock = ManualClock()
    config = BrokerConfig(retention_ms=1_000, retention_interval_ms=10)
    with EmbeddedBroker(config=config, clock=clock) as old:
        client = WireClient(old.port, "client-1")
        client.send("orders")
        client.send("orders")  # the newest message of a queue is kept

        def is_gone() -> bool:
            clock.advance(500)
            return start_of(client) is None

        eventually(is_gone, "the first message has expired")
        client.close()


def test_without_new_groups_start_at_zero_the_setting_of_the_client_decides() -> None:
    with EmbeddedBroker(config=BrokerConfig(new_groups_start_at_zero=False)) as broker:
        client = WireClient(broker.port, "client-1")
        client.send("orders")
        assert start_of(client) is None
        assert start_of(client, True) == "0"
        client.close()


def test_a_committed_offset_is_kept_for_its_group_and_queue(client: WireClient) -> None:
    client.send_batch("orders", [b"x"] * 7)
    assert client.commit("group", "orders", 7).code == 0
    assert client.committed("group", "orders") == 7
    assert client.committed("group", "orders", 1) is None
    assert client.committed("other", "orders") is None


def test_a_query_after_a_oneway_commit_sees_it(client: WireClient) -> None:
    client.send_batch("orders", [b"x"] * 50)
    for offset in range(50):
        client.start_commit("group", "orders", offset, oneway=True)
    assert client.committed("group", "orders") == 49


def test_an_offset_may_go_backwards(client: WireClient) -> None:
    client.send_batch("orders", [b"x"] * 9)
    client.commit("group", "orders", 9)
    client.commit("group", "orders", 3)
    assert client.committed("group", "orders") == 3


def test_a_commit_of_an_invalid_offset_is_refused(client: WireClient) -> None:
    client.send("orders")
    assert client.commit("group", "missing", 1).code == ResponseCode.TOPIC_NOT_EXIST
    assert client.commit("group", "orders", -1).code == ResponseCode.INVALID_PARAMETER
    for offset in (1 << 63, 1 << 200):
        assert client.commit("group", "orders", offset).code != 0
    assert client.committed("group", "orders") is None


def test_a_commit_beyond_the_end_of_its_queue_is_refused(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    client.send_batch("orders", [b"x"] * 3)
    assert client.commit("group", "orders", 3).code == 0
    for queue_id, offset in ((0, 4), (0, 1_125_899_906_842_626), (1, 1), (1_000_000, 1)):
        answer = client.commit("group", "orders", offset, queue_id)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert f"offset {offset} of queue {queue_id}" in (answer.remark or "")
        assert "beyond its end" in (answer.remark or "")
    assert client.committed("group", "orders") == 3
    # One-way, as Java commits, and on a pull.
    client.start_commit("group", "orders", 4, oneway=True)
    assert client.pull("orders", 0, flag=1, commit_offset=4).code == 0
    assert client.committed("group", "orders") == 3
    assert broker.statistics.commits_refused == 6
    assert client.commit("group", "orders", 0, 1).code == 0


def test_a_seek_beyond_the_end_stores_the_end(client: WireClient) -> None:
    client.send_batch("orders", [b"x"] * 3)
    assert client.commit("group", "orders", 1_000, reset=True).code == 0
    assert client.committed("group", "orders") == 3


def test_a_commit_below_the_first_message_is_accepted() -> None:
    # Retention may have overtaken a slow consumer.
    clock = ManualClock()
    config = BrokerConfig(retention_ms=1_000, retention_interval_ms=100)
    with EmbeddedBroker(config=config, clock=clock) as broker, WireClient(broker.port) as client:
        client.send_batch("orders", [b"x"] * 5)
        clock.advance(2_000)
        deadline = time.monotonic() + 10
        while client.min_offset("orders") == 0:
            assert time.monotonic() < deadline
            clock.advance(100)
        assert client.commit("group", "orders", 1).code == 0
        assert client.committed("group", "orders") == 1


def test_a_commit_behind_a_reset_may_be_sent_again_if_the_broker_closes_meanwhile(
    broker: EmbeddedBroker,
    client: WireClient,
    stop_writing: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.send("orders")
    assert client.commit("group", "orders", 1).code == 0
    assert broker._server is not None
    group_commit, close = broker._server._context.store._group_commit, GroupCommit.close
    assert group_commit is not None
    # The reset is stored when the broker has begun to close: what waits for it finds no store.
    monkeypatch.setattr(GroupCommit, "close", lambda self: (self.go_on(), close(self))[1])
    group_commit.rest()
    where = {"group": "group", "topic": "orders", "timestamp": "0", "isForce": "true"}
    reset = client.start(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, where)
    commit = client.start_commit("group", "orders", 1)
    client.round_trip()
    stop_writing()
    assert client.wait(reset).code == 0
    assert client.wait(commit).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.statistics.internal_errors == 0
    assert "please report" not in caplog.text


def test_a_commit_of_the_current_epoch_is_accepted(client: WireClient) -> None:
    client.send_batch("orders", [b"x"] * 5)
    (epoch,) = epochs(client.lock("group", "orders", 0))
    answer = client.commit("group", "orders", 5, epoch=epoch, client_id=client.name)
    assert answer.code == 0
    assert client.committed("group", "orders") == 5


def test_a_commit_of_an_older_epoch_is_fenced_and_the_error_names_the_holder(
    connect: Connect, broker: EmbeddedBroker
) -> None:
    old, new = connect("old"), connect("new")
    old.send("orders")
    (old_epoch,) = epochs(old.lock("group", "orders", 0))
    old.unlock("group", "orders", 0)
    (new_epoch,) = epochs(new.lock("group", "orders", 0))
    answer = old.commit("group", "orders", 5, epoch=old_epoch, client_id="old")
    assert answer.code == ResponseCode.OMQ_FENCED
    assert f"new holds the queue in epoch {new_epoch}" in (answer.remark or "")
    assert new.committed("group", "orders") is None
    assert broker.statistics.commits_fenced == 1


def test_a_commit_after_the_lease_expired_is_fenced(client: WireClient, clock: ManualClock) -> None:
    client.send("orders")
    (epoch,) = epochs(client.lock("group", "orders", 0))
    clock.advance(60_001)
    answer = client.commit("group", "orders", 5, epoch=epoch, client_id=client.name)
    assert answer.code == ResponseCode.OMQ_FENCED


def test_the_right_epoch_from_another_client_is_fenced(connect: Connect) -> None:
    owner, other = connect("owner"), connect("other")
    owner.send("orders")
    (epoch,) = epochs(owner.lock("group", "orders", 0))
    answer = other.commit("group", "orders", 5, epoch=epoch, client_id="other")
    assert answer.code == ResponseCode.OMQ_FENCED


def test_a_client_without_epochs_commits_as_on_a_plain_broker(connect: Connect) -> None:
    owner, plain = connect("owner"), connect("plain")
    owner.send_batch("orders", [b"x"] * 5)
    owner.lock("group", "orders", 0)
    assert plain.commit("group", "orders", 5).code == 0


def test_maximum_and_minimum_of_a_queue(client: WireClient) -> None:
    for _ in range(3):
        client.send("orders")
    assert client.max_offset("orders") == 3
    assert client.max_offset("orders", 1) == 0
    assert client.min_offset("orders") == 0


def test_an_offset_is_found_by_time_with_both_boundaries(
    client: WireClient, clock: ManualClock
) -> None:
    start = clock.wall_ms()
    for _ in range(4):
        client.send("orders")
        client.send("orders")
        clock.advance(100)

    def search(after_ms: int, boundary: str = "") -> int:
        ext = {"topic": "orders", "queueId": "0", "timestamp": str(start + after_ms)}
        ext |= {"boundaryType": boundary} if boundary else {}
        return int(client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext["offset"])

    assert [search(at) for at in (-50, 0, 1, 100, 300, 301)] == [0, 0, 2, 2, 6, 8]
    assert [search(at, "upper") for at in (-50, 0, 99, 100, 999)] == [0, 1, 1, 3, 7]


def test_the_earliest_store_time(client: WireClient, clock: ManualClock) -> None:
    ext = {"topic": "orders", "queueId": "0"}
    client.send("orders", b"x", 1)
    answer = client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
    assert answer.ext["timestamp"] == "-1"
    client.send("orders")
    clock.advance(5)
    client.send("orders")
    answer = client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
    assert int(answer.ext["timestamp"]) == clock.wall_ms() - 5
