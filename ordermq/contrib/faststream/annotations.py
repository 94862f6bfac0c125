"""Annotations by which FastStream injects the broker, the message and the producer."""

from __future__ import annotations

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from ordermq.contrib.faststream.broker import OrderMQBroker as _Broker
from ordermq.contrib.faststream.message import OrderMQMessage as _Message
from ordermq.contrib.faststream.publisher import OrderMQProducer as _Producer

__all__ = [
    "ContextRepo",
    "Logger",
    "NoCast",
    "OrderMQBroker",
    "OrderMQMessage",
    "OrderMQProducer",
]

OrderMQBroker = Annotated[_Broker, Context("broker")]
OrderMQMessage = Annotated[_Message, Context("message")]
OrderMQProducer = Annotated[_Producer, Context("broker._producer")]
