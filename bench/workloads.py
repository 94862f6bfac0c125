"""Sizes, seeds and key skew of every benchmark.

ORDERMQ_BENCH=quick makes those of the core small, to check in seconds that they run; such figures
mean nothing.
"""

from __future__ import annotations

import os

CATCH_UP_MESSAGES = 500_000
# What slower clients read of the topic, beside ours and Java's; half of it is timed.
PEER_MESSAGES = {
    "Go client": 300_000,
    "Rust client": 300_000,
    "rocketmq 0.4.4": 400_000,
    "gRPC client": 8_000,
}
CATCH_UP_BODY_BYTES = 100
CATCH_UP_QUEUES = 8
PULL_SIZE = 32
LISTENER_BATCHES = (1, 32)
HAND_OFF_RATE = 400  # messages per second, the rate at which Java was measured
HAND_OFF_QUEUES = 8
HAND_OFF_ROUNDS = 20
TAKE_OVER_LEASE_MS = 5_000
TAKE_OVER_ROUNDS = 5
SEED = 20_261_121
CORE_ROUNDS = 5
CORE_BATCH = 32  # messages of one put, take and commit
# Messages buffered, rounded down to whole batches.
CORE_DEPTHS: tuple[int, ...] = (
    0,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
)  # rounded down to whole batches
CORE_SLOW_DEPTHS: tuple[int, ...] = (0, 1_000, 10_000)  # of a peer whose put is O(n)
CORE_SLOW_BATCHES = 64  # cycles of one of its figures
CORE_BATCHES_TIMED = 4_096  # put, take, commit cycles of one figure
CORE_MATRIX_BATCHES: tuple[int, ...] = (1, 8, 32, 256, 1_024)  # messages a call
CORE_MATRIX_MESSAGES = 8_192  # of one timing
CORE_MAP_SIZES: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
CORE_MAP_PAIRS = 50_000  # one put and one removal each
CORE_MAP_BLOCK = 256  # keys that come, and that go, in one bulk call
CORE_MAP_DISORDER = 16  # offsets that arrive shuffled among themselves
CORE_LOCK_ENTRIES: tuple[int, ...] = (1, 64, 1_024, 65_536, 1_000_000)
CORE_LOCK_GROUP = 1_024  # queues of one group
CORE_LOCK_BATCHES: tuple[int, ...] = (1, 64, 1_024)
CORE_LOCK_RENEWALS = 200_000  # queues renewed for one figure
CORE_LANE_KEYS: tuple[int, ...] = (1, 100, 10_000, 1_000_000)
CORE_LANE_IN_FLIGHT: tuple[int, ...] = (1, 32, 1_024)
CORE_LANE_STANDING = 4_096  # messages delivered and not done
CORE_LANE_MESSAGES = 65_536  # added, taken and ended for one figure
CORE_ID_WINDOWS: tuple[int, ...] = (1_000, 10_000, 100_000)
CORE_ID_MESSAGES = 16_384  # noted for one figure; at most the largest window
CORE_CODEC_MESSAGES: tuple[int, ...] = (1, 32, 1_024)
CORE_CODEC_BODY_BYTES: tuple[int, ...] = (100, 1_000)
CORE_CODEC_TIMED = 100_000  # messages decoded for one figure
CORE_MEMORY_MESSAGES: tuple[int, ...] = (1_000_000, 10_000_000)
CORE_MEMORY_RECEIVED = 1_000_000  # whose bodies have to be there too
CORE_WARM_MS = 250  # the JIT's, twice before each of Java's figures

SPARK_ROWS = 1_000_000
SPARK_ROUNDS = 5
SPARK_KEYS: tuple[int, ...] = (1_000, 10_000)
SPARK_MOST_PANDAS_GROUPS = 1_000
SPARK_MEMORY_ROWS = 2_000_000
SPARK_GROWTH_ROWS = 512_000
SPARK_GROWTH_ROUNDS = 3
SPARK_GROWTH_QUEUES: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
SPARK_GROWTH_KEYS: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000)
SPARK_GROWTH_BATCH_ROWS: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
SPARK_MOST_ARROW_GROUPS = 10_000

if os.environ.get("ORDERMQ_BENCH") == "long":  # ci/bench.sh spark --long
    SPARK_ROUNDS = SPARK_GROWTH_ROUNDS = 7
    SPARK_MEMORY_ROWS = 10_000_000
    SPARK_GROWTH_ROWS = 2_048_000
    SPARK_MOST_ARROW_GROUPS = 100_000

IS_QUICK = os.environ.get("ORDERMQ_BENCH") == "quick"
if IS_QUICK:
    CORE_ROUNDS = 1
    CORE_DEPTHS = CORE_SLOW_DEPTHS = (0, 1_000)
    CORE_BATCHES_TIMED = CORE_SLOW_BATCHES = 64
    CORE_MATRIX_BATCHES = (1, 32)
    CORE_MATRIX_MESSAGES = 64
    CORE_MAP_SIZES = (1_000,)
    CORE_MAP_PAIRS = 600
    CORE_LOCK_ENTRIES = (64, 1_024)
    CORE_LOCK_RENEWALS = 2_048
    CORE_LANE_KEYS = (1, 100)
    CORE_LANE_IN_FLIGHT = (1, 32)
    CORE_LANE_STANDING = CORE_LANE_MESSAGES = 256
    CORE_ID_WINDOWS = (64, 16_384)
    CORE_ID_MESSAGES = 256
    CORE_CODEC_MESSAGES = (1, 32)
    CORE_CODEC_TIMED = 64
    CORE_MEMORY_MESSAGES = (32_000,)
    CORE_MEMORY_RECEIVED = 32_000
    CORE_WARM_MS = 1
    SPARK_ROWS = 20_000
    SPARK_ROUNDS = 1
    SPARK_KEYS = (100,)
    SPARK_MEMORY_ROWS = 200_000
    SPARK_GROWTH_ROWS = 64_000
    SPARK_GROWTH_ROUNDS = 1
    SPARK_GROWTH_QUEUES = (1, 8, 64)
    SPARK_GROWTH_KEYS = (10, 1_000)
    SPARK_GROWTH_BATCH_ROWS = (100, 10_000)
