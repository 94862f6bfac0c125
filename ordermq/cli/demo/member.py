"""A consumer process of the demo: writes the logs of the aircraft in its queues.

Run as `python -m ordermq.cli.demo.member`; on SIGTERM it hands its queues over and exits.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import click
import orjson

from ordermq.cli.demo.logbook import Logbook, StaleOwner
from ordermq.config import ConsumeFromWhere
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.model.message import MessageView
from ordermq.model.status import ConsumeResult

GROUP = "aircraft-logs"
TOPIC = "flights"
BATCH = 64


def main() -> None:
    """Join the group; print the client id as one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--logbook", type=Path, required=True)
    parser.add_argument("--history", type=Path, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logbook = Logbook(given.logbook)
    consumer = PushConsumer(
        GROUP,
        name_servers=given.name_servers,
        history=given.history,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=BATCH,
        consume_thread_count=4,
        commit_interval_ms=500,  # short, so that a kill causes few redeliveries
    )
    consumer.subscribe(TOPIC)

    @consumer.orderly
    def write_logs(
        messages: Sequence[MessageView], context: ConsumeContext
    ) -> ConsumeResult | None:
        queue = str(context.message_queue)
        epoch, _ = context.fence_token
        batch = [
            (message.queue_offset, message.sharding_key or "", orjson.loads(message.body))
            for message in messages
        ]
        try:
            logbook.apply(queue, epoch, batch)
        except StaleOwner as error:
            logging.warning("%s", error)
            logbook.refused(queue)
            # Not done: the new owner has the batch, and this member loses the queue in a moment.
            return ConsumeResult.SUSPEND
        return None

    # Started first: whoever reads the line may kill the broker, and nothing starts without one.
    consumer.start()
    click.echo(orjson.dumps({"client": consumer.client_id}).decode())
    consumer.run()
    logbook.close()


if __name__ == "__main__":
    main()
