"""Bad input: a clear error, the broker goes on, nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, Serialization, encode
from ordermq.remoting.headers import SendHeader
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient, records

SEED = int(os.environ.get("ORDERMQ_TEST_SEED", "20261121"))


@pytest.fixture
def bad_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker with one acknowledged message, which must still be there after the test."""
    config = BrokerConfig(durability="os", max_frame_bytes=100_000)
    with EmbeddedBroker(tmp_path / "broker.db", config=config) as broker:
        with WireClient(broker.port) as client:
            client.send("orders", b"acknowledged")
        yield broker
        assert_is_well(broker)


@pytest.fixture
def client(bad_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(bad_broker.port) as client:
        yield client


def assert_is_well(broker: EmbeddedBroker) -> None:
    with WireClient(broker.port) as client:
        assert records(client.pull("orders", 0).body)[0].body == b"acknowledged"
        assert client.send("after").code == 0


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    mark = kind << 24 | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), mark) + header + body


GOOD = frame(b'{"code":106,"opaque":1,"flag":0}')
UNREADABLE = {
    "oversized": struct.pack(">iI", 1 << 30, 10) + b"x" * 100,
    "just over the limit": struct.pack(">iI", 100_000, 10),
    "negative length": struct.pack(">iI", -1, 10),
    "zero length": struct.pack(">iI", 0, 0),
    "header longer than the frame": struct.pack(">iI", 10, 100) + b"x" * 10,
    "unknown serialization": frame(b"{}", kind=7),
    "no JSON": frame(b"hello, broker"),
    "JSON cut off": frame(b'{"code":106,"opaque"'),
    "a JSON list": frame(b"[1,2,3]"),
    "an empty header": frame(b""),
    "no code": frame(b"{}"),
    "a code that is a text": frame(b'{"code":"x"}'),
    "fields that are a list": frame(b'{"code":106,"extFields":[1]}'),
    "a field that is an object": frame(b'{"code":106,"extFields":{"a":{}}}'),
    "bad UTF-8": frame(b'{"code":106,"remark":"\xff\xfe"}'),
    "a lone surrogate": frame(b'{"code":106,"remark":"\\ud800"}'),
    "deep nesting": frame(b"[" * 50_000),
    "a binary header cut off": frame(b"\x00\x0a\x03", kind=1),
    "a binary text that is too long": frame(
        struct.pack(">hBhiii", 10, 3, 479, 1, 0, 9999) + b"x", kind=1
    ),
    "a binary text of bad UTF-8": frame(
        struct.pack(">hBhiii", 10, 3, 479, 1, 0, 2) + b"\xff\xff" + struct.pack(">i", 0), kind=1
    ),
    "a web browser": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_malformed_frame_closes_its_connection_only(
    bad_broker: EmbeddedBroker, client: WireClient, data: bytes
) -> None:
    with WireClient(bad_broker.port) as bystander:
        waiting = bystander.start_pull("orders", 1, suspend_ms=20_000)
        client.socket.sendall(data)
        assert client.is_closed()
        assert bad_broker.statistics.frames_refused == 1
        bystander.send("orders")
        assert bystander.wait(waiting).code == 0


def test_a_request_before_a_malformed_frame_is_handled(
    bad_broker: EmbeddedBroker, client: WireClient
) -> None:
    header = SendHeader("producers", "orders", 0, properties="TAGS\1t\2")
    good = encode(Command.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"kept"))
    client.socket.sendall(good + UNREADABLE["a web browser"])
    assert client.is_closed()
    with WireClient(bad_broker.port) as reader:
        answer = reader.wait(reader.start_pull("orders", 1, suspend_ms=20_000))
        assert [record.body for record in records(answer.body)] == [b"kept"]


def test_random_bytes_never_stop_the_broker(bad_broker: EmbeddedBroker) -> None:
    chance = random.Random(SEED)
    for _ in range(200):
        with WireClient(bad_broker.port) as client:
            client.socket.sendall(chance.randbytes(chance.randrange(1, 400)))
    assert_is_well(bad_broker)


