"""Handlers of consumer groups: heartbeats, members, assignments, settings, statistics
(docs/internals/protocol.md#membership, docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

from ordermq import json_text
from ordermq.broker.connection import BrokerConnection, RequestRefused
from ordermq.broker.context import DATA_VERSION, BrokerContext, Handler, required_field
from ordermq.broker.groups import BROADCASTING, Member
from ordermq.broker.store import QueueLog, Write
from ordermq.errors import StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, retry_topic
from ordermq.model.stored_message import stored_at
from ordermq.remoting.bodies import (
    Heartbeat,
    client_ids_to_body,
    load_object,
    queue_table_to_json,
    queue_to_json,
    subscription_to_json,
)
from ordermq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import GroupHeader, UnregisterHeader


def heartbeat(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    beat = Heartbeat.from_body(request.body)
    # All names are checked before anything is registered: a heartbeat counts whole or not.
    for data in beat.consumers:
        check_group(data.group)
    needs: list[Write] = []
    for data in beat.consumers:
        # Before the reply: a consumer looks up this route once, and then only after 20 s.
        name = retry_topic(data.group)
        context.topics.keep(context.topics.internal(name))
        if context.topics.has_changes:
            needs += context.topics.builds_on(name)
    now_ms = context.clock.now_ms()
    for group_name in beat.producer_groups:
        context.producers.register(group_name, beat.client_id, connection, now_ms)
    for data in beat.consumers:
        member = Member(beat.client_id, connection, request.language, request.version, now_ms)
        group, is_changed = context.groups.register(member, data)
        if is_changed:
            group.notify_members()

    def answer(error: StoreError | None) -> None:
        # Also if the disk is full: a heartbeat says who is alive, and members may read. The next
        # one creates the retry topic.
        connection.reply(request, ResponseCode.SUCCESS, {"IS_SUPPORT_HEART_BEAT_V2": "false"})

    if needs:
        context.store.submit(Write(answer, needs=needs))
    else:
        answer(None)


def _leave(
    context: BrokerContext, connection: BrokerConnection, group_name: str, client_id: str
) -> None:
    group = context.groups.leave(group_name, connection, client_id)
    if group is not None:
        group.notify_members()


def unregister(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    header = UnregisterHeader.from_ext(request.ext)
    if header.consumer_group:
        _leave(context, connection, header.consumer_group, header.client_id)
    if header.producer_group:
        context.producers.leave(header.producer_group, connection)
    connection.reply(request, ResponseCode.SUCCESS)


def member_list(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = GroupHeader.from_ext(request.ext).group
    group = context.groups.get(name)
    ids = [] if group is None else group.client_ids()
    if not ids:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"group {name!r} has no live member")
    connection.reply(request, ResponseCode.SUCCESS, body=client_ids_to_body(ids))


def check_config(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    subscription = load_object(request.body, "client configuration").get("subscriptionData")
    kind = subscription.get("expressionType") if isinstance(subscription, dict) else None
    if kind not in (None, "TAG"):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the broker does not filter by {kind}: subscribe with a tag expression",
        )
    connection.reply(request, ResponseCode.SUCCESS)


def assignment(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Assign a topic's queues to members by the default strategy, as clients do it themselves
    (docs/internals/semantics.md#rebalance)."""
    asked = load_object(request.body, "assignment query")
    client_id, topic = str(asked.get("clientId")), context.topics.existing(str(asked.get("topic")))
    group = context.groups.get(str(asked.get("consumerGroup")))
    count = topic.read_queues
    if asked.get("messageModel") == BROADCASTING:
        assigned = range(count)
    else:
        # Sorted as Java sorts strings, by UTF-16 units: every member computes the same order.
        ids = sorted(group.client_ids() if group else (), key=lambda id_: id_.encode("utf-16-be"))
        if client_id not in ids:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"client {client_id!r} is not a member of the group: send a heartbeat first",
            )
        index, (share, rest) = ids.index(client_id), divmod(count, len(ids))
        start = index * share + min(index, rest)
        assigned = range(start, start + share + (index < rest))
    queues = [MessageQueue(topic.name, context.config.broker_name, number) for number in assigned]
    body = {
        "messageQueueAssignments": [
            {"messageQueue": queue_to_json(queue), "mode": "PULL"} for queue in queues
        ]
    }
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps(body))


