"""JSON bodies of requests and answers, as named tuples (docs/internals/protocol.md#commands).

`*_from_body` reads bytes from the network and raises `ProtocolError` for anything malformed;
`*_to_body` writes them. First what clients and brokers exchange all the time, then what admin
requests return (docs/internals/protocol.md#admin-requests).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import orjson

from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription

_T = TypeVar("_T")
_KINDS = {int: "a number", str: "a string", list: "a list", dict: "an object"}
_NOTHING: tuple[Any, ...] = ()
_NO_MEMBERS: dict[str, Any] = {}
_NUMBER_AS_NAME = re.compile(rb"([{,]\s*)(-?\d+)\s*:")
# fastjson writes map keys as they are: `{0:"a"}` and `{{"topic":...}:5}`, neither of which is JSON.
_QUEUE_AS_NAME = re.compile(rb"([{,]\s*)(\{[^{}]*\})\s*:")
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
# Extensions of GET_CONSUMER_RUNNING_INFO: of a queue in the answer, and of the request.
RESETS, PULL_NOW = "omqResets", "omqPullNow"
MAX_QUEUES = 1 << 17  # of a topic at one broker: no more are ever made, and each is an object here


def load_object(body: bytes, what: str) -> dict[str, Any]:
    """Parse a body that must be a JSON object.

    Raises: ProtocolError: it is not JSON, or not an object.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{what}: the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what}: the body is a JSON {type(value).__name__}, not an object")
    return value


def _member(source: object, name: str, kind: type, what: str) -> Any:
    """Return a member of a JSON object; raise ProtocolError unless it is of `kind`."""
    if not isinstance(source, dict):
        raise ProtocolError(
            f"{what}: expected an object with a member {name!r}, got {source!r:.100}"
        )
    return _checked(source.get(name), kind, f"{what}: member {name!r}")


def _checked(value: object, kind: type, what: str) -> Any:
    # By exact type: bool is a subclass of int, and `true` is no number.
    if type(value) is not kind:
        raise ProtocolError(f"{what}: expected {_KINDS[kind]}, got {value!r:.100}")
    return value


def _number(source: object, name: str, end: int, what: str) -> int:
    """Return a member of a JSON object that must be a number from 0 on, below `end`."""
    value: int = _member(source, name, int, what)
    if not 0 <= value < end:
        raise ProtocolError(f"{what}: member {name!r} is {value}: expected 0..{end - 1}")
    return value


def _optional(source: Mapping[str, Any], name: str, default: _T, what: str) -> _T:
    """Return a member that may be missing or null, of its default's type; a tuple means a list."""
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
    """Encode a table by message queue as Java writes it, with objects as member names."""
    # Not JSON. Clients up to 5.3 would also read such a name quoted as a string; from 5.4 on
    # they no longer do.
    rows = (orjson.dumps(queue_to_json(q)) + b":" + orjson.dumps(v) for q, v in table.items())
    return b"{" + b",".join(rows) + b"}"


def queue_table_from_body(body: bytes, name: str) -> dict[MessageQueue, int]:
    """Decode a table of numbers by message queue: as Java writes it, or the list for C++ clients.

    Raises: ProtocolError: it is neither.
    """
    table = with_quoted_names(body, name).get(name)
    # Brokers send C++ clients a list, which is JSON.
    if isinstance(table, list):
        return {queue_from_json(row, name): _member(row, "offset", int, name) for row in table}
    return {queue: _checked(value, int, name) for queue, value in _by_queue(table, name)}


def queue_rows_from_body(body: bytes, name: str) -> dict[MessageQueue, dict[str, Any]]:
    """Decode a table of objects by message queue, as Java writes it.

    Raises: ProtocolError: it is malformed.
    """
    table = with_quoted_names(body, name).get(name)
    return {queue: _checked(row, dict, f"{name}: {queue}") for queue, row in _by_queue(table, name)}


def with_quoted_names(body: bytes, what: str) -> dict[str, Any]:
    """Parse an object in which Java wrote message queues as member names; they become strings.

    Raises: ProtocolError: it is malformed.
    """
    # Topic and broker names cannot contain a brace, so a pattern finds the objects used as names.
    try:
        text = _QUEUE_AS_NAME.sub(lambda m: m[1] + orjson.dumps(m[2].decode()) + b":", body)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{what}: the body is not UTF-8: {error}") from None
    return load_object(text, what)


