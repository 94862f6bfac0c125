"""Names that programs import from `rocketmq.client`, of `rocketmq-client-python` and `rocketmq`."""

from __future__ import annotations

from ordermq.rocketmq.consts import MessageProperty
from ordermq.rocketmq.exceptions import (
    NullPointerException,
    ProducerSendAsyncFailed,
    PushConsumerStartFailed,
)
from ordermq.rocketmq.message import Message, ReceivedMessage, RecvMessage
from ordermq.rocketmq.producer import Producer
from ordermq.rocketmq.pull_consumer import PullConsumer
from ordermq.rocketmq.push_consumer import PushConsumer
from ordermq.rocketmq.sharding import hashing_queue_selector
from ordermq.rocketmq.status import (
    ConsumeStatus,
    MessageModel,
    SendResult,
    SendStatus,
    TransactionStatus,
)
from ordermq.rocketmq.transaction_producer import TransactionMQProducer

__all__ = [
    "ConsumeStatus",
    "Message",
    "MessageModel",
    "MessageProperty",
    "NullPointerException",
    "Producer",
    "ProducerSendAsyncFailed",
    "PullConsumer",
    "PushConsumer",
    "PushConsumerStartFailed",
    "ReceivedMessage",
    "RecvMessage",
    "SendResult",
    "SendStatus",
    "TransactionMQProducer",
    "TransactionStatus",
    "hashing_queue_selector",
]
