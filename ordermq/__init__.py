"""Strictly ordered message consumption for Python at native speed."""

import ordermq.loggers  # noqa: F401 - before any of them is used
from ordermq.admin.admin import Admin
from ordermq.consumer.dispatch.failure_policy import DeadLetter, ParkKey, Retry, Stop
from ordermq.consumer.listener import ConsumeCall, ConsumeHook, ConsumeReturn
from ordermq.consumer.lite_pull_consumer import LitePullConsumer
from ordermq.consumer.offsets.offset_store import OffsetStore, TransactionalStore
from ordermq.consumer.pull_consumer import PullConsumer, PullResult, PullStatus
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.consumer.queue.poll_buffer import PolledBatch
from ordermq.errors import OrderMQError
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import (
    ConsumeResult,
    SendReceipt,
    SendStatus,
    TransactionReceipt,
    TransactionState,
)
from ordermq.producer.hooks import SendCall, SendHook
from ordermq.producer.producer import Producer
from ordermq.producer.transactions import TransactionListener, TransactionProducer

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "ConsumeCall",
    "ConsumeHook",
    "ConsumeResult",
    "ConsumeReturn",
    "DeadLetter",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "MessageView",
    "OffsetStore",
    "OrderMQError",
    "ParkKey",
    "PolledBatch",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "Retry",
    "SendCall",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "Stop",
    "TransactionListener",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "TransactionalStore",
    "__version__",
]
