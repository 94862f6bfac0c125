"""Storage: one SQLite database, one writer thread, one table per queue.

| question | file |
|---|---|
| schema, reading records, opening and locking the database | store.py |
| offsets of new records, transactions, fsync, a full disk | group_commit.py |
| messages that leave one by one: half messages, timed messages | pending_log.py |
| deleting old messages | retention.py |
| the check after a crash | integrity.py |
| back-ups, restoring one | backup.py |
| the check by hand of everything | database_check.py |
| whether the paths of an open database still lead to it | own_files.py |

Nothing above this folder writes SQL against a queue's table; other rooms hand over
`Statement`s for the small tables as part of a `Write`.
"""

from ordermq.broker.store.group_commit import (
    Append,
    Done,
    QueueLog,
    Statement,
    Write,
    awaitable_done,
    joined,
)
from ordermq.broker.store.pending_log import PendingLog, Removal
from ordermq.broker.store.retention import Retention
from ordermq.broker.store.store import Store

__all__ = [
    "Append",
    "Done",
    "PendingLog",
    "QueueLog",
    "Removal",
    "Retention",
    "Statement",
    "Store",
    "Write",
    "awaitable_done",
    "joined",
]
