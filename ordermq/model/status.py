"""Results of listeners, of sends and of transactions, as their states."""

from __future__ import annotations

from enum import EnumType, StrEnum
from typing import TYPE_CHECKING, Final

# Names of the same in RocketMQ's other clients.
_OTHERS_NAMES: Final = {
    "ConsumeResult": {
        "CONSUME_SUCCESS": "SUCCESS",
        "OK": "SUCCESS",
        "RECONSUME_LATER": "SUSPEND",
        "SUSPEND_CURRENT_QUEUE_A_MOMENT": "SUSPEND",
        "FAILURE": "SUSPEND",
        "RETRY": "SUSPEND",
    },
    "SendStatus": {"OK": "SEND_OK"},
    "TransactionState": {
        "COMMIT_MESSAGE": "COMMIT",
        "ROLLBACK_MESSAGE": "ROLLBACK",
        "UNKNOW": "UNKNOWN",
    },
}


class _ExplainsMembers(EnumType):
    """Type of the classes here, whose errors name the member that another client's name means."""

    if not TYPE_CHECKING:  # type checkers would take every name for a member

        def __getattr__(cls, name: str) -> object:
            text = f"type object {cls.__name__!r} has no attribute {name!r}"
            wanted = name.upper()
            meant = _OTHERS_NAMES.get(cls.__name__, {}).get(wanted)
            if meant is not None:
                text += f": that is a name of RocketMQ's other clients; here {cls.__name__}.{meant}"
            elif not name.startswith("_") and wanted in cls.__members__:
                text += f": write {cls.__name__}.{wanted}"
            raise AttributeError(text)


class ConsumeResult(StrEnum, metaclass=_ExplainsMembers):
    """Result of a listener call (docs/internals/semantics.md#listener-results)."""

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND"  # retry the batch after a pause
    COMMIT = "COMMIT"  # auto_commit=False: commit everything delivered so far
    ROLLBACK = "ROLLBACK"  # auto_commit=False: redeliver everything not committed


class SendStatus(StrEnum, metaclass=_ExplainsMembers):
    """Durability of a stored message (docs/internals/protocol.md#response-codes)."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class TransactionState(StrEnum, metaclass=_ExplainsMembers):
    """State of a local transaction, returned by its listener."""

    COMMIT = "COMMIT"  # deliver the message
    ROLLBACK = "ROLLBACK"  # drop the message
    UNKNOWN = "UNKNOWN"  # the broker asks again later
