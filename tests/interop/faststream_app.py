"""A FastStream application that notes what it handled, to be killed:
python -m tests.interop.faststream_app NAME_SERVERS GROUP TOPIC FILE.
"""

from __future__ import annotations

import asyncio
import sys

from faststream import FastStream

from ordermq.contrib.faststream import OrderMQBroker
from tests.interop.cluster import LOCK_INTERVAL_MS, LOCK_MAX_LIVE_MS


def main() -> None:
    name_servers, group, topic, file = sys.argv[1:5]
    broker = OrderMQBroker(name_servers, group=group, logger=None)

    @broker.subscriber(
        topic,
        group=group,
        order="key",
        consume_from_where="first_offset",
        lock_max_live_ms=LOCK_MAX_LIVE_MS,
        lock_interval_ms=LOCK_INTERVAL_MS,
    )
    async def note(number: int) -> None:
        await asyncio.sleep(0.02)  # a call that a kill may hit
        with open(file, "a") as out:
            out.write(f"{number}\n")

    asyncio.run(FastStream(broker).run())


if __name__ == "__main__":
    main()
