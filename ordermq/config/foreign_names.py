"""Names that other clients have for settings, arguments and methods, and what to write instead.

The only table of them: errors read it, and the pages for readers of those clients, which
ci/settings_page.py writes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple


class ForeignName(NamedTuple):
    """A setting or an argument of another client.

    Args:
        client: the client whose documentation has the name.
        instead: what does the same here, the best first; empty: nothing does.
        remark: the difference, or why there is nothing like it.
    """

    client: str
    instead: tuple[str, ...] = ()
    remark: str = ""

    def explained(self, known: frozenset[str]) -> str:
        """Return the rest of an error's sentence: whose name it is and what to give.

        Args: known: settings and arguments of the client that was given the name.
        """
        return f": that is a name of {self.client}; here {self.instead_of(known)}"

    def instead_of(self, known: frozenset[str]) -> str:
        """Return what to give."""
        names = [name for name in self.instead if name in known] or self.instead[:1]
        here = ", ".join(f"{name}=" for name in names) or "no such setting"
        return here + (f" ({self.remark})" if self.remark else "")


def _kafka(*instead: str, remark: str = "") -> ForeignName:
    return ForeignName("Kafka's clients", instead, remark)


def _java(*instead: str, remark: str = "") -> ForeignName:
    return ForeignName("RocketMQ's Java client", instead, remark)


def _server(*instead: str, remark: str = "") -> ForeignName:
    return ForeignName("RocketMQ's broker", instead, remark)


def _shared(*instead: str, remark: str = "") -> ForeignName:
    return ForeignName("Kafka's clients and RocketMQ's Java client", instead, remark)


def _pika(*instead: str, remark: str = "") -> ForeignName:
    return ForeignName("pika", instead, remark)


def _celery(*instead: str, remark: str = "") -> ForeignName:
    return ForeignName("Celery", instead, remark)


_ONE_SELECTOR = "of send; a producer has one selector, which is selector= of Producer"

# As the other client's documentation for Python spells them, or Java's; `find_foreign_name` knows
# the other spellings.
FOREIGN_NAMES: Final = {
    "bootstrap_servers": _kafka("name_servers", remark="host:port of RocketMQ's name servers"),
    "metadata_broker_list": _kafka("name_servers", remark="host:port of RocketMQ's name servers"),
    "group_id": _kafka("group", remark="the first argument"),
    "client_id": _kafka("instance_name", remark="the id itself is made unique"),
    "group_instance_id": _kafka(
        remark="after a hand-over a restarted member has queues at once; after kill -9 their locks "
        "expire first, in lock_max_live_ms"
    ),
    "auto_offset_reset": _kafka(
        "consume_from_where",
        remark="'first_offset' for earliest, 'last_offset' for latest; with both a new group "
        "gets all of a queue that still has its first message",
    ),
    "enable_auto_commit": _kafka("auto_commit"),
    "auto_commit_interval_ms": _kafka("commit_interval_ms"),
    "max_poll_records": _kafka("poll_batch_size", "consume_message_batch_max_size"),
    "max_poll_interval_ms": _kafka(
        "consume_timeout_ms", remark="it only reports: a slow listener does not lose its queue"
    ),
    "session_timeout_ms": _kafka(
        "lock_max_live_ms", remark="30 s; at most half of the brokers' lock time, which is 60 s"
    ),
    "fetch_max_bytes": _kafka("pull_batch_bytes"),
    "max_partition_fetch_bytes": _kafka("pull_batch_bytes"),
    "fetch_max_wait_ms": _kafka("broker_suspend_ms"),
    "fetch_min_bytes": _kafka(remark="a broker answers as soon as there is a message"),
    "queued_max_messages_kbytes": _kafka("pull_threshold_size_for_queue_mib"),
    "consumer_timeout_ms": _kafka("poll_timeout_ms", remark="or the argument of poll and batches"),
    "partition_assignment_strategy": _kafka("allocation"),
    "value_deserializer": _kafka("codec", remark="makes the values of message.value()"),
    "value_serializer": _kafka("codec", remark="makes the bodies of producer.message()"),
    "key_deserializer": _kafka(remark="message.sharding_key is a str"),
    "key_serializer": _kafka(remark="a sharding key is a str or an int"),
    "isolation_level": _kafka(remark="a message of a transaction is visible once it is committed"),
    "metadata_max_age_ms": _kafka("route_interval_ms"),
    "reconnect_backoff_ms": _kafka("reconnect_delay_ms"),
    "acks": _kafka(remark="a receipt tells the status; brokers are set to flush and replicate"),
    "retries": _kafka("retry_times", "max_attempts"),
    "retry_backoff_ms": _kafka("retry_delay_ms", "suspend_current_queue_time_ms"),
    "linger_ms": _kafka(remark="messages that arrive while a request is in flight leave together"),
    "batch_size": _kafka("max_batch_bytes", "pull_batch_size"),
    "max_request_size": _kafka("max_message_bytes"),
    "compression_type": _kafka("compress_type"),
    "delivery_timeout_ms": _kafka("send_timeout_ms", remark="of one attempt of retry_times + 1"),
    "enable_idempotence": _kafka(
        remark="a message that is sent again keeps its id; consumers drop copies by deduplicate="
    ),
    "transactional_id": _kafka(remark="use TransactionProducer.send_in_transaction"),
    "max_in_flight_requests_per_connection": _kafka(remark="one request per queue"),
    "partitioner": _kafka("selector"),
    "security_protocol": _kafka("tls", remark="tls=True, and access_key= for an account"),
    "sasl_plain_username": _kafka("access_key"),
    "sasl_username": _kafka("access_key"),
    "sasl_plain_password": _kafka("secret_key"),
    "sasl_password": _kafka("secret_key"),
    "sasl_mechanism": _kafka("access_key", remark="requests are signed with HMAC-SHA1"),
    "ssl_context": _kafka("tls_ca_file", remark="with tls=True"),
    "ssl_cafile": _kafka("tls_ca_file"),
    "ssl_ca_location": _kafka("tls_ca_file"),
    "ssl_certfile": _kafka("tls_certificate"),
    "ssl_keyfile": _kafka("tls_key"),
    "rebalance_listener": _kafka("on_assigned", "on_revoked"),
    "key": _kafka(
        "sharding_key",
        remark="of send: it chooses the queue; keys= of Message are for finding it",
    ),
    "value": _kafka("body", remark="of Message, bytes; producer.message() makes them of a value"),
    "headers": _kafka("properties", remark="str to str"),
    "partition": _kafka("queue", remark="of send, a MessageQueue"),
    "timestamp_ms": _kafka(remark="the broker stamps a message when it stores it"),
    "on_delivery": _kafka(remark="producer.send_nowait() returns a future"),
    "callback": _shared(
        remark="producer.send_nowait() returns a future, with add_done_callback(); a consumer's "
        "function is decorated: @consumer.orderly"
    ),
    "topics": _kafka("topic", remark="one call of subscribe per topic"),
    "pattern": _kafka("topic", remark="one call of subscribe per topic; no patterns of names"),
    "timeout": _shared(
        "timeout_ms",
        "timeout_s",
        "send_timeout_ms",
        remark="the name says the unit; a send has its producer's send_timeout_ms",
    ),
    "max_records": _kafka("poll_batch_size", remark="a setting of the consumer"),
    "num_partitions": _kafka("queues", remark="of create_topic, at each broker"),
    "partitions": _kafka("queues", remark="of create_topic, at each broker"),
    "replication_factor": _kafka(remark="the replicas of a broker have all of its topics"),
    "namesrvAddr": _java("name_servers"),
    "nameServer": _java("name_servers"),
    "consumerGroup": _java("group", remark="the first argument"),
    "producerGroup": _java("group", remark="the first argument"),
    "consumeThreadMin": _java("consume_thread_count"),
    "consumeThreadMax": _java("consume_thread_count"),
    "persistConsumerOffsetInterval": _java("commit_interval_ms"),
    "pullTimeDelayMillsWhenException": _java("pull_delay_on_error_ms"),
    "allocateMessageQueueStrategy": _java("allocation"),
    "messageListener": _java(remark="decorate a function: @consumer.orderly"),
    "sendMsgTimeout": _java("send_timeout_ms"),
    "retryTimesWhenSendFailed": _java("retry_times"),
    "retryTimesWhenSendAsyncFailed": _java("retry_times"),
    "maxMessageSize": _java("max_message_bytes"),
    "pollNameServerInterval": _java("route_interval_ms"),
    "heartbeatBrokerInterval": _java("heartbeat_interval_ms"),
    "useTLS": _java("tls"),
    "enableTrace": _java("enable_msg_trace"),
    "traceTopic": _java("customized_trace_topic"),
    "tag": _java("tags", remark="one tag"),
    "subExpression": _java("expression"),
    "messageQueue": _java("queue"),
    "shardingKey": _java("sharding_key", remark="of send"),
    "messageGroup": _java("sharding_key", remark="of send"),
    "delayTimeLevel": _java("delay_level"),
    "deliverTimeMs": _java("deliver_at_ms"),
    "deliveryTimestamp": _java("deliver_at_ms"),
    "pullInterval": _java("pull_interval_ms"),
    "consumeTimeout": _java("consume_timeout_ms", remark="Java's number is in minutes"),
    "consumeTimestamp": _java("consume_timestamp_ms", remark="ms since 1970, or a datetime"),
    "maxMessageSizeInBytes": _java("max_message_bytes"),
    "rpcHook": _java("access_key", "secret_key"),
    "aclHook": _java("access_key", "secret_key"),
    "sessionCredentialsProvider": _java("access_key", "secret_key"),
    "credentials": _java("access_key", "secret_key"),
    "transactionListener": _java("listener", remark="of TransactionProducer; or execute=, check="),
    "arg": _java("sharding_key", remark=_ONE_SELECTOR),
    "selector": _java("sharding_key", remark=_ONE_SELECTOR),
    "messageQueueSelector": _java("selector", remark="of Producer: one for all its sends"),
    "clientRebalance": _java(remark="members always share the queues out themselves"),
    "pullThresholdSizeForQueue": _java("pull_threshold_size_for_queue_mib"),
    "pullThresholdSizeForTopic": _java("pull_threshold_size_for_topic_mib"),
    "consumerPullTimeoutMillis": _java("pull_timeout_ms"),
    "consumerTimeoutMillisWhenSuspend": _java("suspended_pull_timeout_ms", "pull_timeout_ms"),
    "checkThreadPoolMinSize": _java("check_thread_count"),
    "checkThreadPoolMaxSize": _java("check_thread_count"),
    "mqClientApiTimeout": _java("request_timeout_ms"),
    "brokerClusterName": _server("cluster_name"),
    "channelExpiredTimeout": _server("client_expiry_ms"),
    "fileReservedTime": _server("retention_ms", remark="RocketMQ's number is in hours"),
    "serverChannelMaxIdleTimeSeconds": _server("idle_close_ms"),
    "vipChannelEnabled": _java(remark="one port serves all requests"),
    "orderly": ForeignName(
        "rocketmq-client-python",
        remark="decorate a function with @consumer.orderly; sends keep order by sharding_key=",
    ),
    "host": _pika("name_servers", remark="host:port"),
    "parameters": _pika("name_servers", remark="host:port"),
    "prefetch_count": _pika("pull_threshold_for_queue"),
    "auto_ack": _pika("auto_commit"),
    "on_message_callback": _pika(remark="decorate a function: @consumer.orderly"),
    "broker_url": _celery("name_servers", remark="host:port; from_url reads rocketmq://"),
    "broker": _celery("name_servers", remark="host:port of RocketMQ's name servers"),
    "concurrency": _celery("consume_thread_count"),
    "worker_concurrency": _celery("consume_thread_count"),
    "worker_prefetch_multiplier": _celery("pull_threshold_for_queue"),
    "max_retries": _celery("max_attempts", "retry_times"),
    "default_retry_delay": _celery("suspend_current_queue_time_ms"),
    "retry_backoff": _celery("suspend_current_queue_time_ms"),
    "visibility_timeout": _celery("lock_max_live_ms"),
    "task_serializer": _celery("codec"),
    "autoretry_for": _celery("retry_on", remark="of DeadLetter, Stop and ParkKey"),
    "dont_autoretry_for": _celery("dead_letter_on"),
    "retry_backoff_max": _celery("max_ms", remark="of Retry"),
    "retry_jitter": _celery("jitter", remark="of Retry, 0..1"),
    "routing_key": _pika("sharding_key", remark="of send; tags= of Message are for filters"),
    "exchange": _pika("topic"),
    "queue_name": _pika("topic"),
    "expiration": _pika(remark="brokers keep messages for their retention"),
    "countdown": _celery("delay_ms", remark="of Message, in ms"),
    "eta": _celery("deliver_at_ms", remark="of Message, ms since 1970"),
}

# Values that other clients have for a choice; no choice here has one of them for another meaning.
FOREIGN_VALUES: Final = {
    "earliest": "first_offset",
    "beginning": "first_offset",
    "smallest": "first_offset",
    "latest": "last_offset",
    "largest": "last_offset",
    "end": "last_offset",
    "consume_from_first_offset": "first_offset",
    "consume_from_last_offset": "last_offset",
    "consume_from_timestamp": "timestamp",
    "range": "avg",
    "roundrobin": "avg_by_circle",
    "gzip": "zlib",
    "allocatemessagequeueaveragely": "avg",
    "allocatemessagequeueaveragelybycircle": "avg_by_circle",
    "allocatemessagequeueconsistenthash": "consistent_hash",
    "selectmessagequeuebyhash": "java",
}


class ForeignMethod(NamedTuple):
    """A method of another client.

    Args:
        client: the client whose documentation has the name.
        instead: methods that do the same here; a class may have some of them, or none.
        otherwise: what to do where the class has none of them.
    """

    client: str
    instead: tuple[str, ...] = ()
    otherwise: str = ""

    def explained(self, owner: type) -> str:
        """Return the rest of an error's sentence: whose method it is and what to write.

        Args: owner: the class that does not have it.
        """
        names = [f"{name}()" for name in self.instead if hasattr(owner, name)]
        here = " or ".join(names) or self.otherwise or "there is no such method"
        return f": that is a method of {self.client}; here {here}"


_KAFKA, _JAVA = "Kafka's clients", "RocketMQ's Java client"
_OLD = "rocketmq-client-python"
_JAVA_AND_OLD = f"{_JAVA} and {_OLD}"
_POLLED = ForeignMethod(
    _KAFKA,
    ("poll", "batches"),
    "a PushConsumer calls your function (@consumer.orderly), and a LitePullConsumer or an "
    "AsyncConsumer is for polling",
)
_CLOSED = ForeignMethod(_JAVA, ("close",))
_ADDRESSED = ForeignMethod(
    _JAVA_AND_OLD,
    otherwise="name_servers= of the constructor; ordermq.rocketmq.client has the old client's own "
    "classes",
)
_HOOKED = ForeignMethod(_JAVA, ("add_hook",), "a PushConsumer or a Producer has hooks")
_LISTENED = ForeignMethod(
    _JAVA,
    ("orderly", "concurrently"),
    "nothing to register: this consumer is asked for messages",
)
_ADMIN = ForeignMethod(_JAVA, otherwise="a method of ordermq.Admin")
_INSIDE = ForeignMethod(
    "Kafka's clients and of LitePullConsumer",
    otherwise="consumer.blocking of an AsyncConsumer that is iterated has it: it blocks, so call "
    "it in asyncio.to_thread. With a listener: lag(), Admin.group(), and seek() or Admin.reset()",
)
_TRANSACTED = ForeignMethod(
    _KAFKA,
    ("send_in_transaction",),
    "TransactionProducer.send_in_transaction() binds a send to your database's commit",
)

# By what their owner is, and spelt as the documentation of the other client does.
FOREIGN_METHODS: Final = {
    "consumer": {
        "getone": _POLLED,
        "getmany": _POLLED,
        "consume": _POLLED,
        "poll": _POLLED,
        "receive": ForeignMethod("RocketMQ's gRPC client", *_POLLED[1:]),
        "ack": ForeignMethod(
            "RocketMQ's gRPC client",
            ("commit",),
            "what a listener returns decides: None or ConsumeResult.SUCCESS",
        ),
        "commit": ForeignMethod(
            _KAFKA,
            ("commit", "update_consume_offset"),
            "a batch is committed when its listener returns; auto_commit=False and "
            "ConsumeResult.COMMIT, or batch.commit() of a polled batch, do it by hand",
        ),
        "commit_async": ForeignMethod(_KAFKA, ("acommit", "commit")),
        "seek_to_beginning": ForeignMethod(_KAFKA, ("seek_to_begin", "seek")),
        "offsets_for_times": ForeignMethod(
            _KAFKA, ("offset_for_timestamp", "search_offset", "seek_to_time")
        ),
        "partitions_for_topic": ForeignMethod(
            _KAFKA,
            ("fetch_message_queues", "fetch_subscribe_message_queues"),
            "Admin.topic() lists the queues of a topic",
        ),
        "subscription": ForeignMethod(_KAFKA, ("subscriptions",)),
        "assignment": ForeignMethod(_KAFKA, ("assigned_queues",)),
        "end_offsets": ForeignMethod(_KAFKA, ("max_offset",), "Admin.topic() has the offsets"),
        "beginning_offsets": ForeignMethod(
            _KAFKA, ("min_offset",), "Admin.topic() has the offsets"
        ),
        "shutdown": _CLOSED,
        "register_message_listener": _LISTENED,
        "setMessageListener": _LISTENED,
        "suspend": ForeignMethod(_JAVA, ("pause",), "a pull consumer pulls when it is asked to"),
        "isRunning": ForeignMethod(_JAVA, ("health",)),
        "fetchSubscribeMessageQueues": ForeignMethod(
            _JAVA,
            ("fetch_subscribe_message_queues", "fetch_message_queues", "assigned_queues"),
        ),
        "updateCorePoolSize": ForeignMethod(_JAVA, ("resize",), "consume_thread_count="),
        "registerConsumeMessageHook": _HOOKED,
        "registerFilterMessageHook": ForeignMethod(
            _JAVA, ("add_filter",), "a PushConsumer has filters"
        ),
        "sendMessageBack": ForeignMethod(
            _JAVA,
            ("send_back",),
            "a listener raises or returns ConsumeResult.SUSPEND (docs/failures.md)",
        ),
        "createTopic": _ADMIN,
        "viewMessage": _ADMIN,
        "queryMessage": _ADMIN,
        "set_namesrv_addr": _ADDRESSED,
        "set_name_server_address": _ADDRESSED,
        "basic_consume": ForeignMethod("pika", ("orderly", "concurrently", "poll")),
        "start_consuming": ForeignMethod("pika", ("run", "start")),
        "position": _INSIDE,
        "committed": _INSIDE,
        "seek_to_begin": _INSIDE,
        "seek_to_end": _INSIDE,
        "offset_for_timestamp": _INSIDE,
        "seek_to_time": ForeignMethod(
            "PushConsumer",
            ("offset_for_timestamp",),
            "seek() to what consumer.blocking.offset_for_timestamp() returns, or Admin.reset()",
        ),
        "unsubscribe": ForeignMethod(
            _KAFKA, otherwise="consumer.blocking.unsubscribe() of an AsyncConsumer"
        ),
    },
    "producer": {
        "send_and_wait": ForeignMethod("aiokafka", ("send",)),
        "produce": ForeignMethod(_KAFKA, ("send_nowait", "send")),
        "poll": ForeignMethod(
            _KAFKA, otherwise="nothing to poll: send() returns a receipt, send_nowait() a future"
        ),
        "partitions_for": ForeignMethod(_KAFKA, ("queues",)),
        "list_topics": ForeignMethod(_KAFKA, otherwise="Admin.topics()"),
        "init_transactions": _TRANSACTED,
        "begin_transaction": _TRANSACTED,
        "commit_transaction": _TRANSACTED,
        "shutdown": _CLOSED,
        "set_namesrv_addr": _ADDRESSED,
        "set_name_server_address": _ADDRESSED,
        "setTransactionListener": ForeignMethod(
            _JAVA, otherwise="listener= of the constructor of a TransactionProducer"
        ),
        "recallMessage": ForeignMethod(_JAVA, ("recall",)),
        "fetchPublishMessageQueues": ForeignMethod(_JAVA, ("queues",)),
        "registerSendMessageHook": _HOOKED,
        "isRunning": ForeignMethod(_JAVA, ("health",)),
        "createTopic": _ADMIN,
        "viewMessage": _ADMIN,
        "queryMessage": _ADMIN,
        "send_sync": ForeignMethod(_OLD, ("send",)),
        "send_async": ForeignMethod(_OLD, ("send_nowait",)),
        "send_orderly": ForeignMethod(_OLD, otherwise="send(message, sharding_key=key)"),
        "send_orderly_with_sharding_key": ForeignMethod(
            _OLD, otherwise="send(message, sharding_key=key)"
        ),
        "send_message_in_transaction": _TRANSACTED._replace(client=_JAVA),
        "basic_publish": ForeignMethod("pika", ("send",)),
        "publish": ForeignMethod("pika", ("send",)),
        "send_offsets_to_transaction": _TRANSACTED,
    },
    "admin": {
        "list_topics": ForeignMethod(_KAFKA, ("topics",)),
        "describe_topics": ForeignMethod(_KAFKA, ("topic",)),
        "create_topics": ForeignMethod(_KAFKA, ("create_topic",)),
        "delete_topics": ForeignMethod(_KAFKA, ("delete_topic",)),
        "list_consumer_groups": ForeignMethod(_KAFKA, ("groups",)),
        "describe_consumer_groups": ForeignMethod(_KAFKA, ("group",)),
        "list_consumer_group_offsets": ForeignMethod(_KAFKA, ("group",)),
        "alter_consumer_group_offsets": ForeignMethod(_KAFKA, ("reset",)),
        "delete_consumer_groups": ForeignMethod(_KAFKA, ("delete_group",)),
        "delete_subscription_group": ForeignMethod(_JAVA, ("delete_group",)),
    },
}


def without_separators(name: str) -> str:
    """Return a name as all spellings of it have it: auto.offset.reset, autoOffsetReset."""
    return name.lower().replace("_", "").replace(".", "").replace("-", "")


_BY_LETTERS: Final = {without_separators(name): each for name, each in FOREIGN_NAMES.items()}


def find_foreign_name(name: str) -> ForeignName | None:
    """Return the other client's setting or argument of this name, in any of its spellings."""
    return _BY_LETTERS.get(without_separators(name))


