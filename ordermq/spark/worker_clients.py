"""Clients of a Spark worker process, one a set of options, kept for all its tasks.

Workers die without notice when idle, so nothing here waits for an end: what was sent was
acknowledged before its task ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from ordermq import Producer
from ordermq.config import ProducerConfig, RemotingConfig
from ordermq.spark.options import CLIENT
from ordermq.spark.settings import config_of, read_options

_T = TypeVar("_T")
DEAD_LETTER_GROUP = "ordermq-spark-dead-letters"


class KeptClients(Generic[_T]):
    """Clients by what they were made of; made once, by the first who asks."""

    def __init__(self, make: Callable[..., _T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[Any, _T] = {}

    def of(self, *key: Any) -> _T:
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(*key)
            return self._made[key]


def remoting_of(options: Mapping[str, str]) -> tuple[str, RemotingConfig]:
    """Name servers and connection settings among the options of a format; others are left out.

    Raises: ConfigError: a value out of its range.
    """
    known = {setting.name.replace("_", "") for setting in CLIENT}
    own = {name: text for name, text in options.items() if _folded(name) in known}
    values = read_options(CLIENT, own)
    return values["name_servers"], config_of(RemotingConfig, values)


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def _started_producer(name_servers: str, remoting: RemotingConfig) -> Producer:
    config = ProducerConfig(remoting=remoting)
    producer = Producer(DEAD_LETTER_GROUP, name_servers=name_servers, config=config)
    producer.start()
    return producer


_PRODUCERS = KeptClients(_started_producer)


def producer_of(options: Mapping[str, str]) -> Producer:
    """This process's producer for such options."""
    return _PRODUCERS.of(*remoting_of(options))