def put_group(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    settings = load_object(request.body, "group configuration")
    context.groups.put(settings, context.when_durable(connection, request))


def all_groups(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    # After a restart a group without settings of its own is known by its offsets only.
    for name in context.offsets.groups():
        context.groups.ensure(name)
    body = {
        "dataVersion": DATA_VERSION,
        "forbiddenTable": {},
        "subscriptionGroupTable": {group.name: group.settings for group in context.groups.all()},
    }
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps(body))


def groups_of_topic(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required_field(request, "topic")
    found = context.offsets.groups(name) | {
        group.name
        for group in context.groups.all()
        if group.members and name in group.subscriptions
    }
    body = json_text.dumps({"groupList": sorted(found)})
    connection.reply(request, ResponseCode.SUCCESS, body=body)


def one_group(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required_field(request, "group")
    group = context.groups.get(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name!r} is not known"
        )
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps(group.settings))


def delete_group(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required_field(request, "groupName")
    if request.ext.get("cleanOffset", "").lower() != "true":
        # Offsets stay, as in Java: the group continues from them if it is created again.
        context.groups.remove(name, context.when_durable(connection, request))
        return

    def deleted() -> None:
        context.offsets.forget_group(name)
        context.pop_leases.forget_group(name)
        context.open_pops.forget(group=name)
        connection.reply(request, ResponseCode.SUCCESS)

    done = context.when_durable(connection, request, deleted)
    tables = context.offsets, context.pop_leases, context.open_pops
    context.groups.remove(name, done, [each.deletion(name) for each in tables])


def connections(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required_field(request, "consumerGroup")
    group = context.groups.get(name)
    if group is None or not group.members:
        raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"group {name!r} has no live member")
    # Tools print the language of each member; an unknown code must not break the list.
    names = {code.value: code.name for code in LanguageCode}
    body = {
        "connectionSet": [
            {
                "clientAddr": member.connection.peer,
                "clientId": member.client_id,
                "language": names.get(member.language, "OTHER"),
                "version": member.version,
            }
            for member in group.members.values()
        ],
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {
            topic: subscription_to_json(registered.subscription)
            for topic, registered in group.subscriptions.items()
        },
    }
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps(body))


def consume_statistics(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    name, only = required_field(request, "consumerGroup"), request.ext.get("topic")
    table: dict[MessageQueue, dict[str, int]] = {}
    # Without queues that have no committed offset: only a member knows where it starts there.
    for (topic, queue_id), offset in sorted(context.offsets.of_group(name).items()):
        log = context.store.find_log(topic, queue_id)
        if only in (None, "", topic):
            table[MessageQueue(topic, context.config.broker_name, queue_id)] = {
                "brokerOffset": 0 if log is None else log.max_offset,
                "consumerOffset": offset,
                "lastTimestamp": _last_consumed_ms(context, log, offset),
                "pullOffset": offset,
            }
    body = b'{"consumeTps":0.0,"offsetTable":' + queue_table_to_json(table) + b"}"
    connection.reply(request, ResponseCode.SUCCESS, body=body)


def _last_consumed_ms(context: BrokerContext, log: QueueLog | None, offset: int) -> int:
    # The store time of the last message done, from which tools compute how far a group is behind.
    record = None if log is None else context.store.record(log, offset - 1)
    return 0 if record is None else stored_at(record)


HANDLERS: dict[int, Handler] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: member_list,
    RequestCode.CHECK_CLIENT_CONFIG: check_config,
    RequestCode.QUERY_ASSIGNMENT: assignment,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: put_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: one_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups_of_topic,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: connections,
    RequestCode.GET_CONSUME_STATS: consume_statistics,
}