def _by_queue(table: object, what: str) -> Iterator[tuple[MessageQueue, Any]]:
    for name, value in _checked(table, dict, what).items():
        yield queue_from_json(load_object(name.encode(), what), what), value


def queue_from_json(value: object, what: str) -> MessageQueue:
    return MessageQueue(
        _member(value, "topic", str, what),
        _member(value, "brokerName", str, what),
        _number(value, "queueId", 1 << 31, what),
    )


class BrokerData(NamedTuple):
    """One broker of a route; addresses by broker id, 0 is the master."""

    broker_name: str
    addresses: Mapping[int, str]
    cluster: str = ""

    @property
    def master(self) -> str | None:
        """Address of the master; None while the broker has slaves only."""
        return self.addresses.get(0)


class QueueData(NamedTuple):
    """Number of queues of a topic at one broker, and the permissions on them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ | PERM_WRITE
    topic_sys_flag: int = 0


class TopicRoute(NamedTuple):
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
        for item in _member(value, "brokerDatas", list, what):
            addresses = _member(item, "brokerAddrs", dict, what)
            try:
                by_id = {int(number): str(address) for number, address in addresses.items()}
            except ValueError:  # ids are strings in JSON: "0" is the master
                raise ProtocolError(f"{what}: broker ids {sorted(addresses)!r:.100}") from None
            name = _member(item, "brokerName", str, what)
            brokers.append(BrokerData(name, by_id, _optional(item, "cluster", "", what)))
        queues = [
            QueueData(
                _member(item, "brokerName", str, what),
                _number(item, "readQueueNums", MAX_QUEUES, what),
                _number(item, "writeQueueNums", MAX_QUEUES, what),
                _member(item, "perm", int, what),
                _optional(item, "topicSysFlag", 0, what),
            )
            for item in _member(value, "queueDatas", list, what)
        ]
        order_conf = _optional(value, "orderTopicConf", "", what)
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
        return orjson.dumps(value)


class LockBatch(NamedTuple):
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
    """Encode the answer to LOCK_BATCH_MQ."""
    return orjson.dumps({"lockOKMQSet": [queue_to_json(queue) for queue in queues]})


def locked_queues_from_body(body: bytes) -> list[MessageQueue]:
    """Return the queues that an answer to LOCK_BATCH_MQ grants."""
    what = "lock answer"
    found = _optional(load_object(body, what), "lockOKMQSet", _NOTHING, what)
    return [queue_from_json(item, what) for item in found]


class ConsumerData(NamedTuple):
    """One consumer group of a heartbeat."""

    group: str
    # The broker removes topics that are not in the list, also for the group's other members.
    subscriptions: tuple[Subscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Heartbeat(NamedTuple):
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
    group = _member(value, "groupName", str, what)
    subscriptions = []
    for item in _optional(value, "subscriptionDataSet", _NOTHING, what):
        topic = _member(item, "topic", str, what)
        # The embedded broker has no SQL. Refused here, or the group would get everything.
        if _optional(item, "expressionType", "TAG", what) != "TAG":
            raise ProtocolError(
                f"{what}: expression type {item['expressionType']!r} is not supported: use TAG"
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
    """Encode the answer to GET_CONSUMER_LIST_BY_GROUP."""
    return orjson.dumps({"consumerIdList": list(client_ids)})


def client_ids_from_body(body: bytes) -> list[str]:
    """Return the client ids of an answer to GET_CONSUMER_LIST_BY_GROUP, sorted, each once."""
    what = "consumer list"
    found = _optional(load_object(body, what), "consumerIdList", _NOTHING, what)
    # Each member sorts for itself: all must compute the same allocation from the same list.
    return sorted({_checked(client_id, str, what) for client_id in found})


def assignment_to_body(client_id: str, group: str, topic: str) -> bytes:
    """Encode QUERY_ASSIGNMENT for a member of a clustering group."""
    return orjson.dumps(
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
    rows = _optional(load_object(body, what), "messageQueueAssignments", _NOTHING, what)
    return _member(rows[0], "mode", str, what) if rows else None


class QueueProgress(NamedTuple):
    """Progress of a group on one queue, as its broker knows it.

    Args:
        end: offset that the next message will get.
        committed: the group's committed offset; None if it has none.
        last_done_ms: store time of the last committed message, ms since 1970; 0 if not known.
        consumed: the offset up to which the queue's member says that it is done; None without one.
    """

    end: int
    committed: int | None
    last_done_ms: int
    consumed: int | None = None

    @property
    def done(self) -> int:
        """The offset up to which messages are consumed: members commit some seconds later."""
        return max(self.committed or 0, self.consumed or 0)

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet; all of the queue if nothing was."""
        return max(self.end - self.done, 0)


