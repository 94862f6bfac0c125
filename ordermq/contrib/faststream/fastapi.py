"""OrderMQRouter for FastAPI: subscribers and publishers in an application of FastAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ordermq.lazy_imports import needed_from

with needed_from("faststream"):
    import faststream as faststream  # without it, FastAPI would be asked for alone

try:
    from fastapi.datastructures import Default
    from faststream._internal.fastapi.router import StreamRouter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: run pip install 'ordermq[faststream]' fastapi", name=error.name, path=error.path
    ) from error

from ordermq.contrib.faststream.broker import OrderMQBroker
from ordermq.contrib.faststream.publisher import TopicPublisher

# What FastAPI knows of a route, and FastStream passes on to it.
_ROUTE: dict[str, Any] = {
    "dependencies": (),
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}


class OrderMQRouter(StreamRouter[Any]):
    """A router of FastAPI with an `OrderMQBroker`, which starts and stops with the application.

    Args:
        name_servers: as of `OrderMQBroker`.
        arguments: of FastAPI's `APIRouter`, and of `OrderMQBroker`.
    """

    broker_class = OrderMQBroker
    broker: OrderMQBroker

    def __init__(self, name_servers: str | Sequence[str] | None = None, **arguments: Any) -> None:
        arguments.setdefault("context", None)
        super().__init__(name_servers, **arguments)

    def subscriber(self, *topics: str, **arguments: Any) -> Any:  # type: ignore[override]
        """Register a subscriber, as `OrderMQBroker.subscriber`, with FastAPI's dependencies.

        Args: arguments: of the subscriber, `dependencies`, and `response_model` with its relatives.
        """
        return super().subscriber(*topics, **(_ROUTE | arguments))

    def publisher(self, topic: str, **arguments: Any) -> TopicPublisher:  # type: ignore[override]
        """Register a publisher, as `OrderMQBroker.publisher`."""
        return self.broker.publisher(topic, **arguments)
