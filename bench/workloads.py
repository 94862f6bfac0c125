"""Sizes, seeds and key skew of every benchmark: one place."""

from __future__ import annotations

CATCH_UP_MESSAGES = 500_000
CATCH_UP_BODY_BYTES = 100
CATCH_UP_QUEUES = 8
PULL_SIZE = 32
LISTENER_BATCHES = (1, 32)
HAND_OFF_RATE = 400  # messages a second, as Java was measured (targets.md)
HAND_OFF_QUEUES = 8
HAND_OFF_ROUNDS = 20
TAKE_OVER_LEASE_MS = 5_000
TAKE_OVER_ROUNDS = 5
SEED = 20_261_121
