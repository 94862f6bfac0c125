"""Answers of a member to an admin tool that asks it through the broker
(docs/internals/protocol.md#requests-to-consumers)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from ordermq import (
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendReceipt,
    __version__,
)
from ordermq.broker import EmbeddedBroker
from ordermq.consumer.pop.transport import RemotingPop
from ordermq.remoting.bodies import queue_table_from_body, queue_table_to_json
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient, queue_table
from tests.component.conftest import Seen, eventually
from tests.waiting import killed_on_error


@pytest.fixture
def tool(broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(broker.port) as client:
        yield client


def send(producer: Producer, count: int) -> dict[MessageQueue, int]:
    """Send that many of one key; the queue it went to and its next offset."""
    receipts = [
        producer.send(Message("orders", str(n).encode()), sharding_key="k") for n in range(count)
    ]
    return {receipts[-1].message_queue: receipts[-1].queue_offset + 1}


def ask(consumer: PushConsumer, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """The member's answer to a request that only RocketMQ's own brokers send."""
    member = consumer._live()

    async def work() -> Command | None:
        answer = member.parts._on_request("", Command.request(code, ext, body))
        assert not isinstance(answer, asyncio.Task)
        return answer

    answer = member._runtime.call(work())
    assert answer is not None
    return answer


def test_a_member_tells_what_it_holds_and_how_far_it_is(
    producer: Producer, tool: WireClient, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    [(queue, end)] = send(producer, 20).items()
    with make_consumer(seen.take, tags="*") as consumer:
        seen.wait_for_count(20)
        ext = {"consumerGroup": "g", "clientId": consumer.client_id, "jstackEnable": "true"}

        def told() -> dict[str, Any]:
            answer = tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert answer.code == 0, answer.remark
            return queue_table(answer.body)

        def of_queue() -> dict[str, Any]:
            name = f'{{"brokerName":"b","queueId":{queue.queue_id},"topic":"orders"}}'
            found: dict[str, Any] = told()["mqTable"][name]
            return found

        eventually(lambda: of_queue()["commitOffset"] == end, "all is committed")
        info, row = told(), of_queue()
        status = ask(
            consumer,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            {"group": "g", "topic": "orders"},
        )
    assert row["locked"] is True
    assert row["droped"] is False
    assert (row["cachedMsgCount"], row["transactionMsgCount"]) == (0, 0)
    started_ms = int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"])
    assert started_ms <= row["lastConsumeTimestamp"] <= row["lastLockTimestamp"]
    assert started_ms <= row["lastPullTimestamp"]
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "true"
    assert info["userConsumerInfo"]["messages_done"] == "20"
    assert {item["topic"] for item in info["subscriptionSet"]} >= {"orders"}
    assert "MainThread" in info["jstack"]
    table = queue_table_from_body(status.body, "messageQueueTable")
    assert table[queue] == end
    assert len(table) == 8


def test_what_a_listener_holds_is_told_while_it_runs(
    producer: Producer, tool: WireClient, make_consumer: Callable[..., PushConsumer]
) -> None:
    [(queue, _)] = send(producer, 5).items()
    entered, leave = threading.Event(), threading.Event()

    def listen(messages: object, context: object) -> None:
        entered.set()
        leave.wait(20.0)

    with make_consumer(listen, consume_message_batch_max_size=2) as consumer:
        assert entered.wait(20.0)
        ext = {"consumerGroup": "g", "clientId": consumer.client_id}

        def row() -> dict[str, Any]:
            answer = tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            table: dict[str, dict[str, Any]] = queue_table(answer.body)["mqTable"]
            return next(r for q, r in table.items() if f'"queueId":{queue.queue_id},' in q)

        eventually(lambda: row()["cachedMsgCount"] == 5, "all of them are buffered")
        found = row()
        assert found["tryUnlockTimes"] == 0
        info = queue_table(tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext).body)
        assert info["userConsumerInfo"]["behind"] == "5"
        consumer.pause(queue, release=True)
        eventually(lambda: row()["tryUnlockTimes"] == 1, "its listener still runs")
        leave.set()
    assert found["transactionMsgMinOffset"] == found["cachedMsgMinOffset"] == 0
    assert found["cachedMsgMaxOffset"] == 4
    assert found["transactionMsgCount"] >= 1
    assert found["commitOffset"] == 0


RESULTS: dict[bytes, Any] = {
    b"none": None,
    b"success": ConsumeResult.SUCCESS,
    b"commit": ConsumeResult.COMMIT,
    b"rollback": ConsumeResult.ROLLBACK,
    b"suspend": ConsumeResult.SUSPEND,
    b"odd": "odd",
}


def ask_directly(
    tool: WireClient, consumer: PushConsumer, receipt: SendReceipt
) -> tuple[int, dict[str, Any], str]:
    """Ask a member to consume a stored message: (code, body, remark)."""
    ext = {
        "consumerGroup": "g",
        "clientId": consumer.client_id,
        "msgId": receipt.offset_message_id,
    }
    answer = tool.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    return answer.code, json.loads(answer.body) if answer.body else {}, str(answer.remark)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("plain", {}),
        ("async", {}),
        ("plain", {"auto_commit": False}),
        ("plain", {"order_by_key": True}),
        ("async", {"order_by_key": True}),
    ],
)
def test_an_ordered_member_consumes_a_message_directly_and_commits_nothing_by_it(
    producer: Producer,
    tool: WireClient,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
    kind: str,
    settings: dict[str, bool],
) -> None:
    asked = threading.Event()

    def listen(messages: Any, context: Any) -> Any:
        was_asked = asked.is_set()  # before the test hears of this delivery
        seen.take(messages, context)
        body = bytes(messages[0].body)
        if not was_asked:
            return ConsumeResult.COMMIT
        if body == b"bad":
            raise ValueError("a test's own failure")
        return RESULTS[body]

    async def listen_async(messages: Any, context: Any) -> Any:
        return listen(messages, context)

    receipts = {
        body: producer.send(Message("orders", body), sharding_key="k")
        for body in [*RESULTS, b"bad"]
    }
    listener = listen if kind == "plain" else listen_async
    with make_consumer(listener, **settings) as consumer:
        seen.wait_for_count(len(receipts))
        assigned = consumer._live().control.find(receipts[b"none"].message_queue)
        eventually(lambda: assigned.committed_offset == len(receipts), "all is committed")
        asked.set()
        found = {}
        for body, receipt in receipts.items():
            code, told, remark = ask_directly(tool, consumer, receipt)
            assert code == ResponseCode.SUCCESS, remark
            assert told["order"] is True
            assert told["autoCommit"] is settings.get("auto_commit", True)
            assert told["spentTimeMills"] >= 0
            found[body] = told["consumeResult"], told["remark"]
        assert assigned.committed_offset == assigned.done_offset == len(receipts)
        assert assigned.attempts == {}, "it is no delivery: nothing comes again"
        asked.clear()
        producer.send(Message("orders", b"next"), sharding_key="k")
        seen.wait_for_count(2 * len(receipts) + 1)
    odd = found.pop(b"odd")
    assert odd[0] == "CR_LATER"
    assert "expected None" in odd[1]
    assert found == {
        b"none": ("CR_SUCCESS", None),
        b"success": ("CR_SUCCESS", None),
        b"commit": ("CR_COMMIT", None),
        b"rollback": ("CR_ROLLBACK", None),
        b"suspend": ("CR_LATER", None),
        b"bad": ("CR_THROW_EXCEPTION", "ValueError: a test's own failure"),
    }
    assert [body for *_, body in seen.deliveries] == [*receipts, *receipts, b"next"]


@pytest.mark.parametrize("by_key", [False, True])
def test_a_message_is_consumed_directly_between_two_batches_of_its_queue(
    producer: Producer,
    tool: WireClient,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
    by_key: bool,
) -> None:
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)
    inside: list[bytes] = []
    beside: list[bytes] = []

    def listen(messages: Any, context: Any) -> None:
        beside.extend(inside)
        inside.append(bytes(messages[0].body))
        entered.release()
        go_on.acquire(timeout=20.0)
        inside.pop()
        seen.take(messages, context)

    receipts = [
        producer.send(Message("orders", body), sharding_key="k") for body in (b"first", b"second")
    ]
    with make_consumer(listen, order_by_key=by_key) as consumer:
        assert entered.acquire(timeout=20.0)
        assigned = consumer._live().control.find(receipts[0].message_queue)
        ext = {
            "consumerGroup": "g",
            "clientId": consumer.client_id,
            "msgId": receipts[1].offset_message_id,
        }
        request = tool.start(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        eventually(lambda: assigned.is_paused, "it waits for the first message's call")
        assert inside == [b"first"]
        go_on.release()
        assert entered.acquire(timeout=20.0)
        # Its own turn comes after the call that was asked for.
        eventually(lambda: assigned.done_offset == 1, "the first is done")
        assert inside == [b"second"]
        assert assigned.done_offset == 1
        go_on.release()
        answer = tool.wait(request)
        assert json.loads(answer.body)["consumeResult"] == "CR_SUCCESS", answer.remark
        assert entered.acquire(timeout=20.0)
        go_on.release()
        seen.wait_for_count(3)
    assert beside == []
    assert [body for *_, body in seen.deliveries] == [b"first", b"second", b"second"]


def test_a_message_is_consumed_directly_while_a_popped_batch_is_acknowledged(
    producer: Producer,
    tool: WireClient,
    make_consumer: Callable[..., PushConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch cannot end before the call, whose result the I/O thread has to take."""
    entered, go_on, called = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    bodies: list[bytes] = []
    acknowledge = RemotingPop.acknowledge

    async def late(self: RemotingPop, batch: Any, end: int) -> None:
        while not called.is_set():
            await asyncio.sleep(0.01)
        await acknowledge(self, batch, end)

    def listen(messages: Any, context: Any) -> None:
        bodies.append(bytes(messages[0].body))
        if len(bodies) == 2:
            called.set()
        entered.release()
        go_on.acquire(timeout=20.0)

    monkeypatch.setattr(RemotingPop, "acknowledge", late)
    receipt = producer.send(Message("orders", b"first"), sharding_key="k")
    with make_consumer(listen, consume_mode="pop", pop_poll_ms=200) as consumer:
        assert entered.acquire(timeout=20.0)
        assigned = consumer._live().control.find(receipt.message_queue)
        ext = {
            "consumerGroup": "g",
            "clientId": consumer.client_id,
            "msgId": receipt.offset_message_id,
        }
        request = tool.start(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        eventually(lambda: assigned.is_paused, "it waits for the batch")
        go_on.release()
        assert entered.acquire(timeout=20.0)
        eventually(lambda: assigned.committed_offset == 1, "the batch is acknowledged")
        go_on.release()
        answer = tool.wait(request)
        assert json.loads(answer.body)["consumeResult"] == "CR_SUCCESS", answer.remark
        producer.send(Message("orders", b"next"), sharding_key="k")
        assert entered.acquire(timeout=20.0)
        go_on.release()
    assert bodies == [b"first", b"first", b"next"]


def test_a_message_of_a_queue_that_is_not_held_is_not_consumed_directly(
    producer: Producer, tool: WireClient, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    receipt = producer.send(Message("orders", b"x"), sharding_key="k")
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(1)
        consumer.pause(receipt.message_queue, release=True)
        find = consumer._live()._rebalancer.find
        eventually(lambda: find(receipt.message_queue) is None, "released and let go")
        code, _, remark = ask_directly(tool, consumer, receipt)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "this member does not hold the queue" in remark
    assert f"queue_id={receipt.message_queue.queue_id}" in remark.replace(" ", "")
    assert len(seen.deliveries) == 1


def test_a_paused_queue_stays_paused_after_a_message_was_consumed_directly(
    producer: Producer, tool: WireClient, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    receipt = producer.send(Message("orders", b"x"), sharding_key="k")
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(1)
        consumer.pause(receipt.message_queue)
        code, told, remark = ask_directly(tool, consumer, receipt)
        assert code == ResponseCode.SUCCESS, remark
        assert told["consumeResult"] == "CR_SUCCESS"
        assigned = consumer._live().control.find(receipt.message_queue)
        assert assigned.is_paused
        assert not assigned.is_running
        consumer.resume(receipt.message_queue)
        producer.send(Message("orders", b"y"), sharding_key="k")
        seen.wait_for_count(3)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_concurrent_member_consumes_a_message_directly_and_tells_what_came_of_it(
    producer: Producer,
    tool: WireClient,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
    kind: str,
) -> None:
    receipts = [
        producer.send(Message("orders", body), sharding_key="k")
        for body in (b"good", b"later", b"bad", b"odd")
    ]
    asked = threading.Event()

    def listen(messages: Any, context: Any) -> Any:
        was_asked = asked.is_set()  # before the test hears of this delivery
        seen.take(messages, context)
        body = bytes(messages[0].body)
        if not was_asked:
            return None
        if body == b"bad":
            raise ValueError("a test's own failure")
        return {b"good": None, b"later": ConsumeResult.SUSPEND, b"odd": "odd"}[body]

    async def listen_async(messages: Any, context: Any) -> Any:
        return listen(messages, context)

    listener = listen if kind == "plain" else listen_async
    with make_consumer(listener, concurrent=True) as consumer:
        seen.wait_for_count(4)
        asked.set()

        def directly(receipt: SendReceipt) -> tuple[str, str | None]:
            code, told, remark = ask_directly(tool, consumer, receipt)
            assert code == 0, remark
            assert (told["order"], told["autoCommit"]) == (False, True)
            return told["consumeResult"], told["remark"]

        good, later, bad, odd = (directly(receipt) for receipt in receipts)
        sent_back = consumer.statistics["sent_back"]
    assert good == ("CR_SUCCESS", None)
    assert later == ("CR_LATER", None)
    assert bad == ("CR_THROW_EXCEPTION", "ValueError: a test's own failure")
    assert odd[0] == "CR_LATER"
    assert "expected None" in str(odd[1])
    assert sent_back == 0, "it is no delivery: nothing comes again"
    assert [body for _, _, _, body in seen.deliveries[4:]] == [b"good", b"later", b"bad", b"odd"]


def test_bytes_that_are_no_message_are_not_consumed_directly(
    seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    with make_consumer(seen.take, concurrent=True) as consumer:
        member = consumer._live()

        async def work() -> Command:
            request = Command.request(
                RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, b"torn"
            )
            answer = member.parts._on_request("", request)
            assert isinstance(answer, asyncio.Task)
            return await answer

        answer = member._runtime.call(work())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "truncated" in str(answer.remark)


@pytest.mark.parametrize("form", ["Java", "C++"])
def test_a_reset_moves_a_busy_queue_back_after_its_listener(
    form: str, producer: Producer, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    [(queue, end)] = send(producer, 10).items()
    busy, go_on = threading.Event(), threading.Event()

    def listen(messages: Any, context: Any) -> None:
        seen.take(messages, context)
        if messages[-1].queue_offset == end - 1:
            busy.set()
            go_on.wait(20.0)

    with make_consumer(listen, broker_suspend_ms=100) as consumer:
        assert busy.wait(20.0)
        if form == "Java":
            body = b'{"offsetTable":' + queue_table_to_json({queue: 5}) + b"}"
        else:
            body = (
                b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":%d,"topic":"orders"}]}'
                % queue.queue_id
            )
        ext = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"}
        answer = ask(consumer, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
        assert answer.code == ResponseCode.SUCCESS
        go_on.set()
        seen.wait_for_count(15)
        producer.send(Message("orders", b"new"), sharding_key="k")
        seen.wait_for_count(16)
    assert [offset for _, offset, _, _ in seen.deliveries] == [*range(10), *range(5, 11)]


def test_a_reset_leaves_a_pause_of_the_user_as_it_is(
    producer: Producer, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    [(queue, _)] = send(producer, 10).items()
    with make_consumer(seen.take, broker_suspend_ms=100) as consumer:
        seen.wait_for_count(10)
        consumer.pause(queue)
        body = b'{"offsetTable":' + queue_table_to_json({queue: 0}) + b"}"
        ext = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"}
        ask(consumer, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
        assigned = consumer._live().control.find(queue)
        eventually(lambda: assigned.process_queue.message_count == 10, "pulled again")
        assert assigned.is_paused
        assert len(seen.deliveries) == 10
        consumer.resume(queue)
        seen.wait_for_count(20)


def test_a_question_to_another_group_or_without_sense_is_refused(
    producer: Producer, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    send(producer, 1)
    with make_consumer(seen.take) as consumer:
        wrong = ask(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "other"})
        assert wrong.code == ResponseCode.SYSTEM_ERROR
        assert "member of 'g' only" in str(wrong.remark)
        for body in (b"", b"{}", b'{"offsetTable":7}', b'{"offsetTable":{"x":1}}', b"{{}:1}"):
            garbled = ask(consumer, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "g"}, body)
            assert garbled.code == ResponseCode.SYSTEM_ERROR, body


def test_a_reset_moves_a_broadcasting_member_alone(
    producer: Producer,
    seen: Seen,
    make_consumer: Callable[..., PushConsumer],
    tmp_path: Path,
) -> None:
    [(queue, _)] = send(producer, 10).items()
    broadcasting = {
        "message_model": "broadcasting",
        "local_offset_store_dir": str(tmp_path / "offsets"),
        "broker_suspend_ms": 100,
    }
    with make_consumer(seen.take, **broadcasting) as consumer:
        seen.wait_for_count(10)
        body = b'{"offsetTable":' + queue_table_to_json({queue: 4}) + b"}"
        ext = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"}
        ask(consumer, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
        seen.wait_for_count(16)
    assert [offset for _, offset, _, _ in seen.deliveries] == [*range(10), *range(4, 10)]


MEMBER = """
import sys
from ordermq import PushConsumer

consumer = PushConsumer("g", name_servers=sys.argv[1], consume_from_where="first_offset")
consumer.subscribe("orders")
consumer.orderly(lambda messages, context: print(consumer.client_id, flush=True))
with consumer:
    input()
    print(*sorted(sys.modules), flush=True)
"""


def test_an_answer_loads_no_module_that_would_hold_up_locks_and_pulls(
    broker: EmbeddedBroker, producer: Producer, tool: WireClient
) -> None:
    send(producer, 1)
    command = [sys.executable, "-c", MEMBER, f"127.0.0.1:{broker.port}"]
    started = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)
    with killed_on_error(started) as member:
        assert member.stdin is not None
        assert member.stdout is not None
        client_id = member.stdout.readline().strip()
        ext = {"consumerGroup": "g", "clientId": client_id}
        answer = tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        member.stdin.write("\n")
        member.stdin.close()
        loaded = set(member.stdout.read().split())
    told = queue_table(answer.body)["properties"]["PROP_CLIENT_VERSION"]
    assert told == f"ordermq {__version__}"
    # importlib.metadata brings mail and archives along: 40 ms on the I/O thread as a member joins.
    assert not loaded & {"importlib.metadata", "email", "zipfile", "tempfile", "csv"}
