"""A group member for the chaos tests: python -m tests.chaos.member ADDRESS HISTORY SEEN."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence

from ordermq import MessageView, PushConsumer
from ordermq.consumer.listener import ConsumeContext


def main() -> None:
    address, history, seen, listener_ms = sys.argv[1:5]
    logging.basicConfig(level=logging.INFO)
    pause_s = float(listener_ms) / 1000
    out = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        if pause_s:
            time.sleep(pause_s)
        lines = [
            f"{context.message_queue.queue_id} {m.queue_offset} {m.sharding_key} "
            f"{bytes(m.body).decode()}\n"
            for m in messages
        ]
        os.write(out, "".join(lines).encode())

    consumer = PushConsumer(
        "g",
        name_servers=address,
        history=history,
        consume_from_where="first_offset",
        consume_message_batch_max_size=4,
        commit_interval_ms=100,
        suspend_current_queue_time_ms=10,
    )
    consumer.subscribe("orders")
    consumer.orderly(listen)
    print(consumer.client_id, flush=True)
    raise SystemExit(0 if consumer.run() else 1)


if __name__ == "__main__":
    main()
