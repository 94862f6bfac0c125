"""Routes and topics (docs/internals/protocol.md#name-server,
docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

import orjson

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.context import BrokerContext, Handler, NotClaimed
from ordermq.broker.group_commit import Write
from ordermq.broker.name_server import cluster_info, topic_route
from ordermq.broker.topics import Topic
from ordermq.errors import ProtocolError, StoreError
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command

DATA_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}


def required(request: Command, name: str) -> str:
    """A text field.

    Raises: ProtocolError: it is missing.
    """
    value = request.ext.get(name)
    if value is None:
        raise ProtocolError(f"request {request.code}: field {name!r} is missing")
    return value


def number(request: Command, name: str) -> int:
    """A number field.

    Raises: ProtocolError: it is missing or none.
    """
    text = required(request, name)
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(
            f"request {request.code}: field {name!r} is {text!r}, not a number"
        ) from None


def existing_topic(context: BrokerContext, name: str) -> Topic:
    """A topic by name.

    Raises: NotClaimed: there is none.
    """
    topic = context.topics.get(name)
    if topic is None:
        raise NotClaimed(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {name!r} does not exist: create it, or send a message to it first",
        )
    return topic


def save_topics(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    """Answer with success once every new topic is durable."""
    topics, statements = context.topics.unsaved()

    def finish(error: StoreError | None) -> None:
        if error is not None:
            context.refuse_write(connection, request, error)
            return
        context.topics.saved(topics)
        connection.reply(request, ResponseCode.SUCCESS)

    context.store.submit(Write(finish, statements=statements))


def route(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic = existing_topic(context, required(request, "topic"))
    body = topic_route(context.config, topic, connection.local_address).to_body()
    connection.reply(request, ResponseCode.SUCCESS, body=body)


def clusters(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    body = cluster_info(context.config, connection.local_address)
    connection.reply(request, ResponseCode.SUCCESS, body=body)


def topic_list(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    names = sorted(topic.name for topic in context.topics.all())
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps({"topicList": names}))


def update(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    context.topics.put(
        Topic(
            required(request, "topic"),
            number(request, "readQueueNums"),
            number(request, "writeQueueNums"),
            number(request, "perm") & 7,
            request.ext.get("order", "").lower() == "true",
        )
    )
    save_topics(context, connection, request)


def delete(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    name = required(request, "topic")
    context.topics.remove(name)
    context.offsets.forget_topic(name)

    done = context.when_written(connection, request)
    context.store.submit(Write(done, statements=context.store.forget_topic(name)))


def delete_route(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    # Name server and broker are one here: 215 has done it already.
    connection.reply(request, ResponseCode.SUCCESS)


def one_topic(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    topic = existing_topic(context, required(request, "topic"))
    connection.reply(request, ResponseCode.SUCCESS, body=orjson.dumps(topic.to_json()))


def all_topics(context: BrokerContext, connection: BrokerConnection, request: Command) -> None:
    table = {topic.name: topic.to_json() for topic in context.topics.all()}
    body = orjson.dumps({"dataVersion": DATA_VERSION, "topicConfigTable": table})
    connection.reply(request, ResponseCode.SUCCESS, {"totalTopicNum": str(len(table))}, body)


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
    RequestCode.GET_BROKER_CLUSTER_INFO: clusters,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topic_list,
    RequestCode.UPDATE_AND_CREATE_TOPIC: update,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_route,
    RequestCode.GET_TOPIC_CONFIG: one_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
}