_METHODS_BY_LETTERS: Final = {
    kind: {without_separators(name): each for name, each in methods.items()}
    for kind, methods in FOREIGN_METHODS.items()
}


def find_foreign_method(kind: str, name: str) -> ForeignMethod | None:
    """Return the other client's method of this name, in any of its spellings.

    Args: kind: "consumer", "producer" or "admin".
    """
    return _METHODS_BY_LETTERS[kind].get(without_separators(name))


def explained_attribute(
    owner: type, kind: str, name: str, attributes: Sequence[str], settings: Set[str]
) -> str:
    """Return the rest of an AttributeError about another client's method, or nothing.

    Args:
        kind: of the owner, "consumer", "producer" or "admin".
        attributes: what it has.
        settings: what its constructor takes.
    """
    letters = without_separators(name)
    by_letters = {without_separators(each): each for each in attributes if each[0] != "_"}
    if letters in by_letters:
        return f": write {by_letters[letters]}"
    found = find_foreign_method(kind, name)
    if found is not None:
        return found.explained(owner)
    if letters[:3] not in ("get", "set"):
        return ""
    meant = find_foreign_name(letters[3:])
    instead = [] if meant is None else [each for each in meant.instead if each in settings]
    if letters[:3] == "get":
        names = [without_separators(each) for each in instead] or [letters[3:]]
        found_here = [by_letters[each] for each in names if each in by_letters]
        return f": write {found_here[0]}" if found_here else ""
    setter = "that is a setter of RocketMQ's Java client"
    same = [each for each in sorted(settings) if without_separators(each) == letters[3:]]
    if same:
        return f": {setter}; give {same[0]}= to the constructor"
    if meant is None or (meant.instead and not instead):  # nothing of this client
        return ""
    give = "give the constructor" if meant.instead else "here"
    return f": {setter}; {give} {meant.instead_of(frozenset(settings))}"


