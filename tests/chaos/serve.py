"""A broker to be killed: python -m tests.chaos.serve DATABASE PORT LEASE_MS HISTORY [NAME [SETTINGS
of BrokerConfig as JSON]]."""

from __future__ import annotations

import json
import signal
import sys
import threading
import uuid

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.events import History


def main() -> None:
    path, port, lease_ms, history, *more = sys.argv[1:]
    name, settings = (*more, *("embedded", "{}")[len(more) :])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        History(history, f"broker-{uuid.uuid4().hex[:8]}") as recorder,
        EmbeddedBroker(
            path,
            port=int(port),
            config=BrokerConfig(
                broker_name=name,
                lock_max_live_ms=int(lease_ms),
                client_scan_interval_ms=500,
                durability="fsync",
                **json.loads(settings),
            ),
            history=recorder,
        ) as broker,
    ):
        print(broker.address, flush=True)
        while not stop.wait(3600):
            continue


if __name__ == "__main__":
    main()
