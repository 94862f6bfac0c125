"""What admin tools ask: groups, offsets, connections
(docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

import orjson

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import QueueLog, Write
from ordermq.broker.processors.topics import DATA_VERSION, existing_topic, required
from ordermq.model.message_queue import MessageQueue
from ordermq.model.stored_message import stored_at
from ordermq.remoting.bodies import load_object, queue_table_to_json, subscription_to_json
from ordermq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from ordermq.remoting.command import Command


def runtime_info(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    statistics = context.statistics
    table = {
        "brokerVersionDesc": "V5_3_3",
        "brokerVersion": "479",
        "bootTimestamp": "0",
        "msgPutTotalTodayNow": str(statistics.messages_stored),
        "msgGetTotalTodayNow": str(statistics.pulls),
        "putTps": "0.0 0.0 0.0",
        "getTransferredTps": "0.0 0.0 0.0",
        "getTransferedTps": "0.0 0.0 0.0",  # as tools of 4.x spell it; without it they fail
        # Nothing waits for a thread or a page here.
        "sendThreadPoolQueueSize": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pageCacheLockTimeMills": "0",
    }
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps({"table": table}))


def put_group(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    _, statements = context.groups.put(load_object(request.body, "group configuration"))

    done = context.when_written(connection, request)
    context.store.submit(Write(done, statements=statements))


def all_groups(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    body = {
        "dataVersion": DATA_VERSION,
        "forbiddenTable": {},
        "subscriptionGroupTable": {group.name: group.settings for group in context.groups.all()},
    }
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps(body))


def one_group(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required(request, "group")
    group = context.groups.get(name)
    if group is None:
        raise NotClaimed(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name!r} is not known")
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps(group.settings))


def delete_group(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required(request, "groupName")
    statements = [context.groups.remove(name)]
    if request.ext.get("cleanOffset", "").lower() == "true":
        statements.append(context.offsets.forget_group(name))

    done = context.when_written(connection, request)
    context.store.submit(Write(done, statements=statements))


def topic_statistics(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    topic = existing_topic(context, required(request, "topic"))
    table = {}
    for queue_id in range(topic.write_queues):
        log = context.store.find_log(topic.name, queue_id)
        table[MessageQueue(topic.name, context.config.broker_name, queue_id)] = {
            "lastUpdateTimestamp": 0 if log is None else log.last_stored_ms,
            "maxOffset": 0 if log is None else log.max_offset,
            "minOffset": 0 if log is None else log.min_offset,
        }
    body = b'{"offsetTable":' + queue_table_to_json(table) + b',"topicPutTps":0.0}'
    connection.reply(request, ResponseCode.SUCCESS, body=body)


def connections(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required(request, "consumerGroup")
    group = context.groups.get(name)
    if group is None or not group.members:
        raise NotClaimed(ResponseCode.CONSUMER_NOT_ONLINE, f"group {name!r} has no live member")
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
            topic: subscription_to_json(wanted.subscription)
            for topic, wanted in group.wanted.items()
        },
    }
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps(body))


def consume_statistics(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    name, only = required(request, "consumerGroup"), request.ext.get("topic")
    table: dict[MessageQueue, dict[str, int]] = {}
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
    record = None if log is None else context.store.record(log, offset - 1)
    return 0 if record is None else stored_at(record)


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: put_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: one_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_TOPIC_STATS_INFO: topic_statistics,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: connections,
    RequestCode.GET_CONSUME_STATS: consume_statistics,
}