# Classes of other clients, by what to import instead.
FOREIGN_CLASSES: Final = {
    "DefaultMQProducer": "Producer",
    "TransactionMQProducer": "TransactionProducer",
    "DefaultMQPushConsumer": "PushConsumer",
    "DefaultLitePullConsumer": "LitePullConsumer",
    "DefaultMQPullConsumer": "PullConsumer",
    "DefaultMQAdminExt": "Admin",
    "SimpleConsumer": "LitePullConsumer",
    "MessageExt": "MessageView",
    "SendResult": "SendReceipt",
    "MessageQueueSelector": "QueueSelector",
    "ConsumeOrderlyStatus": "ConsumeResult",
    "ConsumeConcurrentlyStatus": "ConsumeResult",
    "LocalTransactionState": "TransactionState",
    "TransactionStatus": "TransactionState",
    "ConsumeOrderlyContext": "ConsumeContext",
    "ConsumeConcurrentlyContext": "ConcurrentContext",
    "MessageListenerOrderly": "PushConsumer, with @consumer.orderly above a function",
    "MessageListenerConcurrently": "PushConsumer, with @consumer.concurrently above a function",
    "KafkaProducer": "Producer",
    "KafkaConsumer": "PushConsumer, or LitePullConsumer to poll",
    "AIOKafkaProducer": "AsyncProducer",
    "AIOKafkaConsumer": "AsyncConsumer",
    "KafkaAdminClient": "Admin",
}
