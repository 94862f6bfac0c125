"""Names, argument orders, defaults and values that programs for the old clients may use.

Facts of `rocketmq-client-python` 2.0.0 and `rocketmq` 0.4.4; test_old_packages.py compares them
with the packages, tests/unit/rocketmq compares ours with them.
"""

from __future__ import annotations

from typing import Any

from tests.dropin.old_source import Signature

BOTH: dict[str, Signature] = {
    "Message.__init__": (("topic", ...),),
    "Message.set_body": (("body", ...),),
    "Message.set_delay_time_level": (("delay_time_level", ...),),
    "Message.set_keys": (("keys", ...),),
    "Message.set_property": (
        ("key", ...),
        ("value", ...),
    ),
    "Message.set_tags": (("tags", ...),),
    "Producer.send_oneway": (("msg", ...),),
    "Producer.send_sync": (("msg", ...),),
    "Producer.set_compress_level": (("level", ...),),
    "Producer.set_group": (("group_name", ...),),
    "Producer.set_max_message_size": (("max_size", ...),),
    "Producer.set_session_credentials": (
        ("access_key", ...),
        ("access_secret", ...),
        ("channel", ...),
    ),
    "Producer.set_timeout": (("timeout", ...),),
    "Producer.shutdown": (),
    "Producer.start": (),
    "PushConsumer.__init__": (
        ("group_id", ...),
        ("orderly", False),
        ("message_model", "MessageModel.CLUSTERING"),
    ),
    "PushConsumer.set_group": (("group_id", ...),),
    "PushConsumer.set_instance_name": (("name", ...),),
    "PushConsumer.set_message_batch_max_size": (("max_size", ...),),
    "PushConsumer.set_message_model": (("model", ...),),
    "PushConsumer.set_session_credentials": (
        ("access_key", ...),
        ("access_secret", ...),
        ("channel", ...),
    ),
    "PushConsumer.set_thread_count": (("thread_count", ...),),
    "PushConsumer.shutdown": (),
    "PushConsumer.start": (),
    "PushConsumer.subscribe": (
        ("topic", ...),
        ("callback", ...),
        ("expression", "*"),
    ),
}

ONLY_200: dict[str, Signature] = {
    "Producer.__init__": (
        ("group_id", ...),
        ("orderly", False),
        ("timeout", None),
        ("compress_level", None),
        ("max_message_size", None),
    ),
    "Producer.send_orderly_with_sharding_key": (
        ("msg", ...),
        ("sharding_key", ...),
    ),
    "Producer.set_name_server_address": (("addr", ...),),
    "Producer.set_name_server_domain": (("domain", ...),),
    "PushConsumer.set_name_server_address": (("addr", ...),),
    "PushConsumer.set_name_server_domain": (("domain", ...),),
    "ReceivedMessage.__init__": (("handle", ...),),
    "ReceivedMessage.body": (),
    "ReceivedMessage.born_timestamp": (),
    "ReceivedMessage.commit_log_offset": (),
    "ReceivedMessage.delay_time_level": (),
    "ReceivedMessage.get_property": (("prop", ...),),
    "ReceivedMessage.id": (),
    "ReceivedMessage.keys": (),
    "ReceivedMessage.prepared_transaction_offset": (),
    "ReceivedMessage.queue_id": (),
    "ReceivedMessage.queue_offset": (),
    "ReceivedMessage.reconsume_times": (),
    "ReceivedMessage.store_size": (),
    "ReceivedMessage.store_timestamp": (),
    "ReceivedMessage.tags": (),
    "ReceivedMessage.topic": (),
    "TransactionMQProducer.__init__": (
        ("group_id", ...),
        ("checker_callback", ...),
        ("user_args", None),
        ("timeout", None),
        ("compress_level", None),
        ("max_message_size", None),
    ),
    "TransactionMQProducer.send_message_in_transaction": (
        ("message", ...),
        ("local_execute", ...),
        ("user_args", None),
    ),
    "TransactionMQProducer.set_name_server_address": (("addr", ...),),
    "TransactionMQProducer.start": (),
}