class GroupMember(NamedTuple):
    """Live member of a group, as its broker lists it."""

    client_id: str
    address: str
    language: str


class MemberSubscriptions(NamedTuple):
    """A member's subscriptions by topic, and its listener's kind; None if it does not tell."""

    subscriptions: Mapping[str, str]
    is_orderly: bool | None


class GroupConnections(NamedTuple):
    """Live members of a group and the topics they subscribe to."""

    members: tuple[GroupMember, ...]
    topics: tuple[str, ...]


class QueueHolding(NamedTuple):
    """A member's own report on one of its queues.

    Args:
        is_locked: the member believes that it holds the queue's lock.
        done: the offset up to which it has consumed; it commits some seconds later.
        buffered: messages that are pulled and not finished.
        in_listener: those of them that its listener is processing.
        resets: how often an admin has moved the queue since the member has it; None from members
            of other clients.
    """

    is_locked: bool
    done: int
    buffered: int
    in_listener: int
    resets: int | None


class HeldLock(NamedTuple):
    """Live queue lock of the embedded broker."""

    queue: MessageQueue
    owner: str
    epoch: int
    left_ms: int  # until it expires, unless it is renewed


class QueueEnds(NamedTuple):
    """Stored messages of one queue.

    Args:
        first: oldest offset that the broker still has.
        end: offset that the next message will get.
        last_stored_ms: store time of the newest message, ms since 1970; 0 without one.
    """

    first: int
    end: int
    last_stored_ms: int

    @property
    def messages(self) -> int:
        """Messages between the two offsets."""
        return max(self.end - self.first, 0)


