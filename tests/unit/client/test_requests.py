"""The typed requests, as a broker or name server sees and answers them
(docs/internals/protocol.md#commands)."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from remoting.wire_server import Line, WireServer, run

from ordermq.client.broker_api import BrokerApi
from ordermq.client.connections import Connections
from ordermq.client.name_server_api import NameServerApi, parse_name_servers
from ordermq.clock import SystemClock
from ordermq.config import RemotingConfig
from ordermq.errors import BrokerError, ConfigError, Fenced, ProtocolError, RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import (
    BrokerData,
    LockBatch,
    QueueData,
    TopicRoute,
    locked_queues_to_body,
)
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader, SendHeader

QUEUE, OTHER = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
ROUTE = TopicRoute((BrokerData("b", {0: "127.0.0.1:1"}),), (QueueData("b", 4, 4),))
Answer = Callable[[Command], Command]


def ask(answer: Answer, call: Callable[[BrokerApi, str], Awaitable[Any]]) -> tuple[Any, Command]:
    """Result of `call`, and the request the broker saw."""

    async def work() -> tuple[Any, Command]:
        def handle(line: Line, command: Command) -> None:
            line.send(answer(command))

        async with WireServer(handle) as server:
            connections = Connections(
                SystemClock(), RemotingConfig(), lambda *_: None, lambda _: None
            )
            try:
                result = await call(BrokerApi(connections, RemotingConfig(), "me"), server.address)
            finally:
                await connections.close()
            return result, server.requests[0]

    return run(work())


def ok(**ext: str) -> Answer:
    return lambda command: command.reply(0, ext)


def refused(code: int, remark: str | None = None) -> Answer:
    return lambda command: command.reply(code, remark=remark)


def test_a_send_returns_the_durability_of_the_stored_message() -> None:
    def stored(command: Command) -> Command:
        return command.reply(10, {"msgId": "ID", "queueId": "0", "queueOffset": "5"})

    (code, reply), request = ask(
        stored, lambda api, at: api.send(at, SendHeader("PG", "T", 0), b"x", 1_000)
    )
    assert (code, reply.message_id, reply.queue_offset) == (10, "ID", 5)
    assert (request.code, request.body, request.ext["b"]) == (310, b"x", "T")


def test_a_batch_is_sent_with_its_own_request_code() -> None:
    header = SendHeader("PG", "T", 0, batch=True)
    answer = ok(msgId="A,B", queueId="0", queueOffset="5")
    _, request = ask(answer, lambda api, at: api.send(at, header, b"x", 1_000))
    assert request.code == 320


def test_a_refused_send_carries_code_remark_and_place() -> None:
    header = SendHeader("PG", "T", 3, broker_name="b")
    with pytest.raises(BrokerError, match="no perm") as caught:
        ask(refused(16, "no perm"), lambda api, at: api.send(at, header, b"x", 1_000))
    error = caught.value
    assert (error.response_code, error.topic, error.broker, error.queue_id) == (16, "T", "b", 3)


def test_a_batch_that_is_too_large_says_so_whatever_code_the_broker_gives() -> None:
    remark = "java.lang.RuntimeException: message body size exceeded, org.x.encode(X.java:290)"
    header = SendHeader("PG", "T", 3, batch=True)
    with pytest.raises(BrokerError, match=r"request has 7 bytes: send less.*maxMessageSize"):
        ask(refused(1, remark), lambda api, at: api.send(at, header, b"x" * 7, 1_000))


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_a_pull_returns_offsets_with_and_without_messages(code: int) -> None:
    def answer(command: Command) -> Command:
        ext = {"nextBeginOffset": "7", "minOffset": "1", "maxOffset": "9"}
        return command.reply(code, ext, b"records" if code == 0 else b"")

    (got, reply, body), request = ask(
        answer, lambda api, at: api.pull(at, PullHeader("G", "T", 0, 5, 32, 6), 1_000)
    )
    assert (got, reply.next_begin_offset, reply.min_offset, reply.max_offset) == (code, 7, 1, 9)
    assert body == (b"records" if code == 0 else b"")
    assert request.code == 11


def test_a_pull_answer_without_its_offsets_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="nextBeginOffset"):
        ask(ok(), lambda api, at: api.pull(at, PullHeader("G", "T", 0, 5, 32, 6), 1_000))


def test_a_broker_without_sql_is_answered_with_its_setting() -> None:
    remark = "The broker does not support consumer to filter message by SQL92"
    with pytest.raises(BrokerError, match=r"by SQL92; .*enablePropertyFilter=true"):
        ask(
            refused(1, remark),
            lambda api, at: api.pull(at, PullHeader("G", "T", 0, 5, 32, 6), 1_000),
        )


def test_any_other_pull_answer_is_an_error_with_group_and_offset() -> None:
    with pytest.raises(BrokerError) as caught:
        ask(refused(24), lambda api, at: api.pull(at, PullHeader("G", "T", 0, 5, 32, 6), 1_000))
    assert (caught.value.response_code, caught.value.group, caught.value.offset) == (24, "G", 5)


def test_a_group_without_a_stored_offset_is_none_and_not_zero() -> None:
    assert ask(refused(22), lambda api, at: api.query_offset(at, "G", QUEUE))[0] is None
    assert ask(ok(offset="0"), lambda api, at: api.query_offset(at, "G", QUEUE))[0] == 0
    with pytest.raises(BrokerError):
        ask(refused(1), lambda api, at: api.query_offset(at, "G", QUEUE))


def test_a_commit_under_an_epoch_is_conditional_and_one_without_is_plain() -> None:
    _, fenced = ask(ok(), lambda api, at: api.update_offset(at, "G", QUEUE, 5, epoch=7))
    assert fenced.ext == {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "5", "bname": "b",
        "omqEpoch": "7", "omqClientId": "me",
    }  # fmt: skip
    _, plain = ask(ok(), lambda api, at: api.update_offset(at, "G", QUEUE, 5))
    assert not [name for name in plain.ext if name.startswith("omq")]
    _, reset = ask(ok(), lambda api, at: api.update_offset(at, "G", QUEUE, 5, epoch=7, reset=True))
    assert reset.ext["omqReset"] == "true"


def test_a_fenced_commit_raises_fenced() -> None:
    with pytest.raises(Fenced, match="newer owner") as caught:
        ask(refused(28_001), lambda api, at: api.update_offset(at, "G", QUEUE, 5, epoch=7))
    assert (caught.value.epoch, caught.value.offset) == (7, 5)


def granted(command: Command) -> Command:
    wanted = LockBatch.from_body(command.body).queues
    ext = {"omqEpochs": "4", "omqLeaseMs": "60000", "omqBrokerId": "B"}
    return command.reply(0, ext, locked_queues_to_body(wanted[1:]))


def test_a_lock_gives_the_granted_queues_with_their_epochs() -> None:
    grant, request = ask(granted, lambda api, at: api.lock(at, "G", [QUEUE, OTHER]))
    assert (grant.granted, grant.lease_ms, grant.broker_id) == ({OTHER: 4}, 60_000, "B")
    assert LockBatch.from_body(request.body) == LockBatch("G", "me", (QUEUE, OTHER))
    assert request.ext["omqEpochs"] == "1"


def test_a_lock_of_rocketmqs_broker_has_no_epochs() -> None:
    def plain(command: Command) -> Command:
        return command.reply(0, body=locked_queues_to_body([QUEUE, OTHER]))

    grant, _ = ask(plain, lambda api, at: api.lock(at, "G", [QUEUE, OTHER]))
    assert (grant.granted, grant.lease_ms, grant.broker_id) == ({QUEUE: 0, OTHER: 0}, None, None)


def test_an_unlock_names_its_epochs_where_there_are_any() -> None:
    _, fenced = ask(ok(), lambda api, at: api.unlock(at, "G", [QUEUE, OTHER], [4, 5]))
    assert fenced.ext == {"omqEpochs": "4,5"}
    _, plain = ask(ok(), lambda api, at: api.unlock(at, "G", [QUEUE], [0]))
    assert plain.ext == {}
    assert not plain.is_oneway


def name_servers(connections: Connections, addresses: tuple[str, ...]) -> NameServerApi:
    return NameServerApi(connections, addresses, RemotingConfig(), SystemClock())


def ask_name_server(answer: Answer, addresses_before: tuple[str, ...] = ()) -> TopicRoute | None:
    async def work() -> TopicRoute | None:
        def handle(line: Line, command: Command) -> None:
            line.send(answer(command))

        async with WireServer(handle) as server:
            connections = Connections(
                SystemClock(), RemotingConfig(), lambda *_: None, lambda _: None
            )
            addresses = (*addresses_before, server.address)
            try:
                return await name_servers(connections, addresses).topic_route("T")
            finally:
                await connections.close()

    return run(work())


def routed(command: Command) -> Command:
    assert command.ext == {"topic": "T", "acceptStandardJsonOnly": "true"}
    return command.reply(0, body=ROUTE.to_body())


def test_a_route_is_read_and_an_unknown_topic_is_none() -> None:
    assert ask_name_server(routed) == ROUTE
    assert ask_name_server(refused(17)) is None


def test_an_unreachable_name_server_is_skipped() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{free.getsockname()[1]}"
        assert ask_name_server(routed, (away,)) == ROUTE


def test_without_any_name_server_the_error_names_them_all() -> None:
    async def work(addresses: tuple[str, ...]) -> None:
        connections = Connections(SystemClock(), RemotingConfig(), lambda *_: None, lambda _: None)
        try:
            await name_servers(connections, addresses).topic_route("T")
        finally:
            await connections.close()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RouteError, match="no name server answers") as caught:
            run(work((away,)))
        assert away in str(caught.value)


def test_an_error_of_the_name_server_is_raised() -> None:
    with pytest.raises(BrokerError, match="busy"):
        ask_name_server(refused(2, "busy"))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1; b:2;", ("a:1", "b:2")),
        ("a:1,b:2", ("a:1", "b:2")),
        (["a:1", " b:2 "], ("a:1", "b:2")),
    ],
)
def test_name_servers_are_a_list_or_a_string(text: Any, addresses: tuple[str, ...]) -> None:
    assert parse_name_servers(text) == addresses


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://127.0.0.1:9876", "a scheme before '://'"),
        (["127.0.0.1:9876", "rocketmq://127.0.0.1:9876"], "a scheme before '://'"),
        ("rocketmq://user:hidden@127.0.0.1:9876", "a user or a secret before an '@'"),
        ("user:hid,den@127.0.0.1:9876", "a user or a secret before an '@'"),
        (["user:hid;den@127.0.0.1:9876"], "a user or a secret before an '@'"),
        (b"127.0.0.1:9876", "name_servers is a bytes: expected host:port"),
        ({"user:hidden@h": 1}, "name_servers is a dict: expected host:port"),
    ],
)
def test_name_servers_with_a_scheme_or_a_secret_are_refused_and_not_shown(
    text: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_name_servers(text)
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize("text", ["", ";", [], "host", "host:0"])
def test_invalid_name_servers_are_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_name_servers(text)
