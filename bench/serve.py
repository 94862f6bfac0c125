"""An embedded broker as a process: python -m bench.serve DATA DURABILITY LEASE_MS [HISTORY]."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig, Durability
from ordermq.events import History, NoHistory


def main() -> None:
    data, durability, lease_ms = sys.argv[1:4]
    history = History(sys.argv[4], "broker") if len(sys.argv) > 4 else NoHistory()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = BrokerConfig(durability=Durability(durability), lock_max_live_ms=int(lease_ms))
    with EmbeddedBroker(Path(data), config=config, history=history) as broker:
        print(broker.address, flush=True)
        while not stop.wait(3600):
            continue


if __name__ == "__main__":
    main()