ONLY_044: dict[str, Signature] = {
    "Producer.send_async": (
        ("msg", ...),
        ("success_callback", ...),
        ("exception_callback", ...),
    ),
    "Producer.send_batch": (("msgs", ...),),
    "Producer.send_oneway_orderly": (
        ("msg", ...),
        ("arg", ...),
        ("queue_selector", "hashing_queue_selector"),
    ),
    "Producer.send_orderly": (
        ("msg", ...),
        ("arg", ...),
        ("retry_times", 3),
        ("queue_selector", "hashing_queue_selector"),
    ),
    "Producer.set_namesrv_addr": (("addr", ...),),
    "Producer.set_namesrv_domain": (("domain", ...),),
    "PullConsumer.__init__": (("group_id", ...),),
    "PullConsumer.get_message_queue_offset": (("mq", ...),),
    "PullConsumer.pull": (
        ("topic", ...),
        ("expression", "*"),
        ("max_num", 32),
    ),
    "PullConsumer.set_group": (("group_id", ...),),
    "PullConsumer.set_message_queue_offset": (
        ("mq", ...),
        ("offset", ...),
    ),
    "PullConsumer.set_namesrv_addr": (("addr", ...),),
    "PullConsumer.set_namesrv_domain": (("domain", ...),),
    "PullConsumer.set_session_credentials": (
        ("access_key", ...),
        ("access_secret", ...),
        ("channel", ...),
    ),
    "PullConsumer.shutdown": (),
    "PullConsumer.start": (),
    "PushConsumer.set_namesrv_addr": (("addr", ...),),
    "PushConsumer.set_namesrv_domain": (("domain", ...),),
    "RecvMessage.__init__": (("handle", ...),),
    "RecvMessage.body": (),
    "RecvMessage.born_timestamp": (),
    "RecvMessage.commit_log_offset": (),
    "RecvMessage.delay_time_level": (),
    "RecvMessage.get_property": (("prop", ...),),
    "RecvMessage.id": (),
    "RecvMessage.keys": (),
    "RecvMessage.prepared_transaction_offset": (),
    "RecvMessage.queue_id": (),
    "RecvMessage.queue_offset": (),
    "RecvMessage.reconsume_times": (),
    "RecvMessage.store_size": (),
    "RecvMessage.store_timestamp": (),
    "RecvMessage.tags": (),
    "RecvMessage.topic": (),
    "hashing_queue_selector": (
        ("mq_size", ...),
        ("msg", ...),
        ("arg", ...),
    ),
}

# Where the two differ under one name, 2.0.0 counts.
CONTRADICTIONS: dict[str, Signature] = {
    "Producer.__init__": (
        ("group_id", ...),
        ("timeout", None),
        ("compress_level", None),
        ("max_message_size", None),
    ),
}

# An inner function that decoded what the C library returned.
NOT_KEPT = {"maybe_decode"}

ENUMERATIONS: dict[str, dict[str, Any]] = {
    "ConsumeStatus": {"CONSUME_SUCCESS": 0, "RECONSUME_LATER": 1},
    "MessageModel": {"BROADCASTING": 0, "CLUSTERING": 1},
    "MessageProperty": {
        "TRACE_SWITCH": "TRACE_ON",
        "MSG_REGION": "MSG_REGION",
        "KEYS": "KEYS",
        "TAGS": "TAGS",
        "WAIT_STORE_MSG_OK": "WAIT",
        "DELAY_TIME_LEVEL": "DELAY",
        "RETRY_TOPIC": "RETRY_TOPIC",
        "REAL_TOPIC": "REAL_TOPIC",
        "REAL_QUEUE_ID": "REAL_QID",
        "TRANSACTION_PREPARED": "TRAN_MSG",
        "PRODUCER_GROUP": "PGROUP",
        "MIN_OFFSET": "MIN_OFFSET",
        "MAX_OFFSET": "MAX_OFFSET",
        "BUYER_ID": "BUYER_ID",
        "ORIGIN_MESSAGE_ID": "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG": "TRANSFER_FLAG",
        "CORRECTION_FLAG": "CORRECTION_FLAG",
        "MQ2_FLAG": "MQ2_FLAG",
        "RECONSUME_TIME": "RECONSUME_TIME",
        "UNIQ_CLIENT_MESSAGE_ID_KEYIDX": "UNIQ_KEY",
        "MAX_RECONSUME_TIMES": "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIMESTAMP": "CONSUME_START_TIME",
    },
    "SendStatus": {
        "OK": 0,
        "FLUSH_DISK_TIMEOUT": 1,
        "FLUSH_SLAVE_TIMEOUT": 2,
        "SLAVE_NOT_AVAILABLE": 3,
    },
    "TransactionStatus": {"COMMIT": 0, "ROLLBACK": 1, "UNKNOWN": 2},
}

EXCEPTIONS: dict[str, str] = {
    "RocketMQException": "Exception",
    "NullPointerException": "RocketMQException",
    "MallocFailed": "RocketMQException",
    "ProducerException": "RocketMQException",
    "ProducerStartFailed": "ProducerException",
    "ProducerSendSyncFailed": "ProducerException",
    "ProducerSendOnewayFailed": "ProducerException",
    "ProducerSendOrderlyFailed": "ProducerException",
    "ProducerSendAsyncFailed": "ProducerException",
    "ConsumerException": "RocketMQException",
    "PushConsumerStartFailed": "ConsumerException",
    "PullConsumerStartFailed": "ConsumerException",
    "PullConsumerFetchMQFailed": "ConsumerException",
    "PullConsumerFetchMessageFailed": "ConsumerException",
}
