"""An application of FastStream: orders in, bills out, in the order of each customer.

pip install 'ordermq[faststream]'
cd examples && faststream run orders_faststream:app      at a name server on port 9876
python examples/orders_faststream.py                     at a broker of its own
"""

from __future__ import annotations

import asyncio
import logging

from faststream import Depends, FastStream
from faststream.asgi import AsgiFastStream
from pydantic import BaseModel

from ordermq import DeadLetter, Retry
from ordermq.contrib.faststream import OrderMQBroker, OrderMQResponse, TestOrderMQBroker


class Order(BaseModel):
    """An order of a shop."""

    customer: str
    number: int
    cents: int


class Bill(BaseModel):
    """The answer to an order."""

    number: int
    cents: int


broker = OrderMQBroker("127.0.0.1:9876", group="billing", logger=logging.getLogger("billing"))
app = FastStream(broker)
web = AsgiFastStream(broker, asyncapi_path="/docs")  # uvicorn orders_faststream:web


posted: asyncio.Queue[Bill] = asyncio.Queue()


def tax_percent() -> int:
    """A dependency, as a connection pool would be."""
    return 20


@broker.subscriber(
    "orders",
    order="key",  # customers in parallel, the orders of each one after the other
    consume_from_where="first_offset",
    on_failure=DeadLetter(max_attempts=5, retry=Retry(backoff_ms=100, factor=2)),
)
@broker.publisher("bills")
async def bill(order: Order, tax: int = Depends(tax_percent)) -> OrderMQResponse:
    """Bill an order; an exception repeats it, and the customer's later orders wait."""
    made = Bill(number=order.number, cents=order.cents * (100 + tax) // 100)
    return OrderMQResponse(made, sharding_key=order.customer)


@broker.subscriber("bills", consume_from_where="first_offset")
async def post(made: Bill) -> None:
    """Send a bill."""
    print(f"bill {made.number}: {made.cents} cents")
    await posted.put(made)


async def main() -> None:
    """Run the application at an embedded broker, as a test of it would."""
    async with TestOrderMQBroker(broker, embedded=True) as tested:
        for number in range(1, 4):
            order = Order(customer="ann", number=number, cents=number * 100)
            await tested.publish(order, "orders", sharding_key=order.customer)
        async with asyncio.timeout(60):
            for _ in range(3):
                await posted.get()


if __name__ == "__main__":
    asyncio.run(main())
