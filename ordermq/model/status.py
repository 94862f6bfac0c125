"""Results of listeners, of sends and of transactions, as their states."""

from __future__ import annotations

from enum import StrEnum


class ConsumeResult(StrEnum):
    """Result of a listener call (docs/internals/semantics.md#listener-results)."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND"  # retry the batch after a pause
    COMMIT = "COMMIT"  # auto_commit=False: commit everything delivered so far
    ROLLBACK = "ROLLBACK"  # auto_commit=False: redeliver everything not committed


class SendStatus(StrEnum):
    """Durability of a stored message (docs/internals/protocol.md#response-codes)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class TransactionState(StrEnum):
    """State of a local transaction, returned by its listener."""

    COMMIT = "COMMIT"  # deliver the message
    ROLLBACK = "ROLLBACK"  # drop the message
    UNKNOWN = "UNKNOWN"  # the broker asks again later
