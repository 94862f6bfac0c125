"""Clients and their groups (docs/internals/protocol.md#membership)."""

from __future__ import annotations

import orjson

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import Write
from ordermq.broker.groups import Group, Member
from ordermq.broker.processors.topics import existing_topic
from ordermq.errors import StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, retry_topic
from ordermq.remoting.bodies import Heartbeat, client_ids_to_body, load_object, queue_to_json
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command
from ordermq.remoting.framing import encode
from ordermq.remoting.headers import GroupHeader, UnregisterHeader

_BROADCASTING = "BROADCASTING"


def heartbeat(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    beat = Heartbeat.from_body(request.body)
    for data in beat.consumers:
        check_group(data.group)
    now_ms = context.clock.now_ms()
    for group_name in beat.producer_groups:
        context.producers.register(group_name, beat.client_id, connection, now_ms)
    for data in beat.consumers:
        # Before the answer: a consumer looks for the route once, then only after 20 s.
        context.topics.ensure_internal(retry_topic(data.group))
        member = Member(beat.client_id, connection, request.language, request.version, now_ms)
        group, is_changed = context.groups.register(member, data)
        if is_changed:
            notify_members(group)
    if context.topics.has_unsaved:
        _save_topics_soon(context)
    connection.reply(request, ResponseCode.SUCCESS, {"IS_SUPPORT_HEART_BEAT_V2": "false"})


def _save_topics_soon(context: BrokerContext) -> None:
    topics, statements = context.topics.unsaved()

    def finish(error: StoreError | None) -> None:
        # After an error the next write that needs one of them carries it.
        if error is None:
            context.topics.saved(topics)

    context.store.submit(Write(finish, statements=statements))


def notify_members(group: Group) -> None:
    """Tell every member that the members changed, the newcomer included."""
    if group.message_model == _BROADCASTING:
        return
    for connection in group.connections():
        notify(connection, group.name)


def notify(connection: BrokerConnection, group: str) -> None:
    """Ask one client to look at a group's queues again."""
    request = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader(group).to_ext())
    request.flag = ONEWAY_FLAG
    connection.send(encode(request))


def unregister(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = UnregisterHeader.from_ext(request.ext)
    if header.consumer_group:
        group = context.groups.leave(header.consumer_group, connection, header.client_id)
        if group is not None:
            notify_members(group)
    if header.producer_group:
        context.producers.leave(header.producer_group, connection)
    connection.reply(request, ResponseCode.SUCCESS)


def member_list(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = GroupHeader.from_ext(request.ext).group
    group = context.groups.get(name)
    ids = [] if group is None else group.client_ids()
    if not ids:
        raise NotClaimed(ResponseCode.SYSTEM_ERROR, f"group {name!r} has no live member")
    connection.reply(request, ResponseCode.SUCCESS, body=client_ids_to_body(ids))


def check_config(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    subscription = load_object(request.body, "client configuration").get("subscriptionData")
    kind = subscription.get("expressionType") if isinstance(subscription, dict) else None
    if kind not in (None, "TAG"):
        raise NotClaimed(
            ResponseCode.SYSTEM_ERROR,
            f"the broker does not filter by {kind}: subscribe with a tag expression",
        )
    connection.reply(request, ResponseCode.SUCCESS)


def assignment(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Share a topic's queues among the members, as clients do it themselves
    (docs/internals/semantics.md#rebalance)."""
    asked = load_object(request.body, "assignment query")
    client_id, topic = str(asked.get("clientId")), existing_topic(context, str(asked.get("topic")))
    group = context.groups.get(str(asked.get("consumerGroup")))
    count = topic.read_queues
    if asked.get("messageModel") == _BROADCASTING:
        mine = range(count)
    else:
        # Ids compare as Java's strings do, by UTF-16 units.
        ids = sorted(group.client_ids() if group else (), key=lambda id_: id_.encode("utf-16-be"))
        if client_id not in ids:
            raise NotClaimed(
                ResponseCode.SYSTEM_ERROR,
                f"client {client_id!r} is no member of the group: send a heartbeat first",
            )
        index, (share, rest) = ids.index(client_id), divmod(count, len(ids))
        start = index * share + min(index, rest)
        mine = range(start, start + share + (index < rest))
    queues = [MessageQueue(topic.name, context.config.broker_name, number) for number in mine]
    body = {
        "messageQueueAssignments": [
            {"messageQueue": queue_to_json(queue), "mode": "PULL"} for queue in queues
        ]
    }
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps(body))


HANDLERS: dict[int, Handler] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: member_list,
    RequestCode.CHECK_CLIENT_CONFIG: check_config,
    RequestCode.QUERY_ASSIGNMENT: assignment,
}
