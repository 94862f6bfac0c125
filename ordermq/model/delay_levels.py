"""Levels of delay, as brokers have them unless configured otherwise."""

from __future__ import annotations

# messageDelayLevel of RocketMQ's default MessageStoreConfig; level n is entry n - 1.
DELAY_LEVELS_MS = tuple(
    seconds * 1_000
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200,
    )
)  # fmt: skip
FIRST_RETRY_LEVEL = 3  # attempt n waits at level 3 + n as in Java: 10 s, 30 s, 1 min ..
