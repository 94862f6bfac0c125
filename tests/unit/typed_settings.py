"""A program that test_settings_types.py has checked: each line marked `error` has one, no other."""

from collections.abc import Sequence
from dataclasses import dataclass

from ordermq import (
    AsyncConsumer,
    AsyncProducer,
    ConsumeContext,
    JsonCodec,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    PydanticCodec,
    TransactionProducer,
)
from ordermq.admin.admin import Admin
from ordermq.config import CompressionType, ConsumerConfig, ProducerConfig

Producer("shop", name_servers="a:1", send_timeout_ms=500, compress_type="lz4")
Producer("shop", name_servers=["a:1"], compress_type=CompressionType.ZSTD)
Producer(config=ProducerConfig.from_url("rocketmq://a:1?group=shop"))
Producer("shop", name_servers="a:1", send_timout_ms=500)  # error
Producer("shop", name_servers="a:1", compress_type="gzip")  # error
TransactionProducer("shop", name_servers="a:1", retry_time=2)  # error
PushConsumer("billing", name_servers="a:1", pull_batch_size=64, consume_from_where="first_offset")
PushConsumer("billing", config=ConsumerConfig.from_env())
PushConsumer("billing", name_servers="a:1", pull_batchsize=64)  # error
PushConsumer("billing", name_servers="a:1", pull_batch_size="64")  # error
LitePullConsumer("billing", name_servers="a:1", ordered=True, auto_commit=False)
LitePullConsumer("billing", name_servers="a:1", auto_comit=False)  # error
PullConsumer("billing", name_servers="a:1", pull_timeout_ms=3000)
PullConsumer("billing", name_servers="a:1", pull_timeout=3000)  # error
Admin("a:1", access_key="me", secret_key="x")
Admin("a:1", acces_key="me")  # error
AsyncProducer("shop", name_servers="a:1", send_timeout_ms=500)
AsyncProducer("shop", name_servers="a:1", send_timout_ms=500)  # error
AsyncConsumer("billing", "orders", name_servers="a:1", poll_batch_size=64)
AsyncConsumer("billing", "orders", name_servers="a:1", consume_thread_count=64)
AsyncConsumer("billing", "orders", name_servers="a:1", pol_batch_size=64)  # error
Producer("shop", name_servers="a:1", codec=JsonCodec()).message("orders", [1], tags="paid")
Producer("shop", name_servers="a:1", codec=JsonCodec()).message("orders", [1], tag="paid")  # error
PushConsumer("billing", name_servers="a:1", codec=JsonCodec())
PushConsumer("billing", name_servers="a:1", codek=JsonCodec())  # error
LitePullConsumer("billing", name_servers="a:1", codec=JsonCodec)  # error
PullConsumer("billing", name_servers="a:1", codec=repr)  # error
AsyncProducer("shop", name_servers="a:1", codec=JsonCodec())
AsyncProducer("shop", name_servers="a:1", coded=JsonCodec())  # error
AsyncConsumer("billing", "orders", name_servers="a:1", codec=JsonCodec())
AsyncConsumer("billing", "orders", name_servers="a:1", kodec=JsonCodec())  # error


@dataclass
class Order:
    number: str


def bill(messages: Sequence[MessageView[Order]], context: ConsumeContext) -> None:
    for message in messages:
        message.value().number.upper()
        message.value().numbr.upper()  # error


def untyped(messages: Sequence[MessageView], context: ConsumeContext) -> None:
    messages[0].value().anything()


PushConsumer("billing", name_servers="a:1", codec=JsonCodec(Order)).orderly(bill)
PushConsumer("billing", name_servers="a:1").orderly(untyped)
JsonCodec(Order).decode(b"{}").number.upper()
JsonCodec(Order).decode(b"{}").numbr.upper()  # error
JsonCodec(Order).encode("an order")  # error
JsonCodec(Order | None).decode(b"{}")
JsonCodec().decode(b"{}").anything()
PydanticCodec(Order).decode(b"{}").numbr.upper()  # error
Message("orders", b"paid", key="o-17")  # error
Producer("shop", name_servers="a:1").send(Message("orders", b"x"), key="o-17")  # error
