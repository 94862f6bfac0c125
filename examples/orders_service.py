"""A FastAPI service that takes orders by HTTP and consumes them into a database, on one event loop.

    pip install 'ordermq[sql]' fastapi uvicorn aiosqlite
    ordermq broker --data orders.mq --port 9876 &
    export ORDERMQ_NAME_SERVERS=127.0.0.1:9876
    cd examples && uvicorn orders_service:app --port 8000
    curl -X POST 'localhost:8000/orders/o-17?step=paid'
    curl localhost:8000/orders/o-17

Start as many processes as you like, each on a port of its own: they share the queues. On SIGTERM a
process serves its last requests, finishes its batch, commits it and hands its queues over; the
others go on where it stopped, and nothing is delivered twice. What a crash repeats changes nothing:
the key of the table tells that it was written before.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request, Response
from sqlalchemy import Column, Integer, MetaData, String, Table, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateTable

from ordermq import AsyncBatch, AsyncConsumer, AsyncProducer, Message

TOPIC, GROUP = "orders", "order-book"
STEPS = Table(
    "steps",
    MetaData(),
    # Not queue and offset: a topic that is made anew, or another broker's, has the same ones again.
    Column("message_id", String, primary_key=True),
    Column("queue", String, nullable=False),
    Column("offset", Integer, nullable=False),
    Column("order_id", String, nullable=False),
    Column("step", String, nullable=False),
    Column("deliveries", Integer, nullable=False, default=1),
)


def connect() -> AsyncEngine:
    """Make the connection pool that requests and the consumer share."""
    url = os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///orders.db")
    return create_async_engine(url, connect_args={"timeout": 30})  # processes wait for each other


async def write(engine: AsyncEngine, batch: AsyncBatch) -> None:
    """Write a batch in one transaction."""
    queue = str(batch.message_queue)
    rows = [
        {
            "message_id": message.message_id,
            "queue": queue,
            "offset": message.queue_offset,
            "order_id": message.sharding_key,
            "step": bytes(message.body).decode(),
        }
        for message in batch
    ]
    again = {"deliveries": STEPS.c.deliveries + 1}
    statement = insert(STEPS).on_conflict_do_update(index_elements=STEPS.primary_key, set_=again)
    async with engine.begin() as connection:
        await connection.execute(statement, rows)


async def consume(engine: AsyncEngine, consumer: AsyncConsumer) -> None:
    """Write batch after batch; each is done as the next one is asked for."""
    async for batch in consumer:
        # After an exception, as of a database that is away, the batch comes again in a second, and
        # other queues go on; without this the loop would end, and the service with it.
        with batch:
            await write(engine, batch)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    engine = connect()
    async with engine.begin() as connection:
        # Not `create_all`: that looks first, and another process may create it in between.
        await connection.execute(CreateTable(STEPS, if_not_exists=True))
    async with (
        AsyncProducer("order-desk") as producer,
        AsyncConsumer(GROUP, TOPIC, consume_from_where="first_offset") as consumer,
    ):
        worker = asyncio.create_task(consume(engine, consumer))
        app.state.engine, app.state.producer, app.state.consumer = engine, producer, consumer
        yield  # here requests are served; uvicorn comes back on SIGTERM
        await consumer.close()  # the present batch is written, and the loop of `consume` ends
        await worker
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order_id}")
async def take_order(order_id: str, step: str, request: Request) -> dict[str, int]:
    """Return once the broker has stored the step; steps of one order stay in order."""
    message = Message(TOPIC, step.encode())
    receipt = await request.app.state.producer.send(message, sharding_key=order_id)
    return {"queue_id": receipt.message_queue.queue_id, "offset": receipt.queue_offset}


@app.get("/orders/{order_id}")
async def show_order(order_id: str, request: Request) -> list[str]:
    """Return the steps that were consumed, in their order."""
    query = select(STEPS.c.step).where(STEPS.c.order_id == order_id).order_by(STEPS.c.offset)
    async with request.app.state.engine.connect() as connection:
        steps = list((await connection.execute(query)).scalars())
    if not steps:
        raise HTTPException(404, "no step of this order has been consumed")
    return steps


@app.get("/health")
async def health(request: Request, response: Response) -> dict[str, object]:
    """Readiness for a load balancer: 503 while the consumer cannot work."""
    found = await request.app.state.consumer.health()
    response.status_code = 200 if found.is_ready else 503
    return {"queues": len(found.queues), "reasons": found.reasons}
