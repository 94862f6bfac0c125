"""Send the steps of an order, and consume them in their order; nothing needs to run beforehand.

python examples/first_steps.py
"""

from __future__ import annotations

from collections.abc import Sequence

from ordermq import ConsumeContext, Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker


def main() -> None:
    # With a cluster of RocketMQ, give its name servers to the clients, and leave the broker out.
    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for step in ("placed", "paid", "shipped"):
                # The key says what stays in order; all its messages go to one queue.
                producer.send(Message("orders", step.encode()), sharding_key="o-17")

        consumer = PushConsumer(
            "billing", name_servers=broker.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")

        @consumer.orderly
        def bill(messages: Sequence[MessageView], context: ConsumeContext) -> None:
            for message in messages:
                print(message.sharding_key, message.text())
                if message.text() == "shipped":
                    consumer.stop()  # a service leaves this out, and runs until SIGTERM

        consumer.run()


if __name__ == "__main__":
    main()
