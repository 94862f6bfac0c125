"""The C core through cffi, for PyPy and for callers with C of their own.

The contract is ordermq/core/contract/. cffi releases the GIL in every call, so each object here
has a lock besides the C mutex: it ties a native call to the change of Python state that goes with
it. `ffi` and `lib` are ordermq.h itself, without that lock; see docs/core.md. Needs the extra
`cffi`, except on PyPy, which has that library.
"""

import importlib

try:
    importlib.import_module("_cffi_backend")  # the extension loads it; the base install has it not
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: run pip install 'ordermq[cffi]'", name=error.name
    ) from None

from ordermq.core._cffi import ffi, lib
from ordermq.core.cffi_binding.frame_codec import FrameTemplate, read_header
from ordermq.core.cffi_binding.id_window import IdWindow
from ordermq.core.cffi_binding.lane_map import LaneMap
from ordermq.core.cffi_binding.lock_table import LockTable
from ordermq.core.cffi_binding.message_codec import MessageIndex, MessageView, java_hash
from ordermq.core.cffi_binding.message_writer import (
    RecordBlock,
    RecordWriter,
    encode_batch,
    encode_rows,
    ordered_rows,
)
from ordermq.core.cffi_binding.offset_map import OffsetMap
from ordermq.core.cffi_binding.process_queue import ProcessQueue
from ordermq.core.cffi_binding.request_template import RequestTemplate

# A run is a list of (index, first, count), the others are a few fields: nothing in them would be
# quicker through a C call.
from ordermq.core.reference import (
    Arrivals,
    AssignedQueue,
    CallContext,
    Claim,
    ConsumePlan,
    ConsumeRun,
    DurationCounts,
    EventLines,
    HookedCall,
    HookedListener,
    MessageRun,
    PendingFields,
    PlainSends,
    PolledRun,
    PollLine,
    SendTimer,
    TimedListener,
    TracedListener,
    TraceRecords,
    UniqueIds,
    all_acknowledged,
    encode_proxy_send,
    finish_stored,
    gathered,
    read_proxy_message,
    receipts_of,
    stored_by_proxy,
    take_batch,
)

__all__ = [
    "Arrivals",
    "AssignedQueue",
    "CallContext",
    "Claim",
    "ConsumePlan",
    "ConsumeRun",
    "DurationCounts",
    "EventLines",
    "HookedCall",
    "HookedListener",
    "FrameTemplate",
    "IdWindow",
    "LaneMap",
    "LockTable",
    "MessageIndex",
    "MessageRun",
    "MessageView",
    "OffsetMap",
    "PendingFields",
    "PlainSends",
    "PollLine",
    "PolledRun",
    "ProcessQueue",
    "RecordBlock",
    "RecordWriter",
    "RequestTemplate",
    "SendTimer",
    "TimedListener",
    "TraceRecords",
    "TracedListener",
    "UniqueIds",
    "all_acknowledged",
    "encode_batch",
    "encode_proxy_send",
    "encode_rows",
    "finish_stored",
    "gathered",
    "java_hash",
    "ffi",
    "lib",
    "ordered_rows",
    "read_header",
    "read_proxy_message",
    "receipts_of",
    "stored_by_proxy",
    "take_batch",
]
