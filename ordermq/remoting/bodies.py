"""JSON bodies of requests and answers, as named tuples (docs/internals/protocol.md#commands).

`*_from_body` reads bytes from the network and raises `ProtocolError` for anything malformed;
`*_to_body` writes them. What only admin tools ask for is in admin_bodies.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ordermq import json_text
from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.value import Value

_T = TypeVar("_T")
_KINDS = {int: "a number", str: "a string", list: "a list", dict: "an object"}
NOTHING: tuple[Any, ...] = ()
NO_MEMBERS: dict[str, Any] = {}
# Patterns are compiled at their first use, which is rare.
_NUMBER_AS_NAME = rb"([{,]\s*)(-?\d+)\s*:"
# fastjson writes map keys as they are: `{0:"a"}` and `{{"topic":...}:5}`, neither of which is JSON.
_QUEUE_AS_NAME = rb"([{,]\s*)(\{[^{}]*\})\s*:"
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
CONSUME_POP = "CONSUME_POP"  # the way of a member that pops, since RocketMQ 5
# Extensions of GET_CONSUMER_RUNNING_INFO: of a queue in the answer, and of the request.
RESETS, PULL_NOW = "omqResets", "omqPullNow"
MAX_QUEUES = 1 << 17  # of a topic at one broker: no more are ever made, and each is an object here


def load_object(body: bytes, what: str) -> dict[str, Any]:
    """Parse a body that must be a JSON object.

    Raises: ProtocolError: it is not JSON, or not an object.
    """
    try:
        value = json_text.loads(body)
    except json_text.JSONDecodeError as error:
        raise ProtocolError(f"{what}: the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what}: the body is a JSON {type(value).__name__}, not an object")
    return value


def read_member(source: object, name: str, kind: type, what: str) -> Any:
    """Return a member of a JSON object; raise ProtocolError unless it is of `kind`."""
    if not isinstance(source, dict):
        raise ProtocolError(
            f"{what}: expected an object with a member {name!r}, got {source!r:.100}"
        )
    return checked(source.get(name), kind, f"{what}: member {name!r}")


def checked(value: object, kind: type, what: str) -> Any:
    # By exact type: bool is a subclass of int, and `true` is no number.
    if type(value) is not kind:
        raise ProtocolError(f"{what}: expected {_KINDS[kind]}, got {value!r:.100}")
    return value


def read_number(source: object, name: str, end: int, what: str) -> int:
    """Return a member of a JSON object that must be a number from 0 on, below `end`."""
    value: int = read_member(source, name, int, what)
    if not 0 <= value < end:
        raise ProtocolError(f"{what}: member {name!r} is {value}: expected 0..{end - 1}")
    return value


def read_optional(source: Mapping[str, Any], name: str, default: _T, what: str) -> _T:
    """Return a member that may be missing or null, of its default's type; a tuple means a list."""
    if source.get(name) is None:
        return default
    kind = list if isinstance(default, tuple) else type(default)
    value: _T = read_member(source, name, kind, what)
    return value


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    return {
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "topic": queue.topic,
    }


def queue_table_to_json(table: Mapping[MessageQueue, Any]) -> bytes:
    """Encode a table by message queue as Java writes it, with objects as member names."""
    # Not JSON. Clients up to 5.3 would also read such a name quoted as a string; from 5.4 on
    # they no longer do.
    rows = (json_text.dumps(queue_to_json(q)) + b":" + json_text.dumps(v) for q, v in table.items())
    return b"{" + b",".join(rows) + b"}"


def queue_table_from_body(body: bytes, name: str) -> dict[MessageQueue, int]:
    """Decode a table of numbers by message queue: as Java writes it, or the list for C++ clients.

    Raises: ProtocolError: it is neither.
    """
    table = with_quoted_names(body, name).get(name)
    # Brokers send C++ clients a list, which is JSON.
    if isinstance(table, list):
        return {queue_from_json(row, name): read_member(row, "offset", int, name) for row in table}
    return {queue: checked(value, int, name) for queue, value in _by_queue(table, name)}


def queue_rows_from_body(body: bytes, name: str) -> dict[MessageQueue, dict[str, Any]]:
    """Decode a table of objects by message queue, as Java writes it.

    Raises: ProtocolError: it is malformed.
    """
    table = with_quoted_names(body, name).get(name)
    return {queue: checked(row, dict, f"{name}: {queue}") for queue, row in _by_queue(table, name)}


def with_quoted_names(body: bytes, what: str) -> dict[str, Any]:
    """Parse an object in which Java wrote message queues as member names; they become strings.

    Raises: ProtocolError: it is malformed.
    """
    # Topic and broker names cannot contain a brace, so a pattern finds the objects used as names.
    try:
        text = re.sub(_QUEUE_AS_NAME, lambda m: m[1] + json_text.dumps(m[2].decode()) + b":", body)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what}: the body is not UTF-8: {error}") from None
    return load_object(text, what)


