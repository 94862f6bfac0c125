"""A consumer process of the demo: writes the logs of the aircraft in its queues.

Run as `python -m ordermq.cli.demo.member`; on SIGTERM it hands its queues over and exits, with 1 if
it could not in time.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ordermq import json_text
from ordermq.cli.demo.flights import TOPIC
from ordermq.cli.demo.logbook import Logbook
from ordermq.config import ConsumeFromWhere
from ordermq.consumer.hooks import ConsumeCall
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.errors import StaleOwner
from ordermq.model.message import MessageView

GROUP = "aircraft-logs"
BATCH = 64


class CountRefusals:
    """Hook that counts the calls whose transaction was refused: the queue has a newer owner."""

    def __init__(self, logbook: Logbook) -> None:
        self._logbook = logbook

    def before(self, call: ConsumeCall) -> None: ...

    def after(self, call: ConsumeCall) -> None:
        if isinstance(call.exception, StaleOwner):
            self._logbook.refused(call.message_queue)


def main() -> int:
    """Join the group; print the client id as a JSON line, and one for each queue assigned.

    Returns: the exit code.
    """
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
        offset_store=logbook.store,
        on_assigned=lambda queue: tell(queue.queue_id),
    )

    def tell(queue_id: int | None) -> None:
        click.echo(json_text.dumps({"client": consumer.client_id, "assigned": queue_id}).decode())

    consumer.subscribe(TOPIC)
    consumer.add_hook(CountRefusals(logbook))

    @consumer.orderly
    def write_logs(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        batch = [
            (message.queue_offset, message.sharding_key or "", json_text.loads(message.body))
            for message in messages
        ]
        # Begun late: in SQLite it keeps all others from writing.
        logbook.apply(context.transaction(), context.message_queue, batch)

    # Started first: whoever reads the line may kill the broker, and nothing starts without one.
    consumer.start()
    tell(None)
    is_handed_over = consumer.run()
    logbook.close()
    return 0 if is_handed_over else 1


if __name__ == "__main__":
    sys.exit(main())
