"""A consumer for `ordermq run`: its group, name servers and account come from the environment.

    ORDERMQ_GROUP=billing ORDERMQ_NAME_SERVERS=127.0.0.1:9876 ordermq run billing:consumer

compose.yaml and kubernetes.yaml beside it run it in containers (docs/deploy.md).
"""

from collections.abc import Sequence

from ordermq import ConsumeContext, ConsumerConfig, MessageView, PushConsumer

consumer = PushConsumer(config=ConsumerConfig.from_env())
consumer.subscribe("orders")


@consumer.orderly
def bill(messages: Sequence[MessageView], context: ConsumeContext) -> None:
    for message in messages:
        print(f"billed {message.sharding_key}: {message.text()}", flush=True)
