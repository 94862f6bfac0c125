"""A member, to be killed: python -m tests.exactly_once.member ADDRESS DATABASE LEASE_MS MODE.

MODE is pull or pop; an address of grpc:// pops in any case.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Sequence

from ordermq import MessageView, PushConsumer
from ordermq.consumer.listener import ConsumeContext
from ordermq.sql import SqlOffsetStore
from tests.exactly_once.tables import count, engine_of

GROUP, TOPIC = "bookkeeping", "payments"


def main() -> None:
    address, database, lease_ms, mode = sys.argv[1:5]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    consumer = PushConsumer(
        GROUP,
        name_servers=address,
        # A proxy starts every group at the end, which the runner has moved.
        consume_from_where="last_offset" if address.startswith("grpc://") else "first_offset",
        consume_mode="pop" if mode == "pop" else "pull",
        pop_invisible_ms=int(lease_ms),
        pop_poll_ms=200,
        consume_message_batch_max_size=32,
        commit_interval_ms=500,
        suspend_current_queue_time_ms=200,
        lock_max_live_ms=int(lease_ms) // 2,
        lock_interval_ms=max(int(lease_ms) // 6, 10),
        # Shorter than the shortest freeze, so that its transactions do end while it sleeps.
        offset_store=SqlOffsetStore(engine_of(database), idle_timeout_ms=int(lease_ms) // 2),
    )
    consumer.subscribe(TOPIC)

    @consumer.orderly
    def book(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        batch = []
        for message in messages:
            nth, cents = json.loads(bytes(message.body))
            batch.append((message.queue_offset, message.sharding_key or "", nth, cents))
        count(context.transaction(), str(context.message_queue), batch)

    # From here on: the runner may end a member as soon as it has this line.
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    print(consumer.client_id, flush=True)
    raise SystemExit(0 if consumer.run() else 1)


if __name__ == "__main__":
    main()