def test_flipped_bits_of_good_frames_never_stop_the_broker(bad_broker: EmbeddedBroker) -> None:
    chance = random.Random(SEED)
    ext = SendHeader("producers", "orders", 0, properties="TAGS\1t\2").to_ext()
    frames = []
    for kind in Serialization:
        for code in (310, 320, 11, 14, 15, 34, 35, 36, 38, 41, 42, 105, 17, 215, 200, 400):
            request = Command.request(code, ext, b'{"clientId":"c","mqSet":[{"topic":1}]}')
            request.serialization = kind
            frames.append(encode(request))
    for _ in range(600):
        damaged = bytearray(chance.choice(frames))
        for _ in range(chance.randrange(1, 6)):
            # The two length words are left alone, or most frames would only be awaited.
            damaged[chance.randrange(8, len(damaged))] ^= 1 << chance.randrange(8)
        with WireClient(bad_broker.port) as client:
            client.socket.sendall(damaged)
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(65_536):
                pass
    with WireClient(bad_broker.port) as client:
        assert client.send("after").code == 0


def test_a_frame_cut_off_by_a_disconnect_changes_nothing(bad_broker: EmbeddedBroker) -> None:
    whole = encode(
        Command.request(
            RequestCode.SEND_MESSAGE_V2, SendHeader("p", "orders", 0).to_ext(), b"x" * 500
        )
    )
    for size in range(1, len(whole), 37):
        with WireClient(bad_broker.port) as client:
            client.socket.sendall(whole[:size])
    with WireClient(bad_broker.port) as client:
        assert client.max_offset("orders") == 1


def test_a_frame_may_arrive_byte_by_byte(client: WireClient) -> None:
    request = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    for byte in encode(request):
        client.socket.sendall(bytes((byte,)))
    assert client.wait(request).code == 0