def queue_ends_from_body(body: bytes) -> dict[MessageQueue, QueueEnds]:
    """Return the offsets in an answer to GET_TOPIC_STATS_INFO, by queue."""
    what = "offsetTable"
    return {
        queue: QueueEnds(
            max(_member(row, "minOffset", int, what), 0),  # -1: RocketMQ has no file of it yet
            _member(row, "maxOffset", int, what),
            _member(row, "lastUpdateTimestamp", int, what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def topic_table_from_body(body: bytes, broker_name: str) -> dict[str, QueueData]:
    """Return the topics in an answer of this broker to GET_ALL_TOPIC_CONFIG, by name."""
    what = "topicConfigTable"
    # Static topics of RocketMQ 5 come with tables whose names are numbers.
    value = load_object(_NUMBER_AS_NAME.sub(rb'\1"\2":', body), what)
    return {
        name: QueueData(
            broker_name,
            _number(row, "readQueueNums", MAX_QUEUES, what),
            _number(row, "writeQueueNums", MAX_QUEUES, what),
            _member(row, "perm", int, what),
            _optional(row, "topicSysFlag", 0, what),
        )
        for name, row in _optional(value, what, _NO_MEMBERS, what).items()
    }


def group_names_from_body(body: bytes) -> list[str]:
    """Return the names in an answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, sorted."""
    what = "subscriptionGroupTable"
    value = load_object(_NUMBER_AS_NAME.sub(rb'\1"\2":', body), what)
    return sorted(_optional(value, what, _NO_MEMBERS, what))


def group_list_from_body(body: bytes) -> list[str]:
    """Return the groups in an answer to QUERY_TOPIC_CONSUME_BY_WHO, sorted."""
    what = "groupList"
    found = _optional(load_object(body, what), what, _NOTHING, what)
    return sorted(_checked(group, str, what) for group in found)


def cluster_names_from_body(body: bytes) -> list[str]:
    """Return the clusters in an answer to GET_BROKER_CLUSTER_INFO, sorted."""
    what = "clusterAddrTable"
    value = load_object(_NUMBER_AS_NAME.sub(rb'\1"\2":', body), what)
    return sorted(_optional(value, what, _NO_MEMBERS, what))


def masters_from_body(body: bytes) -> dict[str, str]:
    """Return the master addresses in an answer to GET_BROKER_CLUSTER_INFO, by broker name."""
    what = "cluster"
    # Broker ids are member names here, and some name servers write numbers without quotes.
    value = load_object(_NUMBER_AS_NAME.sub(rb'\1"\2":', body), what)
    masters = {}
    for name, broker in _optional(value, "brokerAddrTable", _NO_MEMBERS, what).items():
        addresses = _member(broker, "brokerAddrs", dict, what)
        if "0" in addresses:
            masters[name] = _member(addresses, "0", str, what)
    return masters


def progress_from_body(body: bytes) -> dict[MessageQueue, QueueProgress]:
    """Return the progress in an answer to GET_CONSUME_STATS, by queue."""
    what = "offsetTable"
    return {
        queue: QueueProgress(
            _member(row, "brokerOffset", int, what),
            _member(row, "consumerOffset", int, what),
            _member(row, "lastTimestamp", int, what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def connections_from_body(body: bytes) -> GroupConnections:
    """Return the connections in an answer to GET_CONSUMER_CONNECTION_LIST."""
    what = "group connections"
    value = load_object(body, what)
    rows = _optional(value, "connectionSet", _NOTHING, what)
    subscribed = _optional(value, "subscriptionTable", _NO_MEMBERS, what)
    # Sorted, because brokers list them in the order of a hash table.
    members = (
        GroupMember(
            _member(row, "clientId", str, what), _member(row, "clientAddr", str, what),
            _member(row, "language", str, what),
        )
        for row in rows
    )  # fmt: skip
    return GroupConnections(
        tuple(sorted(members, key=lambda member: member.client_id)), tuple(sorted(subscribed))
    )


def holdings_from_body(body: bytes) -> dict[MessageQueue, QueueHolding]:
    """Return the queues in a member's answer to GET_CONSUMER_RUNNING_INFO."""
    what = "mqTable"
    return {
        queue: QueueHolding(
            row.get("locked") is True,
            _member(row, "commitOffset", int, what),
            _member(row, "cachedMsgCount", int, what),
            _member(row, "transactionMsgCount", int, what),
            _member(row, RESETS, int, what) if RESETS in row else None,
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def member_subscriptions_from_body(body: bytes) -> MemberSubscriptions:
    """Return the subscriptions in a member's answer to GET_CONSUMER_RUNNING_INFO."""
    what = "running info"
    # The body also has tables by message queue, which are not JSON.
    value = with_quoted_names(body, what)
    rows = _optional(value, "subscriptionSet", _NOTHING, what)
    properties = _optional(value, "properties", _NO_MEMBERS, what)
    is_orderly = properties.get("PROP_CONSUMEORDERLY")
    return MemberSubscriptions(
        {_member(row, "topic", str, what): _member(row, "subString", str, what) for row in rows},
        None if is_orderly is None else str(is_orderly).lower() == "true",
    )


def held_locks_to_body(locks: Iterable[HeldLock | None]) -> bytes:
    """Encode the answer to OMQ_QUERY_LOCKS."""
    rows = [
        queue_to_json(lock.queue)
        | {"owner": lock.owner, "epoch": lock.epoch, "leftMs": lock.left_ms}
        for lock in locks
        if lock is not None
    ]
    return orjson.dumps({"locks": rows})


def held_locks_from_body(body: bytes) -> list[HeldLock]:
    """Return the locks in an answer to OMQ_QUERY_LOCKS."""
    what = "held locks"
    rows = _optional(load_object(body, what), "locks", _NOTHING, what)
    return [
        HeldLock(
            queue_from_json(row, what),
            _member(row, "owner", str, what),
            _member(row, "epoch", int, what),
            _member(row, "leftMs", int, what),
        )
        for row in rows
    ]
