"""Strictly ordered message consumption for Python at native speed.

A name is imported when it is first used: a program that only sends loads no consumer.
"""

from typing import TYPE_CHECKING

import ordermq.loggers  # noqa: F401 - before any of them is used
from ordermq.lazy_imports import lazy_names
from ordermq.version import VERSION

if TYPE_CHECKING:
    from ordermq import client as client
    from ordermq import config as config
    from ordermq import consumer as consumer
    from ordermq import core as core
    from ordermq import errors as errors
    from ordermq import events as events
    from ordermq import health as health
    from ordermq import model as model
    from ordermq import producer as producer
    from ordermq import remoting as remoting
    from ordermq.admin.admin import Admin
    from ordermq.config.client import ClientConfig
    from ordermq.config.consumer import ConsumerConfig
    from ordermq.config.producer import ProducerConfig
    from ordermq.config.pull_consumers import LitePullConsumerConfig, PullConsumerConfig
    from ordermq.config.settings import (
        AsyncConsumerSettings,
        ConsumerSettings,
        LitePullConsumerSettings,
        ProducerSettings,
        PullConsumerSettings,
    )
    from ordermq.consumer.async_consumer import AsyncBatch, AsyncConsumer
    from ordermq.consumer.dispatch.failure_policy import (
        DeadLetter,
        FailurePolicy,
        ParkKey,
        Retry,
        Stop,
    )
    from ordermq.consumer.hooks import ConsumeCall, ConsumeHook, MessageFilter
    from ordermq.consumer.listener import (
        ConcurrentContext,
        ConcurrentListener,
        ConsumeContext,
        ConsumeReturn,
        Listener,
        ListenerAnswer,
    )
    from ordermq.consumer.lite_pull_consumer import LitePullConsumer
    from ordermq.consumer.offsets.offset_store import (
        AsyncTransactionalStore,
        OffsetStore,
        TransactionalStore,
    )
    from ordermq.consumer.pull_consumer import PullConsumer, PullResult, PullStatus
    from ordermq.consumer.push_consumer import PushConsumer
    from ordermq.consumer.queue.assigned_queue import Blocked
    from ordermq.consumer.queue.poll_buffer import PolledBatch
    from ordermq.consumer.queue.statistics import ConsumerStatistics, TopicRates
    from ordermq.errors import OrderMQError
    from ordermq.health import BrokerHealth, ClientHealth, ConsumerHealth
    from ordermq.model.codec import Codec, FunctionCodec, JsonCodec, PydanticCodec
    from ordermq.model.failure_story import FailureStory
    from ordermq.model.message import Message, MessageView
    from ordermq.model.message_queue import MessageQueue
    from ordermq.model.receipts import SendReceipt
    from ordermq.model.status import ConsumeResult, SendStatus, TransactionState
    from ordermq.model.transaction_receipt import TransactionReceipt
    from ordermq.producer.async_producer import AsyncProducer
    from ordermq.producer.hooks import SendCall, SendHook
    from ordermq.producer.pending_message import SendStream
    from ordermq.producer.producer import Producer
    from ordermq.producer.queue_selector import QueueSelector, ShardingKey
    from ordermq.producer.transactions import TransactionListener, TransactionProducer

__version__ = VERSION

__all__ = [
    "Admin",
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncConsumerSettings",
    "AsyncProducer",
    "AsyncTransactionalStore",
    "Blocked",
    "BrokerHealth",
    "ClientConfig",
    "ClientHealth",
    "Codec",
    "ConcurrentContext",
    "ConcurrentListener",
    "ConsumeCall",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeResult",
    "ConsumeReturn",
    "ConsumerConfig",
    "ConsumerHealth",
    "ConsumerSettings",
    "ConsumerStatistics",
    "DeadLetter",
    "FailurePolicy",
    "FailureStory",
    "FunctionCodec",
    "JsonCodec",
    "Listener",
    "ListenerAnswer",
    "LitePullConsumer",
    "LitePullConsumerConfig",
    "LitePullConsumerSettings",
    "Message",
    "MessageFilter",
    "MessageQueue",
    "MessageView",
    "OffsetStore",
    "OrderMQError",
    "ParkKey",
    "PolledBatch",
    "Producer",
    "ProducerConfig",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerConfig",
    "PullConsumerSettings",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PydanticCodec",
    "QueueSelector",
    "Retry",
    "SendCall",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "SendStream",
    "ShardingKey",
    "Stop",
    "TopicRates",
    "TransactionListener",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "TransactionalStore",
    "__version__",
]

