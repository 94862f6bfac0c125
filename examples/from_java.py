"""A program as one writes it with Java's client: accounts and their policies, a namespace, a
transactional producer, an orderly listener that suspends its queue, and traces of messages.

python examples/from_java.py                    at a broker of its own
python examples/from_java.py 127.0.0.1:9876     at a RocketMQ of 5.3 or later, with its ACL 2

RocketMQ has the accounts and policies below once its administrator has made them; `ops` is of the
type Super. It asks about the third order within 40 s (transactionTimeOut and
transactionCheckInterval), and mqadmin queryMsgTraceById shows the traces.

    mqadmin createUser -n NAME_SERVERS -b BROKER -u shop -p 'key of shop' -t Normal
    mqadmin createAcl -n NAME_SERVERS -b BROKER -s User:shop -a Pub -d Allow \\
        -r Topic:eu%orders,Topic:RMQ_SYS_TRACE_TOPIC
    mqadmin createUser -n NAME_SERVERS -b BROKER -u billing -p 'key of billing' -t Normal
    mqadmin createAcl -n NAME_SERVERS -b BROKER -s User:billing -a Sub,Get -d Allow \\
        -r Topic:eu%orders,Group:eu%billing,Group:TOOLS_CONSUMER
    mqadmin createAcl -n NAME_SERVERS -b BROKER -s User:billing -a Pub -d Allow \\
        -r Topic:RMQ_SYS_TRACE_TOPIC
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from ordermq import (
    Admin,
    ConsumeContext,
    ConsumeResult,
    Message,
    MessageView,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.broker import EmbeddedBroker
from ordermq.config import AccessPolicy, BrokerConfig

TRACES = AccessPolicy("Topic:RMQ_SYS_TRACE_TOPIC", "PUB")
CONFIG = BrokerConfig(
    accounts={"shop": "key of shop", "billing": "key of billing", "ops": "key of ops"},
    policies={  # of names as the broker knows them; `ops` has none, and may do everything
        "shop": [AccessPolicy("Topic:eu%orders", "PUB"), TRACES],
        "billing": [
            AccessPolicy("Topic:eu%orders", ["SUB", "GET"]),
            AccessPolicy("Group:eu%billing", ["SUB", "GET"]),
            AccessPolicy("Group:TOOLS_CONSUMER", "SUB"),  # to notice a topic that is made anew
            TRACES,
        ],
    },
    transaction_timeout_ms=200,  # here only: the broker asks after 6 s by default
    transaction_check_interval_ms=200,
)


class Orders:
    """TransactionListener: what became of an order in the shop's database."""

    def execute(self, message: Message, number: int) -> TransactionState:
        return (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)[
            number
        ]

    def check(self, message: MessageView) -> TransactionState:
        return TransactionState.COMMIT  # the broker asks about the third


def main(servers: str) -> None:
    shop = TransactionProducer(
        "shop",
        Orders(),
        topics=["orders"],
        name_servers=servers,
        namespace="eu",
        access_key="shop",
        secret_key="key of shop",
        enable_msg_trace=True,
    )
    consumer = PushConsumer(
        "billing",
        name_servers=servers,
        namespace="eu",
        access_key="billing",
        secret_key="key of billing",
        consume_from_where="first_offset",
        enable_msg_trace=True,
    )
    consumer.subscribe("orders", "paid || refunded")
    billed: list[str] = []
    done = threading.Event()

    @consumer.orderly
    def bill(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult:
        (message,) = messages
        if message.text() == "0" and context.attempt == 0:
            context.suspend_ms = 50
            return ConsumeResult.SUSPEND  # later messages of the queue wait
        billed.append(f"{message.text()} at attempt {context.attempt + 1}")
        if message.text() == "2":
            done.set()
        return ConsumeResult.SUCCESS

    with shop, consumer:
        for number in range(3):
            message = Message("orders", b"%d" % number, tags="paid", keys=f"o-{number}")
            receipt = shop.send_in_transaction(message, number, sharding_key="ann")
            print("order", number, receipt.state.name)
        if not done.wait(120):
            print("the broker has not asked about order 2")
    print("billed:", ", ".join(billed))
    print("traces dropped:", shop.traces_dropped + consumer.traces_dropped)
    with Admin(servers, access_key="ops", secret_key="key of ops", namespace="eu") as admin:
        print("topics:", *(topic.name for topic in admin.topics()))
        print("traces written:", admin.topic("RMQ_SYS_TRACE_TOPIC").messages > 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with EmbeddedBroker(config=CONFIG) as broker:
            main(broker.name_servers)
