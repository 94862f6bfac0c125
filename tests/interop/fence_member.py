"""A group member on a host with clocks of its own, which writes by the recipe of fence tokens:
python -m tests.interop.fence_member NAME_SERVERS GROUP TOPIC HISTORY DATABASE UPTIME_MS WALL_MS

The database is a file of SQLite, or the URL of a PostgreSQL.
Told "rest" it leaves the group, told "work" it joins again; told "all" it asks for every queue,
told "share" for its own ones; told "count" it answers how many it holds. Prints each refused
write. Leaves when its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from examples.write_once import StaleOwner
from ordermq import MessageView, PushConsumer
from ordermq.clock import CLOCK_ID, SystemClock
from ordermq.consumer.group.allocation import allocate_avg
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import RETRY_PREFIX
from tests.interop.fenced_table import open_table

LOCK_MS = 8_000  # of the broker
_WORK_S = 0.03  # between reading the token and writing: a freeze shall find a member there


class HostClock(SystemClock):
    """The clocks of another host."""

    def __init__(self, uptime_ms: int, wall_ms: int) -> None:
        self._uptime_ms = uptime_ms
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._uptime_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._wall_ms


def main() -> None:
    name_servers, group, topic, history, path, uptime_ms, wall_ms = sys.argv[1:8]
    table, one_writer = open_table(path), threading.Lock()

    def say(**members: object) -> None:
        os.write(1, json.dumps(members).encode() + b"\n")

    def listen(messages: Sequence[MessageView], context: Any) -> None:
        if context.message_queue.topic.startswith(RETRY_PREFIX):
            return
        epoch, _ = context.fence_token
        queue = context.message_queue.queue_id
        threading.Event().wait(_WORK_S)
        try:
            with one_writer:
                table.write(str(queue), epoch, messages)
        except StaleOwner:
            say(refused=epoch, queue=queue, t=time.clock_gettime_ns(CLOCK_ID))
            raise

    wants_all = threading.Event()

    def allocate(
        queues: Sequence[MessageQueue], members: Sequence[str], own: str
    ) -> list[MessageQueue]:
        # A frozen member stays in the broker's list for two minutes: nobody would ask for its
        # queues before.
        return list(queues) if wants_all.is_set() else allocate_avg(queues, members, own)

    consumer = PushConsumer(
        group,
        name_servers=name_servers,
        history=history,
        clock=HostClock(int(uptime_ms), int(wall_ms)),
        consume_from_where="first_offset",
        consume_message_batch_max_size=4,
        commit_interval_ms=200,
        route_interval_ms=500,
        heartbeat_interval_ms=1_000,
        suspend_current_queue_time_ms=20,
        allocation=allocate,
        rebalance_interval_ms=200,
        lock_max_live_ms=LOCK_MS // 2,
        lock_interval_ms=LOCK_MS // 6,
        lock_retry_ms=50,
    )
    consumer.subscribe(topic)
    consumer.orderly(listen)
    with consumer:
        say(ready=consumer.client_id)
        for line in sys.stdin:
            if line == "rest\n":
                consumer.pause(release=True)
            elif line == "work\n":
                consumer.resume()
            elif line == "all\n":
                wants_all.set()
            elif line == "share\n":
                wants_all.clear()
            else:
                say(count=sum(queue.topic == topic for queue in consumer.assigned_queues()))


if __name__ == "__main__":
    main()
