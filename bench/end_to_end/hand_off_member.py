"""A member of the hand-off benchmark: a fast listener, a history, and `run()`.

It leaves the times of its lock requests beside its history.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.end_to_end.lock_requests import counted, file_of
from ordermq import MessageQueue, MessageView, PushConsumer
from ordermq.consumer.listener import ConsumeContext


def main() -> None:
    address, topic, group, history, listener_ms = sys.argv[1:6]
    pause_s = float(listener_ms) / 1000

    def tell(queue: MessageQueue) -> None:
        print(f"assigned {queue.queue_id}", flush=True)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        if pause_s:
            time.sleep(pause_s)

    consumer = PushConsumer(
        group,
        name_servers=address,
        history=history,
        on_assigned=tell,
        consume_from_where="first_offset",
    )
    consumer.subscribe(topic)
    consumer.orderly(listen)
    with counted(file_of(Path(history))):
        consumer.run()


if __name__ == "__main__":
    main()