def with_quoted_numbers(body: bytes, what: str) -> dict[str, Any]:
    """Parse an object in which numbers are member names without quotes; they become strings.

    Raises: ProtocolError: it is malformed.
    """
    return load_object(re.sub(_NUMBER_AS_NAME, rb'\1"\2":', body), what)


def _by_queue(table: object, what: str) -> Iterator[tuple[MessageQueue, Any]]:
    for name, value in checked(table, dict, what).items():
        yield queue_from_json(load_object(name.encode(), what), what), value


def queue_from_json(value: object, what: str) -> MessageQueue:
    return MessageQueue(
        read_member(value, "topic", str, what),
        read_member(value, "brokerName", str, what),
        read_number(value, "queueId", 1 << 31, what),
    )


class BrokerData(Value):
    """One broker of a route; addresses by broker id, 0 is the master."""

    broker_name: str
    addresses: Mapping[int, str]
    cluster: str = ""

    @property
    def master(self) -> str | None:
        """Address of the master; None while the broker has slaves only."""
        return self.addresses.get(0)


class QueueData(Value):
    """Number of queues of a topic at one broker, and the permissions on them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ | PERM_WRITE
    topic_sys_flag: int = 0


class TopicRoute(Value):
    """Answer of GET_ROUTEINFO_BY_TOPIC."""

    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    order_conf: str | None = None

    @classmethod
    def from_body(cls, body: bytes) -> TopicRoute:
        """Decode a route; raise ProtocolError if it is malformed."""
        what = "topic route"
        value = load_object(body, what)
        brokers = []
        for item in read_member(value, "brokerDatas", list, what):
            addresses = read_member(item, "brokerAddrs", dict, what)
            try:
                by_id = {int(number): str(address) for number, address in addresses.items()}
            except ValueError:  # ids are strings in JSON: "0" is the master
                raise ProtocolError(f"{what}: broker ids {sorted(addresses)!r:.100}") from None
            name = read_member(item, "brokerName", str, what)
            brokers.append(BrokerData(name, by_id, read_optional(item, "cluster", "", what)))
        queues = [
            QueueData(
                read_member(item, "brokerName", str, what),
                read_number(item, "readQueueNums", MAX_QUEUES, what),
                read_number(item, "writeQueueNums", MAX_QUEUES, what),
                read_member(item, "perm", int, what),
                read_optional(item, "topicSysFlag", 0, what),
            )
            for item in read_member(value, "queueDatas", list, what)
        ]
        order_conf = read_optional(value, "orderTopicConf", "", what)
        return cls(tuple(brokers), tuple(queues), order_conf or None)

    def to_body(self) -> bytes:
        """Encode a route in standard JSON."""
        # Strict JSON with quoted broker ids, which every Java client reads.
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
        return json_text.dumps(value)


class LockBatch(Value):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]  # with the broker's name, which is part of a lock's key

    @classmethod
    def from_body(cls, body: bytes) -> LockBatch:
        """Decode a request; raise ProtocolError if it is malformed."""
        what = "lock batch"
        value = load_object(body, what)
        return cls(
            read_member(value, "consumerGroup", str, what),
            read_member(value, "clientId", str, what),
            tuple(queue_from_json(item, what) for item in read_member(value, "mqSet", list, what)),
        )

    def to_body(self) -> bytes:
        return json_text.dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue_to_json(queue) for queue in self.queues],
                "onlyThisBroker": False,
            }
        )


def locked_queues_to_body(queues: Iterable[MessageQueue]) -> bytes:
    """Encode the answer to LOCK_BATCH_MQ."""
    return json_text.dumps({"lockOKMQSet": [queue_to_json(queue) for queue in queues]})


def locked_queues_from_body(body: bytes) -> list[MessageQueue]:
    """Return the queues that an answer to LOCK_BATCH_MQ grants."""
    what = "lock answer"
    found = read_optional(load_object(body, what), "lockOKMQSet", NOTHING, what)
    return [queue_from_json(item, what) for item in found]


class ConsumerData(Value):
    """One consumer group of a heartbeat."""

    group: str
    # The broker removes topics that are not in the list, also for the group's other members.
    subscriptions: tuple[Subscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Heartbeat(Value):
    """Body of HEART_BEAT: the client id, its consumer groups and its producer groups."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = ()
    unit_mode: bool = False

    @classmethod
    def from_body(cls, body: bytes) -> Heartbeat:
        """Decode a heartbeat; raise ProtocolError if it is malformed."""
        what = "heartbeat"
        value = load_object(body, what)
        return cls(
            read_member(value, "clientID", str, what),
            tuple(
                _consumer_from_json(item)
                for item in read_optional(value, "consumerDataSet", NOTHING, what)
            ),
            tuple(
                read_member(item, "groupName", str, what)
                for item in read_optional(value, "producerDataSet", NOTHING, what)
            ),
        )

    def to_body(self) -> bytes:
        return json_text.dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [
                    _consumer_to_json(data) | {"unitMode": self.unit_mode}
                    for data in self.consumers
                ],
                "heartbeatFingerprint": 0,  # 0: a full heartbeat, which every broker reads
                "producerDataSet": [{"groupName": name} for name in self.producer_groups],
                "withoutSub": False,  # the subscriptions are always sent, see above
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
        "codeSet": list(subscription.tag_hashes),  # hashes collide: the client filters again
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": list(subscription.tags),
        "topic": subscription.topic,
    }


