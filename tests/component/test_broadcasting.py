"""Every member of a broadcasting group gets every message, and keeps its own offsets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.errors import ConfigError, StateError
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.test_orderly_consumer import committed, send_all

MakeConsumer = Callable[..., PushConsumer]


@pytest.fixture
def make_member(make_consumer: MakeConsumer, tmp_path: Path) -> MakeConsumer:
    def make(listener: Any, name: str, **settings: Any) -> PushConsumer:
        return make_consumer(
            listener,
            message_model="broadcasting",
            instance_name=name,
            local_offset_store_dir=str(tmp_path / "offsets"),
            **settings,
        )

    return make


def stored_sum(folder: Path, name: str) -> int:
    file = OffsetFile(folder / "offsets" / f"127.0.0.1@{name}" / "g" / "offsets.json")
    file.close()
    return sum(file.offsets.values())


@pytest.mark.parametrize("concurrent", [False, True])
def test_every_member_gets_everything_and_goes_on_where_it_was(
    producer: Producer,
    broker: EmbeddedBroker,
    make_member: MakeConsumer,
    tmp_path: Path,
    concurrent: bool,
) -> None:
    send_all(producer, numbered(100))
    seen = {"a": Seen(), "b": Seen()}
    members = {name: make_member(seen[name].take, name, concurrent=concurrent) for name in seen}
    with members["a"], members["b"]:
        for name in seen:
            seen[name].wait_for_count(100)
        assert members["a"].assigned_queues() == members["b"].assigned_queues()
        assert len(members["a"].assigned_queues()) == 8  # and no retry topic's
        (told,) = members["a"]._live().parts._describe().consumers
        assert (told.message_model, len(told.subscriptions)) == ("BROADCASTING", 1)
    assert {name: stored_sum(tmp_path, name) for name in seen} == {"a": 100, "b": 100}
    send_all(producer, numbered(100, start=100))
    with make_member(seen["a"].take, "a", concurrent=concurrent):
        seen["a"].wait_for_count(200)
    if concurrent:
        got = Counter(int(body) for _, _, _, body in seen["a"].deliveries)
        assert got == Counter(range(200))
    else:
        assert_in_order(seen["a"], 200)
    assert len(seen["b"].deliveries) == 100
    assert committed(broker) == 0  # the broker keeps none of it


def test_what_fails_in_a_concurrent_broadcast_is_dropped_and_counted(
    producer: Producer, make_member: MakeConsumer, seen: Seen, tmp_path: Path
) -> None:
    send_all(producer, numbered(50))

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"17":
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    consumer = make_member(listen, "a", concurrent=True)
    with consumer:
        seen.wait_for_count(49)
        eventually(lambda: consumer.statistics["dropped"] == 1, "the failure is counted")
    assert stored_sum(tmp_path, "a") == 50
    assert consumer.statistics["sent_back"] == 0


def test_an_ordered_broadcast_tries_a_failed_message_again_before_any_other(
    producer: Producer, make_member: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(60))
    failed: set[bytes] = set()

    def listen(messages: Any, context: Any) -> None:
        body = bytes(messages[0].body)
        if body in (b"17", b"30") and body not in failed:
            failed.add(body)
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    with make_member(listen, "a", suspend_current_queue_time_ms=10):
        seen.wait_for_count(60)
    assert_in_order(seen, 60)
    assert len(failed) == 2


def test_an_error_of_ours_starts_a_broadcast_queue_again_where_it_was_committed(
    producer: Producer, make_member: MakeConsumer, seen: Seen
) -> None:
    send_all(producer, numbered(30, keys=1))
    consumer = make_member(seen.take, "a")
    with consumer:
        seen.wait_for_count(30)
        (assigned,) = [a for a in consumer._live()._rebalancer.assigned() if a.done_offset]
        eventually(lambda: assigned.committed_offset == 30, "the offset is written")
        assigned.abandon_batch("a test's own error")
        send_all(producer, numbered(30, keys=1, start=30))
        seen.wait_for_count(60)
    assert_in_order(seen, 60, keys=1)


def test_two_members_of_one_name_are_told_to_have_two(
    broker: EmbeddedBroker, producer: Producer, make_member: MakeConsumer, seen: Seen
) -> None:
    with (
        make_member(seen.take, "same"),
        pytest.raises(StateError, match="instance_name of its own"),
    ):
        make_member(seen.take, "same").start()


def test_a_history_is_not_for_broadcasting_members(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="history: not for broadcasting"):
        PushConsumer(
            "g",
            name_servers="127.0.0.1:1",
            message_model="broadcasting",
            history=tmp_path / "x.jsonl",
        )


def test_a_broadcasting_member_keeps_its_name_over_restarts() -> None:
    def name() -> str:
        return PushConsumer("g", name_servers="127.0.0.1:1", message_model="broadcasting").client_id

    assert name() == name() == "127.0.0.1@DEFAULT"


def test_a_member_whose_offset_file_cannot_be_written_closes_soon_and_says_so(
    producer: Producer,
    make_consumer: MakeConsumer,
    seen: Seen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = make_consumer(
        seen.take, message_model="broadcasting", local_offset_store_dir=str(tmp_path)
    )
    producer.send(Message("orders", b"0"), sharding_key="k")
    consumer.start()
    seen.wait_for_count(1)

    def fail(file: OffsetFile, offsets: object) -> None:
        raise OSError("a test's own full disk")

    monkeypatch.setattr(OffsetFile, "write", fail)
    producer.send(Message("orders", b"1"), sharding_key="k")
    seen.wait_for_count(2)
    # Well before the 30 s for which a broker would be waited for.
    closed = threading.Event()
    result: list[bool] = []

    def close() -> None:
        result.append(consumer.close())
        closed.set()

    threading.Thread(target=close, daemon=True).start()
    assert closed.wait(15)
    assert result == [False]
    told = [text for text in caplog.messages if "offset file cannot be written" in text]
    assert len(told) == 1
    assert "of 1 queues, as of orders@b/" in told[0]
