"""FastStream's own test patterns for brokers, with ordermq's; ci/frameworks.sh runs them.

They are in FastStream's repository, not in its packages. `tests` is the package there, so this file
is no part of the project's own, and pytest is told of it by name.
"""

from __future__ import annotations

from typing import Any

import pytest
from faststream import BaseMiddleware
from tests.asyncapi.base.v2_6_0.arguments import ArgumentsTestcase as Arguments2
from tests.asyncapi.base.v2_6_0.naming import NamingTestCase as Naming2
from tests.asyncapi.base.v2_6_0.publisher import PublisherTestcase as Publishers2
from tests.asyncapi.base.v3_0_0.arguments import ArgumentsTestcase as Arguments3
from tests.asyncapi.base.v3_0_0.naming import NamingTestCase as Naming3
from tests.asyncapi.base.v3_0_0.publisher import PublisherTestcase as Publishers3
from tests.brokers.base.basic import BaseTestcaseConfig
from tests.brokers.base.codec import BatchCodecTestcase, CodecTestcase
from tests.brokers.base.connection import BrokerConnectionTestcase
from tests.brokers.base.consume import BrokerRealConsumeTestcase
from tests.brokers.base.fastapi import FastAPILocalTestcase, FastAPITestcase
from tests.brokers.base.include_router import IncludePublisherTestcase, IncludeSubscriberTestcase
from tests.brokers.base.middlewares import (
    ExceptionMiddlewareTestcase,
    MiddlewaresOrderTestcase,
    MiddlewareTestcase,
)
from tests.brokers.base.parser import CustomParserTestcase
from tests.brokers.base.publish import BrokerPublishTestcase
from tests.brokers.base.publish_command import BatchPublishCommandTestcase
from tests.brokers.base.requests import RequestsTestcase
from tests.brokers.base.router import RouterLocalTestcase, RouterTestcase
from tests.brokers.base.testclient import BrokerTestclientTestcase

from ordermq import Admin
from ordermq.contrib.faststream import (
    OrderMQBroker,
    OrderMQPublishCommand,
    OrderMQPublisher,
    OrderMQRoute,
    OrderMQRouter,
    TestOrderMQBroker,
)
from ordermq.contrib.faststream.fastapi import OrderMQRouter as FastAPIRouter
from ordermq.contrib.faststream.testing import FakeProducer
from ordermq.model.message import MessageRun


class InMemory(BaseTestcaseConfig[OrderMQBroker]):
    """Handlers are called without a network."""

    def get_broker(self, apply_types: bool = False, **kwargs: Any) -> OrderMQBroker:
        return OrderMQBroker(apply_types=apply_types, **kwargs)

    def get_router(self, **kwargs: Any) -> OrderMQRouter:
        return OrderMQRouter(**kwargs)

    def patch_broker(self, *brokers: OrderMQBroker, **kwargs: Any) -> Any:
        return TestOrderMQBroker(*brokers, **kwargs)


class Real(InMemory):
    """Messages go through a broker, in one queue, as the patterns expect of order."""

    timeout = 10.0

    def get_subscriber_params(self, *topics: Any, **kwargs: Any) -> Any:
        with Admin() as admin:
            known = {found.name for found in admin.topics()}
            for topic in {*topics} - known:
                admin.create_topic(topic, queues=1)
        return topics, {"consume_from_where": "first_offset", **kwargs}

    def patch_broker(self, *brokers: OrderMQBroker, **kwargs: Any) -> Any:
        return BaseTestcaseConfig.patch_broker(self, *brokers, **kwargs)


class TestConsume(Real, BrokerRealConsumeTestcase):
    pass


class TestPublish(Real, BrokerPublishTestcase):
    pass


@pytest.mark.asyncio
class TestRequests(Real, RequestsTestcase):
    def get_middleware(self, **kwargs: Any) -> Any:
        return Doubling


@pytest.mark.asyncio
class TestRequestsInMemory(InMemory, RequestsTestcase):
    def get_middleware(self, **kwargs: Any) -> Any:
        return Doubling


class Doubling(BaseMiddleware):
    """Doubles a body as it is received, and once more as it is consumed."""

    async def on_receive(self) -> None:
        message = self.msg[0] if isinstance(self.msg, MessageRun) else self.msg
        self.factor = 2 if message is not None else 1

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= self.factor * 2
        return await call_next(msg)


class TestRouter(Real, RouterTestcase):
    route_class = OrderMQRoute
    publisher_class = OrderMQPublisher


class TestRouterInMemory(InMemory, RouterLocalTestcase):
    route_class = OrderMQRoute
    publisher_class = OrderMQPublisher


class TestIncludedSubscriber(InMemory, IncludeSubscriberTestcase):
    pass


class TestIncludedPublisher(InMemory, IncludePublisherTestcase):
    pass


class TestMiddlewares(Real, MiddlewareTestcase):
    pass


class TestMiddlewaresOrder(InMemory, MiddlewaresOrderTestcase):
    pass


class TestExceptionMiddlewares(Real, ExceptionMiddlewareTestcase):
    pass


class TestParser(Real, CustomParserTestcase):
    pass


class TestCodec(InMemory, CodecTestcase):
    pass


class TestBatchCodec(InMemory, BatchCodecTestcase):
    pass


class TestPublishCommand(BatchPublishCommandTestcase):
    publish_command_cls = OrderMQPublishCommand


class TestConnection(BrokerConnectionTestcase):
    broker = OrderMQBroker

    @pytest.fixture
    def settings(self) -> None:
        return None


class TestTestBroker(InMemory, BrokerTestclientTestcase):
    def get_fake_producer_class(self) -> type:
        return FakeProducer

    @pytest.fixture
    def fake_producer_cls(self) -> type:
        return FakeProducer


class TestFastAPI(Real, FastAPITestcase):
    router_class = FastAPIRouter
    broker_router_class = OrderMQRouter


class TestFastAPIInMemory(InMemory, FastAPILocalTestcase):
    router_class = FastAPIRouter
    broker_router_class = OrderMQRouter


class TestArguments2(Arguments2):
    broker_class = OrderMQBroker


class TestArguments3(Arguments3):
    broker_class = OrderMQBroker


class TestNaming2(Naming2):
    broker_class = OrderMQBroker


class TestNaming3(Naming3):
    broker_class = OrderMQBroker


class TestPublishers2(Publishers2):
    broker_class = OrderMQBroker


class TestPublishers3(Publishers3):
    broker_class = OrderMQBroker
