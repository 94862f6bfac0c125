"""The JSON bodies of requests and answers, typed (docs/internals/protocol.md#commands)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription

_T = TypeVar("_T")
_NOTHING: tuple[Any, ...] = ()
_NUMBER_AS_NAME = re.compile(rb"([{,]\s*)(-?\d+)\s*:")
_QUEUE_AS_NAME = re.compile(rb"([{,]\s*)(\{[^{}]*\})\s*:")
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


def load_object(body: bytes, what: str) -> dict[str, Any]:
    """Parse a body that must be a JSON object.

    Raises: ProtocolError: it is not.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{what}: the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what}: the body is a JSON {type(value).__name__}, not an object")
    return value


def _member(source: object, name: str, kind: type, what: str) -> Any:
    if not isinstance(source, dict):
        raise ProtocolError(f"{what}: {source!r} has no member {name!r}")
    value = source.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ProtocolError(f"{what}: member {name!r} is {value!r}, expected a {kind.__name__}")
    return value


def _optional(source: Mapping[str, Any], name: str, default: _T, what: str) -> _T:
    """A member that may be missing or null, of its default's type; a tuple stands for a list."""
    if source.get(name) is None:
        return default
    kind = list if isinstance(default, tuple) else type(default)
    value: _T = _member(source, name, kind, what)
    return value


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    return {
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "topic": queue.topic,
    }


def queue_table_to_json(table: Mapping[MessageQueue, Any]) -> bytes:
    """A table by message queue, as Java writes it: objects as names, which is no JSON.

    Clients up to 5.3 also read such a name quoted as a text, those from 5.4 on do not.
    """
    rows = (orjson.dumps(queue_to_json(q)) + b":" + orjson.dumps(v) for q, v in table.items())
    return b"{" + b",".join(rows) + b"}"


def queue_table_from_body(body: bytes, name: str) -> dict[MessageQueue, int]:
    """A table of numbers by message queue: as Java writes it, or the list that C++ gets.

    Raises: ProtocolError: neither.
    """
    table = with_quoted_names(body, name).get(name)
    if isinstance(table, list):
        return {queue_from_json(row, name): _member(row, "offset", int, name) for row in table}
    return {queue: _number(value, name) for queue, value in _by_queue(table, name)}


def queue_rows_from_body(body: bytes, name: str) -> dict[MessageQueue, dict[str, Any]]:
    """A table of objects by message queue, as Java writes it.

    Raises: ProtocolError: it is none.
    """
    rows: dict[MessageQueue, dict[str, Any]] = {}
    for queue, row in _by_queue(with_quoted_names(body, name).get(name), name):
        if not isinstance(row, dict):
            raise ProtocolError(f"{name}: {row!r} of {queue}, expected an object")
        rows[queue] = row
    return rows


def with_quoted_names(body: bytes, what: str) -> dict[str, Any]:
    """Parse an object in which Java wrote message queues for names; they become texts.

    Raises: ProtocolError: it is none.
    """
    # No name of a queue can hold a brace, so the objects that are names are easily found.
    text = _QUEUE_AS_NAME.sub(lambda m: m[1] + orjson.dumps(m[2].decode()) + b":", body)
    return load_object(text, what)


def _by_queue(table: object, what: str) -> Iterator[tuple[MessageQueue, Any]]:
    if not isinstance(table, dict):
        raise ProtocolError(f"{what}: {table!r}, expected a table by message queue")
    for name, value in table.items():
        yield queue_from_json(load_object(name.encode(), what), what), value


