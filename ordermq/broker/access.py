"""Access of accounts to topics and groups, in the words of RocketMQ's ACL 2
(docs/security.md#policies).

An account without policies may do everything. One with policies may do what they allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ordermq.broker.context import BrokerContext
from ordermq.config import AccessPolicy
from ordermq.model import properties as props
from ordermq.model.names import AUTO_CREATE_TOPIC, DEAD_LETTER_PREFIX, RETRY_PREFIX, reply_topic
from ordermq.model.stored_message import StoredMessage
from ordermq.remoting.bodies import Heartbeat, LockBatch, load_object
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import RETRIES, acks_from_body, real_topic
from ordermq.remoting.signing import ACCESS_KEY

_OFFSET_AT = -16  # a stored message's id ends with its physical offset, 16 hex digits


class Need(NamedTuple):
    """Access that a request needs: one of some actions to a resource."""

    kind: str
    name: str
    actions: tuple[str, ...]


Needs = Iterable[Need]


class Access:
    """Access rules of a broker's accounts.

    Args:
        policies: by access key.
    """

    def __init__(self, policies: Mapping[str, Sequence[AccessPolicy]]) -> None:
        self._policies = policies

    def refusal_reason(self, context: BrokerContext, request: Command) -> str | None:
        """Return the reason to refuse a signed request; None if its account may make it.

        Raises: ProtocolError: its body is malformed.
        """
        access_key = request.ext.get(ACCESS_KEY, "")
        policies = self._policies.get(access_key)
        if policies is None:
            return None
        for need in needs_of(context, request):
            if not _is_allowed(policies, need):
                wanted = " or ".join(need.actions)
                return (
                    f"account {access_key!r} has no permission for {wanted} of "
                    f"{need.kind.lower()} {need.name!r}: add it to its policies"
                )
        return None


def _is_allowed(policies: Sequence[AccessPolicy], need: Need) -> bool:
    # As in RocketMQ: the most specific policies about any of the actions decide, for all of them.
    # Of two that are alike, the denying one.
    found = [
        (each.specificity, each, action)
        for action in need.actions
        for each in policies
        if each.matches(need.kind, need.name, action)
    ]
    highest = max((rank for rank, _, _ in found), default=None)
    last = [(each.is_denial, action) for rank, each, action in found if rank == highest]
    denied = {action for is_denial, action in last if is_denial}
    return any(action not in denied for _, action in last)


def needs_of(context: BrokerContext, request: Command) -> Needs:
    """Return what a request needs, all of it; nothing for requests that every account may make."""
    needs = NEEDS.get(request.code)
    return () if needs is None else needs(context, request)


def _topic(name: str, *actions: str) -> Need:
    """Return the need of a topic, or of the group that a retry or dead-letter topic belongs to."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            # Consumers send to it, too: what they could not process.
            wanted = dict.fromkeys("SUB" if each == "PUB" else each for each in actions)
            return _group(name.removeprefix(prefix), *wanted)
    return Need("Topic", name, actions)


def _group(name: str, *actions: str) -> Need:
    return Need("Group", name, actions)


# A missing field is "", which only `*` matches; the handler names it.


def _by_topic(*actions: str, field: str = "topic") -> Callable[[BrokerContext, Command], Needs]:
    return lambda _, request: (_topic(request.ext.get(field, ""), *actions),)


def _by_group(*actions: str, field: str = "consumerGroup") -> Callable[..., Needs]:
    return lambda _, request: (_group(request.ext.get(field, ""), *actions),)


def _by_both(
    *actions: str, group_field: str = "consumerGroup"
) -> Callable[[BrokerContext, Command], Needs]:
    def needs(context: BrokerContext, request: Command) -> Needs:
        ext = request.ext
        group = ext.get(group_field, "")
        # The topic whose popped messages a group got again stands for that of the repetitions.
        topic = ext.get("topic", "").removeprefix(real_topic("", group, RETRIES))
        return _topic(topic, *actions), _group(group, *actions)

    return needs


def _route(context: BrokerContext, request: Command) -> Needs:
    name = request.ext.get("topic", "")
    # Producers ask for the first one before they create a topic, and for the other one before they
    # request or reply, which every account may do.
    if name not in (AUTO_CREATE_TOPIC, reply_topic(context.config.cluster_name)):
        yield _topic(name, "PUB", "SUB", "GET")


def _list(context: BrokerContext, request: Command) -> Needs:
    return (Need("Cluster", context.config.cluster_name, ("LIST",)),)


def _put_group(context: BrokerContext, request: Command) -> Needs:
    name = str(load_object(request.body, "group configuration").get("groupName") or "")
    return (_group(name, "CREATE" if context.groups.get(name) is None else "UPDATE"),)


