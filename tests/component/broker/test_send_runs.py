"""Sends that arrive together: stored and answered as one by one
(docs/internals/protocol.md#sending)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.processors.send_runs import no_run
from ordermq.broker.store import Write
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.signing import Credentials
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient, batch_body, records

PLAIN = SendHeader("producers", "orders", 0, 0, 5, 7)


def request(header: SendHeader = PLAIN, body: bytes = b"x", **properties: str) -> Command:
    header = replace(header, properties=props.encode(properties))
    code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
    return Command.request(code, header.to_ext(), body)


def with_id(number: int, header: SendHeader = PLAIN) -> Command:
    unique_id = f"7F0000010001{number:0>20}"
    return request(header, b"%d" % number, UNIQ_KEY=unique_id, TAGS="t")


def without(sent: Command, name: str) -> Command:
    sent.ext = {key: value for key, value in sent.ext.items() if key != name}
    return sent


def oneway(sent: Command) -> Command:
    sent.flag = ONEWAY_FLAG
    return sent


def of_queue(number: int) -> SendHeader:
    return replace(PLAIN, queue_id=number)


def every_kind() -> list[Command]:
    """Plain sends to several queues, and between them one of everything that is not plain."""
    others = [
        with_id(1),  # a copy of the first one, which is not durable yet
        oneway(with_id(50)),
        request(replace(PLAIN, batch=True), batch_body([b"b1", b"b2"], b"TAGS\x01t\x02")),
        request(DELAY="2"),
        request(TIMER_DELAY_MS="50000"),
        request(TRAN_MSG="true", UNIQ_KEY="half"),
        request(PROPERTY_MESSAGE_REPLY_TO_CLIENT="me"),
        # The group is ordered, so they are dead letters; the first one only makes the topic.
        *(with_id(1, replace(PLAIN, topic="%RETRY%group")) for _ in range(3)),
        request(replace(PLAIN, topic="new topic?")),
        request(replace(PLAIN, topic="made by a send")),
        request(replace(PLAIN, topic="made_by_a_send")),
        request(replace(PLAIN, topic="TBW102")),
        request(replace(PLAIN, reconsume_times=3)),
        request(replace(PLAIN, max_reconsume_times=3)),
        request(of_queue(77)),
        request(replace(PLAIN, born_timestamp_ms=1 << 70)),
        request(replace(PLAIN, flag=1 << 40)),
        without(request(), "a"),
        without(request(), "e"),
        without(request(), "h"),
        request(body=b"x" * 2_000),
        request(long="y" * 33_000),
        request(),  # without an id
        Command.request(RequestCode.GET_BROKER_CLUSTER_INFO),
        Command.request(12_345),
    ]
    found = []
    for number, other in enumerate(others):
        for queue in (0, 1, 0):
            found.append(with_id(100 * number + len(found), of_queue(queue)))
        found.append(other)
    return [with_id(1), *found, with_id(9_999)]


def answers(client: WireClient, sent: list[Command]) -> list[tuple[object, ...] | None]:
    """Code, remark and fields of the answer to each; the parts that tell addresses are left out."""
    client.round_trip()
    found: list[tuple[object, ...] | None] = []
    for one in sent:
        if one.is_oneway:
            assert not client.has_answer(one)
            found.append(None)
            continue
        answer = client.wait(one)
        ext = dict(answer.ext)
        if "msgId" in ext:
            ext["msgId"] = ",".join(each[16:] for each in ext["msgId"].split(","))
        found.append((answer.code, answer.remark, ext))
    return found


def stored(client: WireClient) -> list[tuple[object, ...]]:
    found = []
    for topic, queues in (
        ("orders", 2),
        ("made_by_a_send", 1),
        ("%RETRY%group", 1),
        ("%DLQ%group", 1),
    ):
        for queue in range(queues):
            body = client.pull(topic, 0, queue, count=1_000, tags="t || *").body
            found += [
                (topic, m.queue_id, m.queue_offset, m.physical_offset, m.body, m.properties, m.flag,
                 m.sys_flag, m.born_ms, m.stored_ms, m.reconsume_times)
                for m in records(body)
            ]  # fmt: skip
    return found


def test_sends_that_come_together_are_stored_and_answered_as_one_by_one(tmp_path: Path) -> None:
    results = []
    for is_together in (True, False):
        path = tmp_path / f"{is_together}.db"
        config = BrokerConfig(max_message_bytes=1_500, durability="os")
        with (
            EmbeddedBroker(path, config=config, clock=ManualClock()) as broker,
            WireClient(broker.port) as client,
        ):
            client.create_topic("orders", 2)
            assert client.lock("group", "orders", 0).code == 0
            sent = every_kind()
            if is_together:
                client.socket.sendall(b"".join(map(encode, sent)))
            else:
                assert broker._server is not None
                broker._server._send_runs = no_run
                for one in sent:
                    client.socket.sendall(encode(one))
                    client.round_trip()
            statistics = broker.statistics
            results.append((
                answers(client, sent), stored(client), statistics.messages_stored,
                statistics.copies_dropped, statistics.requests_failed,
            ))  # fmt: skip
    together, single = results
    assert together[0] == single[0]
    assert together[1:] == single[1:]
    assert len(single[1]) > 70
    assert {answer[0] for answer in single[0] if answer} == {0, 1, 3, 13, 29}


def test_plain_sends_that_come_together_are_one_write(
    client: WireClient, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("orders", 8)
    assert broker._server is not None
    store = broker._server._context.store
    writes: list[Write] = []
    submit = store.submit
    monkeypatch.setattr(store, "submit", lambda write: (writes.append(write), submit(write)))
    sent = [with_id(number, of_queue(number % 8)) for number in range(64)]
    client.socket.sendall(b"".join(map(encode, sent)))
    for number, one in enumerate(sent):
        assert int(client.wait(one).ext["queueOffset"]) == number // 8
    # The kernel may give the bytes in two reads.
    assert len(writes) <= 4
    assert sum(len(append.records) for write in writes for append in write.appends) == 64
    assert broker.statistics.messages_stored == 64


def test_offsets_of_copies_are_those_of_the_first_whoever_sends_between(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    client.create_topic("orders", 1)
    for number in (3, 2, 1):  # ids that fall: from here on they are kept by offset
        assert client.wait(start(client, with_id(number))).code == 0
    other = replace(PLAIN, producer_group="others")
    # One queue, two kinds of headers.
    sent = [with_id(number, other if number % 3 else PLAIN) for number in range(10, 30)]
    client.socket.sendall(b"".join(map(encode, sent)))
    offsets = [client.wait(one).ext["queueOffset"] for one in sent]
    assert offsets == [str(number) for number in range(3, 23)]
    again = [with_id(number) for number in range(10, 30)]
    client.socket.sendall(b"".join(map(encode, again)))
    assert [client.wait(one).ext["queueOffset"] for one in again] == offsets
    assert broker.statistics.copies_dropped == 20
    assert broker.statistics.messages_stored == 23


def start(client: WireClient, sent: Command) -> Command:
    client.socket.sendall(encode(sent))
    return sent


def test_sends_that_could_not_be_stored_are_all_refused_and_can_be_sent_again(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "broker.db") as broker, WireClient(broker.port) as client:
        client.create_topic("orders", 2)
        broker.limit_file_size(1)
        refused = [with_id(number, of_queue(number % 2)) for number in range(20)]
        client.socket.sendall(b"".join(map(encode, refused)))
        for one in refused:
            answer = client.wait(one)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "could not write" in (answer.remark or "")
        broker.lift_limit()
        again = [with_id(number, of_queue(number % 2)) for number in range(20)]
        client.socket.sendall(b"".join(map(encode, again)))
        offsets = [int(client.wait(one).ext["queueOffset"]) for one in again]
        assert offsets == [number // 2 for number in range(20)]


def test_sends_that_come_together_while_the_broker_closes_may_be_sent_again(
    client: WireClient, stop_writing: Callable[[], None]
) -> None:
    client.create_topic("orders", 1)
    stop_writing()
    sent = [with_id(number) for number in range(3)]
    client.socket.sendall(b"".join(map(encode, sent)))
    for one in sent:
        assert client.wait(one).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_each_of_the_sends_that_come_together_needs_its_own_signature() -> None:
    config = BrokerConfig(accounts={"shop": "the secret"})
    with EmbeddedBroker(config=config) as broker, WireClient(broker.port) as client:
        sent = [with_id(number) for number in range(9)]
        for one in sent[::3]:
            Credentials("shop", "the secret").sign(one)
        client.socket.sendall(b"".join(map(encode, sent)))
        codes = [client.wait(one).code for one in sent]
        assert codes == [0, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION] * 3
        assert broker.statistics.messages_stored == 3