def _number(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{what}: {value!r}, expected a number")
    return value


def queue_from_json(value: object, what: str) -> MessageQueue:
    return MessageQueue(
        _member(value, "topic", str, what),
        _member(value, "brokerName", str, what),
        _member(value, "queueId", int, what),
    )


@dataclass(frozen=True, slots=True)
class BrokerData:
    """One broker of a route: addresses by broker id, 0 is the master."""

    broker_name: str
    addresses: Mapping[int, str]
    cluster: str = ""

    @property
    def master(self) -> str | None:
        return self.addresses.get(0)


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker holds."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ | PERM_WRITE
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Answer of GET_ROUTEINFO_BY_TOPIC."""

    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    order_conf: str | None = None

    @classmethod
    def from_body(cls, body: bytes) -> TopicRoute:
        what = "topic route"
        value = load_object(body, what)
        brokers = []
        for item in _member(value, "brokerDatas", list, what):
            addresses = _member(item, "brokerAddrs", dict, what)
            try:
                by_id = {int(number): str(address) for number, address in addresses.items()}
            except ValueError:
                raise ProtocolError(f"{what}: broker ids {sorted(addresses)!r}") from None
            name = _member(item, "brokerName", str, what)
            brokers.append(BrokerData(name, by_id, _optional(item, "cluster", "", what)))
        queues = [
            QueueData(
                _member(item, "brokerName", str, what),
                _member(item, "readQueueNums", int, what),
                _member(item, "writeQueueNums", int, what),
                _member(item, "perm", int, what),
                _optional(item, "topicSysFlag", 0, what),
            )
            for item in _member(value, "queueDatas", list, what)
        ]
        order_conf = _optional(value, "orderTopicConf", "", what)
        return cls(tuple(brokers), tuple(queues), order_conf or None)

    def to_body(self) -> bytes:
        value: dict[str, Any] = {
            "brokerDatas": [
                {
                    "brokerAddrs": {str(number): a for number, a in broker.addresses.items()},
                    "brokerName": broker.broker_name,
                    "cluster": broker.cluster,
                    "enableActingMaster": False,
                }
                for broker in self.brokers
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": queue.broker_name,
                    "perm": queue.perm,
                    "readQueueNums": queue.read_queue_nums,
                    "topicSysFlag": queue.topic_sys_flag,
                    "writeQueueNums": queue.write_queue_nums,
                }
                for queue in self.queues
            ],
        }
        if self.order_conf:
            value["orderTopicConf"] = self.order_conf
        return orjson.dumps(value)


@dataclass(frozen=True, slots=True)
class LockBatch:
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]

    @classmethod
    def from_body(cls, body: bytes) -> LockBatch:
        what = "lock batch"
        value = load_object(body, what)
        return cls(
            _member(value, "consumerGroup", str, what),
            _member(value, "clientId", str, what),
            tuple(queue_from_json(item, what) for item in _member(value, "mqSet", list, what)),
        )

    def to_body(self) -> bytes:
        return orjson.dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue_to_json(queue) for queue in self.queues],
                "onlyThisBroker": False,
            }
        )


def locked_queues_to_body(queues: Iterable[MessageQueue]) -> bytes:
    """Answer body of LOCK_BATCH_MQ."""
    return orjson.dumps({"lockOKMQSet": [queue_to_json(queue) for queue in queues]})


def locked_queues_from_body(body: bytes) -> list[MessageQueue]:
    what = "lock answer"
    found = _optional(load_object(body, what), "lockOKMQSet", _NOTHING, what)
    return [queue_from_json(item, what) for item in found]


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a heartbeat."""

    group: str
    subscriptions: tuple[Subscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Body of HEART_BEAT: who I am and what I want."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = field(default=())
    unit_mode: bool = False

    @classmethod
    def from_body(cls, body: bytes) -> Heartbeat:
        what = "heartbeat"
        value = load_object(body, what)
        return cls(
            _member(value, "clientID", str, what),
            tuple(
                _consumer_from_json(item)
                for item in _optional(value, "consumerDataSet", _NOTHING, what)
            ),
            tuple(
                _member(item, "groupName", str, what)
                for item in _optional(value, "producerDataSet", _NOTHING, what)
            ),
        )

    def to_body(self) -> bytes:
        return orjson.dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [
                    _consumer_to_json(data) | {"unitMode": self.unit_mode}
                    for data in self.consumers
                ],
                "heartbeatFingerprint": 0,
                "producerDataSet": [{"groupName": name} for name in self.producer_groups],
                "withoutSub": False,
            }
        )


