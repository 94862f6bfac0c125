"""Consume in several supervised processes: restarted after a crash, and one by one on SIGHUP.

    pip install 'ordermq[run]'
    ORDERMQ_NAME_SERVERS=127.0.0.1:9876 ordermq run run_processes:consumer --processes 4

Run it in the folder of this file. Each process imports it anew, and has a share of the queues.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ordermq import ConsumeContext, MessageView, PushConsumer

# The name servers come from the environment.
consumer = PushConsumer("billing", consume_from_where="first_offset")
consumer.subscribe("orders")


@consumer.orderly
def bill(messages: Sequence[MessageView], context: ConsumeContext) -> None:
    for message in messages:
        print(f"process {os.getpid()} bills {message.sharding_key} {message.text()}", flush=True)
