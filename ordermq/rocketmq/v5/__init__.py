"""The names of `rocketmq-python-client` 5.x, on ordermq's engine.

Change `from rocketmq import ...` to `from ordermq.rocketmq.v5 import ...`, and a program for that
client runs, over gRPC as before. These are adapters, as those of the older clients beside them;
docs/migrating.md lists what differs, and what is not there.
"""

from ordermq.rocketmq.v5.configuration import ClientConfiguration, Credentials
from ordermq.rocketmq.v5.consumer import (
    ConsumeResult,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    MessageListener,
    PushConsumer,
    SimpleConsumer,
)
from ordermq.rocketmq.v5.message import Message, SendReceipt
from ordermq.rocketmq.v5.producer import (
    Producer,
    Transaction,
    TransactionChecker,
    TransactionResolution,
)

__all__ = [
    "ClientConfiguration",
    "ConsumeResult",
    "Credentials",
    "FilterExpression",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Message",
    "MessageListener",
    "Producer",
    "PushConsumer",
    "SendReceipt",
    "SimpleConsumer",
    "Transaction",
    "TransactionChecker",
    "TransactionResolution",
]
