"""The contract of the core: what all three implementations promise, and their docstrings.

Annotate with these protocols; create with the classes of `ordermq.core`, which are the
chosen implementation's. Offsets are queue offsets, 0 .. 2**63 - 2. Times are milliseconds
of whatever clock the caller uses throughout; the core never reads a clock.
"""

from ordermq.core.interface.frame_codec import Header, ReadHeader
from ordermq.core.interface.java_hash import JavaHash
from ordermq.core.interface.lane_map import NO_KEY, LaneKey, LaneMap
from ordermq.core.interface.lock_table import LockEntry, LockTable, Queue
from ordermq.core.interface.message_codec import MessageIndex, MessageView
from ordermq.core.interface.message_run import MessageRun
from ordermq.core.interface.message_writer import EncodeBatch, RecordBlock, RecordWriter
from ordermq.core.interface.offset_map import OffsetMap
from ordermq.core.interface.process_queue import Batch, ProcessQueue, Segment
from ordermq.core.interface.row_columns import EncodeRows, OrderedRows, Texts

__all__ = [
    "NO_KEY",
    "Batch",
    "EncodeBatch",
    "EncodeRows",
    "Header",
    "LaneKey",
    "JavaHash",
    "LaneMap",
    "LockEntry",
    "LockTable",
    "MessageIndex",
    "MessageRun",
    "MessageView",
    "OffsetMap",
    "OrderedRows",
    "ProcessQueue",
    "ReadHeader",
    "RecordBlock",
    "RecordWriter",
    "Queue",
    "Segment",
    "Texts",
]
