"""Handlers of routes, topics, and of the broker itself
(docs/internals/protocol.md#name-server, docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ordermq import json_text
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import (
    DATA_VERSION,
    BrokerContext,
    Handler,
    number_field,
    required_field,
)
from ordermq.broker.topics import Topic
from ordermq.errors import StoreError
from ordermq.events import EventType
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import runtime_of
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute, queue_table_to_json
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import RETRIES, real_topic


def route(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic, config = context.topics.existing(required_field(request, "topic")), context.config
    # The address that the client dialled: behind a port mapping the broker knows no better one.
    found = TopicRoute(
        (BrokerData(config.broker_name, {0: connection.local_address}, config.cluster_name),),
        (QueueData(config.broker_name, topic.read_queues, topic.write_queues, topic.perm),),
    )
    connection.reply(request, ResponseCode.SUCCESS, body=found.to_body())


def clusters(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    config = context.config
    broker: dict[str, Any] = {
        "brokerAddrs": {"0": connection.local_address},
        "brokerName": config.broker_name,
        "cluster": config.cluster_name,
        "enableActingMaster": False,
    }
    body = {
        "brokerAddrTable": {config.broker_name: broker},
        "clusterAddrTable": {config.cluster_name: [config.broker_name]},
    }
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps(body))


def topic_list(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    names = sorted(topic.name for topic in context.topics.all())
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps({"topicList": names}))


def update(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    context.topics.put(
        Topic(
            required_field(request, "topic"),
            number_field(request, "readQueueNums"),
            number_field(request, "writeQueueNums"),
            number_field(request, "perm") & 7,  # read, write, inherit
            request.ext.get("order", "").lower() == "true",
        ),
        context.when_durable(connection, request),
    )


def delete(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required_field(request, "topic")
    # With it, as in RocketMQ: what groups that pop did not acknowledge would come in its next life.
    repeats = (real_topic(name, group, RETRIES) for group in context.offsets.groups(name))
    names = [*filter(context.topics.sendable, repeats), name]
    answer = context.when_durable(connection, request)
    ended: list[StoreError | None] = []

    def deleted(topic: str, queues: int, error: StoreError | None) -> None:
        if error is None:
            # It is told of every group: what is stored under this name later begins at 0 again.
            for queue_id in range(queues):
                context.history.record(
                    EventType.RESET, topic=topic, broker=context.config.broker_name,
                    queue=queue_id, off=0,
                )  # fmt: skip
            context.offsets.forget_topic(topic)
            context.pop_leases.forget_topic(topic)
            context.open_pops.forget(topic=topic)
            # Whoever waits for a message of the topic learns now that there will be none.
            context.long_polling.answer_topic(topic)
            context.held_pops.wake_topic(topic)
        ended.append(error)
        if len(ended) == len(names):
            answer(next(filter(None, ended), None))

    for each in names:
        topic = context.topics.get(each)
        queues = 0 if topic is None else topic.write_queues
        context.topics.remove(each, partial(deleted, each, queues))


def delete_route(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    # Tools delete a topic on the broker, then on the name server: here the first did both.
    connection.reply(request, ResponseCode.SUCCESS)


def one_topic(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic = context.topics.existing(required_field(request, "topic"))
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps(topic.to_json()))


def all_topics(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    table = {topic.name: topic.to_json() for topic in context.topics.all()}
    body = json_text.dumps({"dataVersion": DATA_VERSION, "topicConfigTable": table})
    connection.reply(request, ResponseCode.SUCCESS, {"totalTopicNum": str(len(table))}, body)


def topic_statistics(
    context: BrokerContext, connection: BrokerConnection, request: Command
) -> None:
    topic = context.topics.existing(required_field(request, "topic"))
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


def runtime_info(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    statistics, clock = context.statistics, context.clock
    uptime_ms = clock.now_ms() - context.begun_ms
    table = {
        # The version whose requests the broker answers; tools enable features by it.
        "brokerVersionDesc": "V5_3_3",
        "brokerVersion": "479",
        # Members add the two, and have the clock that store times are of.
        "bootTimestamp": str(clock.wall_ms() - uptime_ms // 1_000 * 1_000),
        "runtime": runtime_of(uptime_ms),
        "msgPutTotalTodayNow": str(statistics.messages_stored),
        "msgGetTotalTodayNow": str(statistics.pulls),
        "putTps": "0.0 0.0 0.0",
        "getTransferredTps": "0.0 0.0 0.0",
        "getTransferedTps": "0.0 0.0 0.0",  # the spelling of 4.x tools, which require it
        # There are no thread pools and no page cache of the broker's own to wait for.
        "sendThreadPoolQueueSize": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pageCacheLockTimeMills": "0",
    }
    connection.reply(request, ResponseCode.SUCCESS, body=json_text.dumps({"table": table}))


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
    RequestCode.GET_BROKER_CLUSTER_INFO: clusters,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topic_list,
    RequestCode.UPDATE_AND_CREATE_TOPIC: update,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_route,
    RequestCode.GET_TOPIC_CONFIG: one_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
    RequestCode.GET_TOPIC_STATS_INFO: topic_statistics,
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
}
