"""The core in plain dicts and sorted(): the oracle the native cores are tested against.

Written from the semantics, never optimised. Contracts: ordermq/core/interface.
"""

from ordermq.core.reference.frame_codec import read_header
from ordermq.core.reference.java_hash import java_hash
from ordermq.core.reference.lane_map import LaneMap
from ordermq.core.reference.lock_table import LockTable
from ordermq.core.reference.message_codec import MessageIndex, MessageView
from ordermq.core.reference.message_run import MessageRun
from ordermq.core.reference.message_writer import RecordBlock, RecordWriter, encode_batch
from ordermq.core.reference.offset_map import OffsetMap
from ordermq.core.reference.process_queue import ProcessQueue
from ordermq.core.reference.row_columns import encode_rows, ordered_rows

__all__ = [
    "LaneMap",
    "LockTable",
    "MessageIndex",
    "MessageRun",
    "MessageView",
    "OffsetMap",
    "ProcessQueue",
    "RecordBlock",
    "RecordWriter",
    "encode_batch",
    "encode_rows",
    "java_hash",
    "ordered_rows",
    "read_header",
]
