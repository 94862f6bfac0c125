"""The C core through cffi, for PyPy and for callers with C of their own.

Contracts: ordermq/core/interface.py. cffi lets go of the GIL in every call, so each object here
has a lock of its own beside the C mutex: it ties a native call to the change of Python state
with it. `ffi` and `lib` are the header itself, with no lock but C's; see docs/core.md.
"""

from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.frame_codec import read_header
from ordermq.core.cffi_binding.lane_map import LaneMap
from ordermq.core.cffi_binding.lock_table import LockTable
from ordermq.core.cffi_binding.message_codec import MessageIndex, MessageRun, MessageView, java_hash
from ordermq.core.cffi_binding.message_writer import (
    RecordBlock,
    RecordWriter,
    encode_batch,
    encode_rows,
    ordered_rows,
)
from ordermq.core.cffi_binding.offset_map import OffsetMap
from ordermq.core.cffi_binding.process_queue import ProcessQueue

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
    "ffi",
    "lib",
    "ordered_rows",
    "read_header",
]
