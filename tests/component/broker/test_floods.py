"""Floods and bombs over real sockets: each has a bound, and others are served meanwhile
(docs/embedded-broker.md#limits)."""

from __future__ import annotations

import threading
import tracemalloc
import zlib

import pytest

from ordermq.broker import EmbeddedBroker, long_polling
from ordermq.clock import ManualClock
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import SendHeader
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, batch_body, records
from tests.component.conftest import eventually

MIB = 1 << 20


def test_pulls_that_wait_are_bounded_by_connection(
    broker: EmbeddedBroker,
    connect: Connect,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_polling, "MAX_HELD_PER_CONNECTION", 100)
    greedy, other = connect("greedy"), connect("other")
    other.send("orders")
    started = [greedy.start_pull("orders", 1, suspend_ms=100_000_000) for _ in range(103)]
    answers = [greedy.wait(one) for one in started[100:]]
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY] * 3
    assert "expected at most 100" in (answers[0].remark or "")
    assert (broker.statistics.held_pulls, broker.statistics.pulls_refused) == (100, 3)
    waiting = other.start_pull("orders", 1, suspend_ms=100_000_000)
    assert not other.has_answer(waiting)
    other.send("orders", b"new")
    for one in [*started[:100]]:
        assert [m.body for m in records(greedy.wait(one).body)] == [b"new"]
    again = greedy.start_pull("orders", 2, suspend_ms=100_000_000)
    assert not greedy.has_answer(again)
    greedy.close()
    eventually(lambda: not broker.statistics.held_pulls, "its pulls have gone with it")


def test_a_message_for_very_many_waiting_pulls_of_one_queue_takes_no_longer_for_each(
    broker: EmbeddedBroker, connect: Connect
) -> None:
    count = long_polling.MAX_HELD_PER_CONNECTION
    greedy, other = connect("greedy"), connect("other")
    other.send("orders")
    pull = [Command.request(RequestCode.PULL_MESSAGE, {}) for _ in range(count)]
    model = greedy.start_pull("orders", 1, suspend_ms=100_000_000)
    for one in pull:
        one.ext = model.ext
    greedy.socket.sendall(b"".join(map(encode, pull[:-1])))
    eventually(lambda: broker.statistics.held_pulls == count, "all wait")
    other.send("orders", b"new")
    for one in pull[:-1]:
        assert greedy.wait(one).code == 0
    assert broker.statistics.held_pulls == 0


def test_a_client_that_sends_faster_than_the_store_writes_is_not_read_meanwhile(
    broker: EmbeddedBroker, connect: Connect
) -> None:
    server = broker._server
    assert server is not None
    group_commit = server._context.store._group_commit
    assert group_commit is not None
    flood, other = connect("flood"), connect("other")
    assert flood.send("orders").code == 0
    header = SendHeader("producers", "orders", 0).to_ext()
    requests = [Command.request(RequestCode.SEND_MESSAGE_V2, header, bytes(MIB)) for _ in range(96)]
    written = 0

    def write() -> None:
        nonlocal written
        for request in requests:
            flood.socket.sendall(encode(request))
            written += 1

    flood.socket.settimeout(60)
    writer = threading.Thread(target=write)
    group_commit.rest()  # the disk hangs
    try:
        writer.start()
        eventually(lambda: broker.statistics.floods_held == 1, "it is not read any more")
        # Others are served, as far as they need no disk.
        assert other.call(RequestCode.GET_ALL_TOPIC_CONFIG).code == 0
        assert 32 * MIB < server._limits.unstored_bytes < 34 * MIB
        assert written < len(requests)
    finally:
        group_commit.go_on()
    writer.join(60)
    assert written == len(requests)
    assert {flood.wait(request).code for request in requests} == {0}
    assert other.max_offset("orders") == len(requests) + 1
    assert server._limits.unstored_bytes == 0


def test_a_compressed_body_is_stored_as_it_came(client: WireClient) -> None:
    bomb = zlib.compress(bytes(64 * MIB), 9)
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        assert client.send("orders", bomb, sys_flag=1).code == 0
        assert records(client.pull("orders", 0).body)[0].body == bomb
        # As a batch it is refused: its bytes are no messages.
        header = SendHeader("producers", "orders", 0, sys_flag=1, batch=True)
        answer = client.call(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), bomb)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_a_batch_of_very_many_empty_messages_keeps_nobody_waiting_for_long(
    client: WireClient, connect: Connect
) -> None:
    other = connect("other")
    body = batch_body([b""] * 100_000)
    header = SendHeader("producers", "orders", 0, batch=True).to_ext()
    started = client.start(RequestCode.SEND_BATCH_MESSAGE, header, body)
    other.round_trip()
    assert client.wait(started).code == 0
    assert other.max_offset("orders") == 100_000