@pytest.mark.parametrize("code", [0, -1, 39, 999, 32_767, 200_049, 2_147_483_647])
def test_an_unknown_request_is_answered_and_the_connection_stays(
    client: WireClient, code: int
) -> None:
    answer = client.call(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported"
    assert client.send("orders").code == 0


def test_an_unknown_oneway_request_is_not_answered(client: WireClient) -> None:
    request = client.start(999, flag=ONEWAY_FLAG)
    assert not client.has_answer(request)


def test_a_response_without_a_request_is_ignored(client: WireClient) -> None:
    client.start(0, flag=1)
    assert client.send("orders").code == 0


def test_missing_and_invalid_fields_are_named(client: WireClient) -> None:
    good = SendHeader("producers", "orders", 0).to_ext()
    for name in ("a", "b", "e"):
        ext = {key: value for key, value in good.items() if key != name}
        answer = client.call(RequestCode.SEND_MESSAGE_V2, ext, b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert repr(name) in (answer.remark or "")
    for name in ("e", "f", "g", "h", "j"):
        for value in ("many", "1e3", "9" * 5_000):
            answer = client.call(RequestCode.SEND_MESSAGE_V2, good | {name: value}, b"x")
            assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    for name in ("f", "h", "j", "g"):
        answer = client.call(RequestCode.SEND_MESSAGE_V2, good | {name: str(1 << 63)}, b"x")
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    assert client.max_offset("orders") == 1


ILLEGAL_TOPICS = ["", " ", "or ders", "orders!", "bestellung-ä", "a\0b", "a/b", "x" * 128, "é" * 20]


@pytest.mark.parametrize("name", ILLEGAL_TOPICS)
def test_an_illegal_topic_is_refused_and_not_created(client: WireClient, name: str) -> None:
    answer = client.send(name)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"])
def test_clients_cannot_use_the_brokers_own_topics(client: WireClient, name: str) -> None:
    assert client.send(name).code == ResponseCode.NO_PERMISSION
    assert client.send_batch(name, [b"a"]).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("name", ["", "gr oup", "group!", "g" * 121, "gruppe-ä"])
def test_an_illegal_group_is_refused(client: WireClient, name: str) -> None:
    assert client.heartbeat(name, {"orders": "*"}).code == ResponseCode.INVALID_PARAMETER
    assert client.pull("orders", 0, group=name).code == ResponseCode.INVALID_PARAMETER
    assert client.commit(name, "orders", 1).code == ResponseCode.INVALID_PARAMETER
    assert client.lock(name, "orders", 0).code == ResponseCode.INVALID_PARAMETER


def test_the_longest_legal_names_work(client: WireClient) -> None:
    assert client.send("t" * 127).code == 0
    group = "g" * 120
    assert client.heartbeat(group, {"orders": "*"}).code == 0
    assert client.send("%RETRY%" + group, b"long").code == 0
    assert records(client.pull("%RETRY%" + group, 0, group=group).body)[0].body == b"long"


BODIES = [
    b"", b"null", b"[]", b"1", b"{", b'"x"', b"\xff\xfe", b"{}",
    b'{"clientID":5}', b'{"clientID":"c","consumerDataSet":5}',
    b'{"clientID":"c","consumerDataSet":[5]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[7]}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
    b'[{"topic":"t","subString":"*","subVersion":"soon"}]}]}',
    b'{"clientId":"c","consumerGroup":"g","mqSet":5}',
    b'{"clientId":"c","consumerGroup":"g","mqSet":[5]}',
    b'{"clientId":"c","consumerGroup":"g","mqSet":[{"topic":"t","brokerName":"b"}]}',
    b'{"clientId":7,"consumerGroup":"g","mqSet":[]}',
    b'{"groupName":"g","retryMaxTimes":"often"}',
]  # fmt: skip


@pytest.mark.parametrize("code", [34, 41, 42, 46, 200, 400])
@pytest.mark.parametrize("body", BODIES)
def test_an_invalid_body_is_answered_and_the_connection_stays(
    client: WireClient, code: int, body: bytes
) -> None:
    client.call(code, {}, body)
    assert client.send("orders").code == 0
    assert client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).code == 0


def test_damaged_properties_are_stored_as_they_are_and_pulled_again(client: WireClient) -> None:
    for text in ("\1\1\1", "\2\2", "TAGS", "TAGS\1", "TAGS\1t", "\1x\2", "KEYS\1\2" * 5):
        ext = SendHeader("producers", "orders", 0, properties=text).to_ext()
        assert client.call(RequestCode.SEND_MESSAGE_V2, ext, b"x").code == 0
    assert len(records(client.pull("orders", 1).body)) == 7


def test_a_client_that_does_not_read_is_not_read_from_and_stops_no_other(
    bad_broker: EmbeddedBroker,
) -> None:
    with WireClient(bad_broker.port) as deaf, WireClient(bad_broker.port) as other:
        other.send("orders", b"x" * 90_000)
        count = 5_000  # answers of 450 MB
        started = [deaf.start_pull("orders", 0, count=1_000) for _ in range(count)]
        for _ in range(20):
            assert other.send("orders").code == 0
        assert bad_broker.statistics.pulls < 500, "the broker answers into the void"
        for one in started:
            assert deaf.wait(one).code == 0


def test_a_full_disk_refuses_writes_clearly_loses_nothing_and_heals(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    with BrokerProcess(path) as broker, WireClient(broker.port) as client:
        sent = [client.send("orders", b"before").ext["msgId"]]
        client.commit("group", "orders", 1)
        used = max(file.stat().st_size for file in tmp_path.iterdir())
        broker.limit_file_size(used + 200_000)
        answer = client.send("orders", b"x" * 10_000)
        while answer.code == 0:
            sent.append(answer.ext["msgId"])
            answer = client.send("orders", b"x" * 10_000)
        assert len(sent) < 200
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "could not write" in (answer.remark or "")
        assert "free space" in (answer.remark or "")
        # Everything that writes is refused; everything that only reads works.
        broker.limit_file_size(0)
        assert client.send("new-topic").code == ResponseCode.SYSTEM_ERROR
        assert client.commit("group", "orders", 2).code == ResponseCode.SYSTEM_ERROR
        assert client.committed("group", "orders") == 1
        assert client.lock("group", "orders", 0).code == ResponseCode.SYSTEM_ERROR
        assert client.heartbeat("group", {"orders": "*"}).code == 0
        assert client.max_offset("orders") == len(sent)
        broker.lift_limit()
        assert client.send("orders", b"after").ext["queueOffset"] == str(len(sent))
        assert client.send("new-topic").code == 0
        assert client.commit("group", "orders", 2).code == 0
        assert client.lock("group", "orders", 0).ext["omqEpochs"]
        broker.kill()
    with BrokerProcess(path) as broker, WireClient(broker.port) as client:
        bodies = []
        while (answer := client.pull("orders", len(bodies))).code == 0:
            bodies += [message.body for message in records(answer.body)]
        assert len(bodies) == len(sent) + 1
        assert (bodies[0], bodies[-1]) == (b"before", b"after")
        assert client.max_offset("new-topic") == 1
        assert client.committed("group", "orders") == 2
