"""The contract of the core: the protocols that all implementations fulfil, a file per subject.

The docstrings are here and nowhere else. Annotate with these protocols; create objects with the
classes of `ordermq.core`, which belong to the chosen implementation. Offsets are queue offsets,
0 .. 2**63 - 2. Times are milliseconds of whatever clock the caller uses throughout; the core never
reads a clock, but for the pull engine and the consume loop. Names and signatures are compared by
tests/architecture/test_declarations.py.
"""

from ordermq.core.contract.assigned_queue import AssignedQueue, Claim
from ordermq.core.contract.consume_loop import (
    CallContext,
    CallRecords,
    ConsumePlan,
    ConsumeRules,
    ConsumeRun,
    TimedListener,
)
from ordermq.core.contract.durations import (
    DurationCounts,
    SendTimer,
)
from ordermq.core.contract.event_lines import (
    EventLines,
)
from ordermq.core.contract.frame_codec import (
    FRAME_VALUES_MOST,
    REQUEST_GAPS_MOST,
    FrameTemplate,
    Header,
    JavaHash,
    ReadHeader,
    RequestTemplate,
)
from ordermq.core.contract.hooked_listener import (
    HookedCall,
    HookedListener,
    HookRules,
)
from ordermq.core.contract.id_window import (
    IdWindow,
)
from ordermq.core.contract.lane_map import (
    LaneKey,
    LaneMap,
)
from ordermq.core.contract.lock_table import (
    LockEntry,
    LockTable,
    Queue,
)
from ordermq.core.contract.message_codec import (
    MessageIndex,
    MessageRun,
    MessageView,
)
from ordermq.core.contract.message_writer import (
    EncodeBatch,
    EncodeRows,
    OrderedRows,
    RecordBlock,
    RecordWriter,
    Texts,
)
from ordermq.core.contract.offset_map import (
    OffsetMap,
)
from ordermq.core.contract.pending_messages import (
    Arrivals,
    AwaitedReceipt,
    FinishStored,
    Gathered,
    PendingFields,
    PlainSends,
    ReceiptsOf,
    TakeBatch,
    UniqueIds,
)
from ordermq.core.contract.poll_line import (
    PolledRun,
    PollLine,
)
from ordermq.core.contract.process_queue import (
    Batch,
    ProcessQueue,
    Segment,
)
from ordermq.core.contract.proxy_message import (
    AllAcknowledged,
    EncodeProxySend,
    ProxyMessage,
    ReadProxyMessage,
    ReadStoredByProxy,
    StoredByProxy,
)
from ordermq.core.contract.streams import (
    AnswerBlock,
    AnswerQueue,
    AwaitedAnswer,
    FillLimits,
    FrameStream,
    Outbox,
    PullConnection,
    PullEngine,
    PullStream,
    SendRun,
    SharedRoom,
    Tls,
)
from ordermq.core.contract.trace_records import (
    TracedListener,
    TraceRecords,
    TraceRules,
)

__all__ = [
    "AllAcknowledged",
    "AnswerBlock",
    "AnswerQueue",
    "Arrivals",
    "AwaitedReceipt",
    "AssignedQueue",
    "AwaitedAnswer",
    "Batch",
    "CallContext",
    "CallRecords",
    "Claim",
    "ConsumePlan",
    "ConsumeRules",
    "ConsumeRun",
    "DurationCounts",
    "EncodeBatch",
    "EncodeProxySend",
    "EncodeRows",
    "EventLines",
    "FRAME_VALUES_MOST",
    "FillLimits",
    "FrameStream",
    "FrameTemplate",
    "FinishStored",
    "Gathered",
    "Header",
    "HookRules",
    "HookedCall",
    "HookedListener",
    "IdWindow",
    "JavaHash",
    "LaneKey",
    "LaneMap",
    "LockEntry",
    "LockTable",
    "MessageIndex",
    "MessageRun",
    "MessageView",
    "OffsetMap",
    "OrderedRows",
    "Outbox",
    "PendingFields",
    "PlainSends",
    "PollLine",
    "PolledRun",
    "ProcessQueue",
    "ProxyMessage",
    "PullConnection",
    "PullEngine",
    "PullStream",
    "Queue",
    "REQUEST_GAPS_MOST",
    "ReadHeader",
    "ReadProxyMessage",
    "ReadStoredByProxy",
    "ReceiptsOf",
    "RecordBlock",
    "RecordWriter",
    "RequestTemplate",
    "Segment",
    "SendRun",
    "SendTimer",
    "SharedRoom",
    "StoredByProxy",
    "TakeBatch",
    "Texts",
    "TimedListener",
    "Tls",
    "TraceRecords",
    "TraceRules",
    "TracedListener",
    "UniqueIds",
]
