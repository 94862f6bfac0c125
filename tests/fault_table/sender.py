"""A producer as a process, which sends until its standard input ends:
python -m tests.fault_table.sender NAME_SERVERS TOPIC FIRST KEYS FORKS SETTINGS, the last as JSON.

Prints each acknowledged message as a JSON line. After every FORKS messages (0: never) it forks a
child that sends with the parent's producer, which must be refused, and then with its own.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import traceback
from typing import Any

from ordermq import Message, Producer
from ordermq.errors import OrderMQError

BLOCK = 16


def say(**members: object) -> None:
    os.write(1, json.dumps(members).encode() + b"\n")


def fork(producer: Producer, topic: str, settings: dict[str, Any]) -> None:
    """Fork, and report what the child was allowed to do."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(try_in_child(producer, topic, settings))
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    say(forked=os.waitstatus_to_exitcode(status))


def try_in_child(inherited: Producer, topic: str, settings: dict[str, Any]) -> int:
    try:
        inherited.send(Message(topic, b"-1"), sharding_key="child")
    except OrderMQError:
        with Producer("child", **settings) as own:
            own.send(Message(f"{topic}-children", b"0"))
        return 0
    return 1


def main() -> None:
    name_servers, topic, *numbers, given = sys.argv[1:]
    first, keys, forks = map(int, numbers)
    settings = {"name_servers": name_servers} | json.loads(given)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with Producer("senders", retry_times=200, **settings) as producer:
        say(ready=True)
        for block in itertools.count(first, BLOCK):
            if over.wait(0.01):
                return
            wanted = range(block, block + BLOCK)
            events = [
                (Message(topic, str(number).encode()), f"k{number % keys}") for number in wanted
            ]
            for number, receipt in zip(wanted, producer.send_stream(events), strict=True):
                queue = receipt.message_queue
                say(
                    acknowledged=number,
                    topic=topic,
                    broker=queue.broker_name,
                    queue=queue.queue_id,
                    offset=receipt.queue_offset,
                    key=f"k{number % keys}",
                )
            if forks and (block - first) // BLOCK % forks == forks - 1:
                fork(producer, topic, settings)


if __name__ == "__main__":
    main()