def _heartbeat(context: BrokerContext, request: Command) -> Needs:
    for data in Heartbeat.from_body(request.body).consumers:
        yield _group(data.group, "SUB")
        for subscription in data.subscriptions:
            yield _topic(subscription.topic, "SUB")


def _unregister(context: BrokerContext, request: Command) -> Needs:
    if name := request.ext.get("consumerGroup"):
        yield _group(name, "SUB")


def _assignment(context: BrokerContext, request: Command) -> Needs:
    asked = load_object(request.body, "assignment query")
    yield _topic(str(asked.get("topic")), "SUB")
    yield _group(str(asked.get("consumerGroup")), "SUB")


def _locks(*actions: str) -> Callable[[BrokerContext, Command], Needs]:
    def needs(context: BrokerContext, request: Command) -> Needs:
        batch = LockBatch.from_body(request.body)
        yield _group(batch.group, *actions)
        for topic in dict.fromkeys(queue.topic for queue in batch.queues):
            yield _topic(topic, *actions)

    return needs


def _batch_ack(context: BrokerContext, request: Command) -> Needs:
    for ack in acks_from_body(request.body):
        yield _group(ack.group, "SUB")
        yield _topic(ack.topic, "SUB")


def _end_transaction(context: BrokerContext, request: Command) -> Needs:
    # The topic of the half message counts, whatever the request names; clients of 4.x name none.
    return _stored(context, request.ext.get("commitLogOffset", ""), 10, "PUB")


def _send_back(context: BrokerContext, request: Command) -> Needs:
    yield _group(request.ext.get("group", ""), "SUB")
    # Otherwise anybody could read any topic by way of the retry topic of a group of their own.
    yield from _stored(context, request.ext.get("offset", ""), 10, "SUB")


def _view(context: BrokerContext, request: Command) -> Needs:
    return _stored(context, request.ext.get("offset", ""), 10, "GET")


def _consume_directly(context: BrokerContext, request: Command) -> Needs:
    yield _group(request.ext.get("consumerGroup", ""), "UPDATE")
    yield from _stored(context, request.ext.get("msgId", "")[_OFFSET_AT:], 16, "GET", "SUB")


def _stored(context: BrokerContext, offset: str, base: int, *actions: str) -> Needs:
    """Return the need of a stored message's topic; none if there is no such message."""
    try:
        record = context.store.record_at(int(offset, base))
    except ValueError:
        return
    if record is not None:
        message = StoredMessage.read(record)
        # A waiting message names its topic there.
        real = props.decode_bytes(message.properties).get(props.REAL_TOPIC)
        is_waiting = context.topics.sendable(message.topic) is None and real is not None
        yield _topic(real if is_waiting and real is not None else message.topic, *actions)


NEEDS: dict[int, Callable[[BrokerContext, Command], Needs]] = {
    RequestCode.SEND_MESSAGE: _by_topic("PUB"),
    RequestCode.SEND_MESSAGE_V2: _by_topic("PUB", field="b"),
    RequestCode.SEND_BATCH_MESSAGE: _by_topic("PUB", field="b"),
    RequestCode.RECALL_MESSAGE: _by_topic("PUB"),
    RequestCode.END_TRANSACTION: _end_transaction,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.PULL_MESSAGE: _by_both("SUB"),
    RequestCode.LITE_PULL_MESSAGE: _by_both("SUB"),
    RequestCode.POP_MESSAGE: _by_both("SUB"),
    RequestCode.ACK_MESSAGE: _by_both("SUB"),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _by_both("SUB"),
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.QUERY_MESSAGE: _by_topic("GET", "SUB"),
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.QUERY_CONSUMER_OFFSET: _by_both("GET", "SUB"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _by_both("SUB", "UPDATE"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _by_both("UPDATE", group_field="group"),
    RequestCode.GET_MAX_OFFSET: _by_topic("GET"),
    RequestCode.GET_MIN_OFFSET: _by_topic("GET"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _by_topic("GET"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _by_topic("GET"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _by_group("GET", "SUB"),
    RequestCode.LOCK_BATCH_MQ: _locks("SUB"),
    RequestCode.UNLOCK_BATCH_MQ: _locks("SUB"),
    RequestCode.OMQ_QUERY_LOCKS: _locks("GET", "SUB"),
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _list,
    RequestCode.GET_ALL_TOPIC_CONFIG: _list,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _list,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _by_topic("CREATE"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _by_topic("DELETE"),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _by_topic("DELETE"),
    RequestCode.GET_TOPIC_CONFIG: _by_topic("GET"),
    RequestCode.GET_TOPIC_STATS_INFO: _by_topic("GET"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _by_topic("GET"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _put_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _by_group("DELETE", field="groupName"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _by_group("GET", field="group"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _by_group("GET"),
    RequestCode.GET_CONSUME_STATS: _by_group("GET"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _by_group("GET"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
}
