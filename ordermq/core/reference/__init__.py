"""The core in plain dicts and sorted(): the specification in code, and a fallback for tests.

Written from docs/internals/semantics.md and protocol.md, never optimised. Property tests run it
beside the native cores and compare every result. The contract is ordermq/core/contract/.
"""

from ordermq.core.reference.assigned_queue import AssignedQueue, Claim
from ordermq.core.reference.call_times import DurationCounts, SendTimer, TimedListener
from ordermq.core.reference.consume_loop import CallContext, ConsumePlan, ConsumeRun
from ordermq.core.reference.event_lines import EventLines
from ordermq.core.reference.frame_codec import FrameTemplate, read_header
from ordermq.core.reference.hooked_listener import HookedCall, HookedListener
from ordermq.core.reference.id_window import IdWindow
from ordermq.core.reference.lane_map import LaneMap
from ordermq.core.reference.lock_table import LockTable
from ordermq.core.reference.message_codec import MessageIndex, MessageRun, MessageView, java_hash
from ordermq.core.reference.message_writer import (
    RecordBlock,
    RecordWriter,
    encode_batch,
    encode_rows,
    ordered_rows,
)
from ordermq.core.reference.offset_map import OffsetMap
from ordermq.core.reference.pending_message import (
    Arrivals,
    PendingFields,
    PlainSends,
    UniqueIds,
    finish_stored,
    gathered,
    receipts_of,
    take_batch,
)
from ordermq.core.reference.poll_line import PolledRun, PollLine
from ordermq.core.reference.process_queue import ProcessQueue
from ordermq.core.reference.proxy_message import (
    all_acknowledged,
    read_proxy_message,
    stored_by_proxy,
)
from ordermq.core.reference.proxy_send import encode_proxy_send
from ordermq.core.reference.request_template import RequestTemplate
from ordermq.core.reference.trace_records import TracedListener, TraceRecords

__all__ = [
    "Arrivals",
    "AssignedQueue",
    "CallContext",
    "Claim",
    "ConsumePlan",
    "ConsumeRun",
    "DurationCounts",
    "EventLines",
    "FrameTemplate",
    "HookedCall",
    "HookedListener",
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
    "ordered_rows",
    "read_header",
    "read_proxy_message",
    "receipts_of",
    "stored_by_proxy",
    "take_batch",
]