def _consumer_to_json(data: ConsumerData) -> dict[str, Any]:
    return {
        "consumeFromWhere": data.consume_from_where,
        "consumeType": data.consume_type,
        "groupName": data.group,
        "messageModel": data.message_model,
        "subscriptionDataSet": [subscription_to_json(item) for item in data.subscriptions],
    }


def subscription_to_json(subscription: Subscription) -> dict[str, Any]:
    return {
        "classFilterMode": False,
        "codeSet": list(subscription.tag_hashes),
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": list(subscription.tags),
        "topic": subscription.topic,
    }


def _consumer_from_json(value: Any) -> ConsumerData:
    what = "heartbeat"
    group = _member(value, "groupName", str, what)
    subscriptions = []
    for item in _optional(value, "subscriptionDataSet", _NOTHING, what):
        topic = _member(item, "topic", str, what)
        if _optional(item, "expressionType", "TAG", what) != "TAG":
            raise ProtocolError(
                f"{what}: expression type {item['expressionType']!r} is not supported, only TAG"
            )
        subscriptions.append(
            Subscription(
                topic,
                _member(item, "subString", str, what),
                tuple(str(tag) for tag in _optional(item, "tagsSet", _NOTHING, what)),
                _optional(item, "subVersion", 0, what),
            )
        )
    return ConsumerData(
        group,
        tuple(subscriptions),
        _optional(value, "consumeType", "CONSUME_PASSIVELY", what),
        _optional(value, "messageModel", "CLUSTERING", what),
        _optional(value, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET", what),
    )


def client_ids_to_body(client_ids: Iterable[str]) -> bytes:
    """Answer body of GET_CONSUMER_LIST_BY_GROUP."""
    return orjson.dumps({"consumerIdList": list(client_ids)})


def client_ids_from_body(body: bytes) -> list[str]:
    value = load_object(body, "consumer list").get("consumerIdList") or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ProtocolError(f"consumer list: {value!r} is not a list of client ids")
    return sorted(set(value))


def assignment_to_body(client_id: str, group: str, topic: str) -> bytes:
    """Body of QUERY_ASSIGNMENT: what a member of a clustering group asks for."""
    return orjson.dumps(
        {
            "clientId": client_id,
            "consumerGroup": group,
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",
            "topic": topic,
        }
    )


def request_mode_from_body(body: bytes) -> str | None:
    """Answer body of QUERY_ASSIGNMENT: the mode of its first queue; None if it has none."""
    what = "assignment"
    rows = _optional(load_object(body, what), "messageQueueAssignments", _NOTHING, what)
    return _member(rows[0], "mode", str, what) if rows else None


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is on one queue, as its broker knows it.

    Args:
        end: the offset the next message will get.
        committed: the group's offset; None if it has none.
        last_done_ms: when the last consumed message was stored, ms since 1970; 0 if not known.
    """

    end: int
    committed: int | None
    last_done_ms: int

    @property
    def lag(self) -> int:
        """Messages not yet consumed; all that came after the start, if nothing was committed."""
        return max(self.end - (self.committed or 0), 0)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A live member of a group: who, from where, in what language."""

    client_id: str
    address: str
    language: str


@dataclass(frozen=True, slots=True)
class MemberSubscriptions:
    """What a member of a group subscribed, by topic, and how it listens; None if it is silent."""

    subscriptions: Mapping[str, str]
    is_orderly: bool | None


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The live members of a group and the topics they want."""

    members: tuple[GroupMember, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueHolding:
    """What a member says of a queue it has.

    Args:
        is_locked: it believes to hold the queue's lock.
        done: the offset up to which it is done, as it last told the broker.
        buffered: messages pulled and not done.
        in_listener: those of them which its listener has.
    """

    is_locked: bool
    done: int
    buffered: int
    in_listener: int


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A live lock, as the embedded broker keeps it."""

    queue: MessageQueue
    owner: str
    epoch: int
    left_ms: int  # until it runs out, unless it is renewed


def masters_from_body(body: bytes) -> dict[str, str]:
    """Answer of GET_BROKER_CLUSTER_INFO: the address of each broker's master, by broker name."""
    what = "cluster"
    # Broker ids are names of members, which some name servers write without quotes.
    value = load_object(_NUMBER_AS_NAME.sub(rb'\1"\2":', body), what)
    masters = {}
    for name, broker in _of_kind(value, "brokerAddrTable", dict, what).items():
        addresses = broker.get("brokerAddrs") if isinstance(broker, dict) else None
        if not isinstance(addresses, dict):
            raise ProtocolError(f"{what}: brokerAddrs of {name!r} is {addresses!r}")
        if "0" in addresses:
            masters[name] = _text(addresses, "0", what)
    return masters


def progress_from_body(body: bytes) -> dict[MessageQueue, QueueProgress]:
    """Answer of GET_CONSUME_STATS."""
    what = "offsetTable"
    return {
        queue: QueueProgress(
            _int(row, "brokerOffset", what),
            _int(row, "consumerOffset", what),
            _int(row, "lastTimestamp", what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def connections_from_body(body: bytes) -> GroupConnections:
    """Answer of GET_CONSUMER_CONNECTION_LIST."""
    what = "group connections"
    value = load_object(body, what)
    rows = _of_kind(value, "connectionSet", list, what)
    wanted = _of_kind(value, "subscriptionTable", dict, what)
    members = (
        GroupMember(
            _text(row, "clientId", what), _text(row, "clientAddr", what),
            _text(row, "language", what),
        )
        for row in rows
    )  # fmt: skip
    return GroupConnections(
        tuple(sorted(members, key=lambda member: member.client_id)), tuple(sorted(wanted))
    )


def holdings_from_body(body: bytes) -> dict[MessageQueue, QueueHolding]:
    """Answer of GET_CONSUMER_RUNNING_INFO: the member's queues."""
    what = "mqTable"
    return {
        queue: QueueHolding(
            row.get("locked") is True,
            _int(row, "commitOffset", what),
            _int(row, "cachedMsgCount", what),
            _int(row, "transactionMsgCount", what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def member_subscriptions_from_body(body: bytes) -> MemberSubscriptions:
    """Answer of GET_CONSUMER_RUNNING_INFO: what the member subscribed, and how it listens."""
    what = "running info"
    value = with_quoted_names(body, what)
    rows = _of_kind(value, "subscriptionSet", list, what)
    said = _of_kind(value, "properties", dict, what).get("PROP_CONSUMEORDERLY")
    return MemberSubscriptions(
        {_text(row, "topic", what): _text(row, "subString", what) for row in rows},
        None if said is None else str(said).lower() == "true",
    )


def held_locks_to_body(locks: Iterable[HeldLock | None]) -> bytes:
    """Answer of OMQ_QUERY_LOCKS."""
    rows = [
        queue_to_json(lock.queue)
        | {"owner": lock.owner, "epoch": lock.epoch, "leftMs": lock.left_ms}
        for lock in locks
        if lock is not None
    ]
    return orjson.dumps({"locks": rows})


def held_locks_from_body(body: bytes) -> list[HeldLock]:
    what = "held locks"
    rows = _of_kind(load_object(body, what), "locks", list, what)
    return [
        HeldLock(
            queue_from_json(row, what), _text(row, "owner", what), _int(row, "epoch", what),
            _int(row, "leftMs", what),
        )
        for row in rows
    ]  # fmt: skip


def _of_kind(value: Mapping[str, Any], name: str, kind: type[_T], what: str) -> _T:
    """A list or object that may be missing or null, which is an empty one."""
    found = value.get(name)
    if found is None:
        return kind()
    if not isinstance(found, kind):
        raise ProtocolError(f"{what}: {name} is {found!r}, expected a {kind.__name__}")
    return found


def _int(row: Mapping[str, Any], name: str, what: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{what}: {name} is {value!r}, expected a number")
    return value


def _text(row: object, name: str, what: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str):
        raise ProtocolError(f"{what}: {name} is {value!r}, expected a text")
    return value