def _consumer_from_json(value: Any) -> ConsumerData:
    what = "heartbeat"
    group = read_member(value, "groupName", str, what)
    subscriptions = []
    for item in read_optional(value, "subscriptionDataSet", NOTHING, what):
        topic = read_member(item, "topic", str, what)
        # The embedded broker has no SQL. Refused here, or the group would get everything.
        if read_optional(item, "expressionType", "TAG", what) != "TAG":
            raise ProtocolError(
                f"{what}: expression type {item['expressionType']!r} is not supported: use TAG"
            )
        subscriptions.append(
            Subscription(
                topic,
                read_member(item, "subString", str, what),
                tuple(str(tag) for tag in read_optional(item, "tagsSet", NOTHING, what)),
                read_optional(item, "subVersion", 0, what),
            )
        )
    return ConsumerData(
        group,
        tuple(subscriptions),
        read_optional(value, "consumeType", "CONSUME_PASSIVELY", what),
        read_optional(value, "messageModel", "CLUSTERING", what),
        read_optional(value, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET", what),
    )


def client_ids_to_body(client_ids: Iterable[str]) -> bytes:
    """Encode the answer to GET_CONSUMER_LIST_BY_GROUP."""
    return json_text.dumps({"consumerIdList": list(client_ids)})


def client_ids_from_body(body: bytes) -> list[str]:
    """Return the client ids of an answer to GET_CONSUMER_LIST_BY_GROUP, sorted, each once."""
    what = "consumer list"
    found = read_optional(load_object(body, what), "consumerIdList", NOTHING, what)
    # Each member sorts for itself: all must compute the same allocation from the same list.
    return sorted({checked(client_id, str, what) for client_id in found})


def assignment_to_body(client_id: str, group: str, topic: str) -> bytes:
    """Encode QUERY_ASSIGNMENT for a member of a clustering group."""
    return json_text.dumps(
        {
            "clientId": client_id,
            "consumerGroup": group,
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",  # the answer is read for its mode only
            "topic": topic,
        }
    )


def request_mode_from_body(body: bytes) -> str | None:
    """Return the request mode of the first assigned queue, None without one.

    The answer is that of QUERY_ASSIGNMENT; all queues of a topic have one mode.
    """
    what = "assignment"
    rows = read_optional(load_object(body, what), "messageQueueAssignments", NOTHING, what)
    return read_member(rows[0], "mode", str, what) if rows else None


class MemberSubscriptions(Value):
    """A member's subscriptions by topic, its listener's kind (None if it does not tell), and
    whether it pops its messages or pulls them.
    """

    subscriptions: Mapping[str, str]
    is_orderly: bool | None
    pops: bool = False


def cluster_names_from_body(body: bytes) -> list[str]:
    """Return the clusters in an answer to GET_BROKER_CLUSTER_INFO, sorted."""
    what = "clusterAddrTable"
    value = with_quoted_numbers(body, what)
    return sorted(read_optional(value, what, NO_MEMBERS, what))


def masters_from_body(body: bytes) -> dict[str, str]:
    """Return the master addresses in an answer to GET_BROKER_CLUSTER_INFO, by broker name."""
    what = "cluster"
    # Broker ids are member names here, and some name servers write numbers without quotes.
    value = with_quoted_numbers(body, what)
    masters = {}
    for name, broker in read_optional(value, "brokerAddrTable", NO_MEMBERS, what).items():
        addresses = read_member(broker, "brokerAddrs", dict, what)
        if "0" in addresses:
            masters[name] = read_member(addresses, "0", str, what)
    return masters


def member_subscriptions_from_body(body: bytes) -> MemberSubscriptions:
    """Return the subscriptions in a member's answer to GET_CONSUMER_RUNNING_INFO."""
    what = "running info"
    # The body also has tables by message queue, which are not JSON.
    value = with_quoted_names(body, what)
    rows = read_optional(value, "subscriptionSet", NOTHING, what)
    properties = read_optional(value, "properties", NO_MEMBERS, what)
    is_orderly = properties.get("PROP_CONSUMEORDERLY")
    subscriptions = {
        read_member(row, "topic", str, what): read_member(row, "subString", str, what)
        for row in rows
    }
    return MemberSubscriptions(
        subscriptions,
        None if is_orderly is None else str(is_orderly).lower() == "true",
        # Java's members name no way of their own; those that pop list their queues apart.
        properties.get("PROP_CONSUME_TYPE") == CONSUME_POP or bool(value.get("mqPopTable")),
    )
