"""An embedded broker as a process: python -m bench.serve DATA DURABILITY LEASE_MS [HISTORY].

It prints its address, and at its end a line of JSON: what it stored, in how many commits.
"""

from __future__ import annotations

import json
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
    counted = broker.statistics
    stored = {"messages_stored": counted.messages_stored, "store_groups": counted.store_groups}
    print(json.dumps(stored), flush=True)


if __name__ == "__main__":
    main()
