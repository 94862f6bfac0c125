"""Exceptions of `rocketmq.v5.exception`; each has the error of ordermq as `__cause__`."""

from __future__ import annotations

from ordermq.rocketmq.exceptions import RocketMQException


class ClientException(RocketMQException):
    """The base of what these adapters raise."""

    code = "rocketmq-v5-client"


class IllegalArgumentException(ClientException):
    """An argument cannot be what it is."""

    code = "rocketmq-v5-argument"


class IllegalStateException(ClientException):
    """The client is not running, or runs already."""

    code = "rocketmq-v5-state"


class UnsupportedException(ClientException):
    """There is nothing in ordermq that this stands for."""

    code = "rocketmq-v5-unsupported"
