"""A broker for FastStream (docs/faststream.md): `broker.py` is what an application makes,
`subscriber.py` consumes, `publisher.py` sends, `testing.py` replaces the network in tests.
"""

from __future__ import annotations

from ordermq.lazy_imports import needed_from

with needed_from("faststream"):
    from faststream import TestApp

from ordermq.contrib.faststream.broker import (
    OrderMQBroker,
    OrderMQPublisher,
    OrderMQRoute,
    OrderMQRouter,
)
from ordermq.contrib.faststream.message import OrderMQMessage
from ordermq.contrib.faststream.publisher import OrderMQPublishCommand, OrderMQResponse
from ordermq.contrib.faststream.testing import TestOrderMQBroker
from ordermq.contrib.rejected import Rejected

__all__ = [
    "OrderMQBroker",
    "OrderMQMessage",
    "OrderMQPublishCommand",
    "OrderMQPublisher",
    "OrderMQResponse",
    "OrderMQRoute",
    "OrderMQRouter",
    "Rejected",
    "TestApp",
    "TestOrderMQBroker",
]
