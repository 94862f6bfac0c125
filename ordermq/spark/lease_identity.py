"""Who holds the queues of a running query: the contract between source and stages.

Each run of a streaming query in ordered mode (option `ordered`) draws a lease id, and holds
its queues at the broker as the client `lease_client_id(group, lease)`. Every row the source
gives carries that id in the column `lease` (BIGINT, the last one, 8 bytes a row). A stage that
asks the broker for the lock of the row's queue under the same client id learns whether the run
still holds it: its driver renews the locks, so the answer is yes until the run has ended and
another holder has begun. In a batch read, which holds nothing, the column is null.
"""

from __future__ import annotations

import secrets
from typing import Final

LEASE_COLUMN: Final = "lease"


def new_lease() -> int:
    """A lease id nobody has: 1 .. 2^63 - 1, random."""
    return secrets.randbelow((1 << 63) - 1) + 1


def lease_client_id(group: str, lease: int) -> str:
    """The client id a run holds its queues as, and its executors ask under."""
    return f"{group}@spark@{lease:016x}"