# The same names by the module they are in, for `__getattr__`.
_HOMES = {
    "admin.admin": ("Admin",),
    "config.client": ("ClientConfig",),
    "config.consumer": ("ConsumerConfig",),
    "config.producer": ("ProducerConfig",),
    "config.pull_consumers": (
        "LitePullConsumerConfig",
        "PullConsumerConfig",
    ),
    "config.settings": (
        "AsyncConsumerSettings",
        "ConsumerSettings",
        "LitePullConsumerSettings",
        "ProducerSettings",
        "PullConsumerSettings",
    ),
    "consumer.async_consumer": (
        "AsyncBatch",
        "AsyncConsumer",
    ),
    "consumer.dispatch.failure_policy": (
        "DeadLetter",
        "FailurePolicy",
        "ParkKey",
        "Retry",
        "Stop",
    ),
    "consumer.hooks": (
        "ConsumeCall",
        "ConsumeHook",
        "MessageFilter",
    ),
    "consumer.listener": (
        "ConcurrentContext",
        "ConcurrentListener",
        "ConsumeContext",
        "ConsumeReturn",
        "Listener",
        "ListenerAnswer",
    ),
    "consumer.lite_pull_consumer": ("LitePullConsumer",),
    "consumer.offsets.offset_store": (
        "AsyncTransactionalStore",
        "OffsetStore",
        "TransactionalStore",
    ),
    "consumer.pull_consumer": (
        "PullConsumer",
        "PullResult",
        "PullStatus",
    ),
    "consumer.push_consumer": ("PushConsumer",),
    "consumer.queue.assigned_queue": ("Blocked",),
    "consumer.queue.poll_buffer": ("PolledBatch",),
    "consumer.queue.statistics": (
        "ConsumerStatistics",
        "TopicRates",
    ),
    "errors": ("OrderMQError",),
    "health": (
        "BrokerHealth",
        "ClientHealth",
        "ConsumerHealth",
    ),
    "model.codec": (
        "Codec",
        "FunctionCodec",
        "JsonCodec",
        "PydanticCodec",
    ),
    "model.failure_story": ("FailureStory",),
    "model.message": (
        "Message",
        "MessageView",
    ),
    "model.message_queue": ("MessageQueue",),
    "model.receipts": ("SendReceipt",),
    "model.status": (
        "ConsumeResult",
        "SendStatus",
        "TransactionState",
    ),
    "model.transaction_receipt": ("TransactionReceipt",),
    "producer.async_producer": ("AsyncProducer",),
    "producer.hooks": (
        "SendCall",
        "SendHook",
    ),
    "producer.pending_message": ("SendStream",),
    "producer.producer": ("Producer",),
    "producer.queue_selector": (
        "QueueSelector",
        "ShardingKey",
    ),
    "producer.transactions": (
        "TransactionListener",
        "TransactionProducer",
    ),
}
# So that `import ordermq` is enough for `ordermq.errors.Fenced`.
_ROOMS = {"client", "config", "consumer", "core", "errors", "events", "health", "model"}
_ROOMS |= {"producer", "remoting"}

if not TYPE_CHECKING:  # to them, each name would be there, also a misspelt one
    __getattr__, __dir__ = lazy_names("ordermq", _HOMES, _ROOMS)
