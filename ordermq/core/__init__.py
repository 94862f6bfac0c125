"""The core: offset map, process queue, lane map, lock table, message codec, id window and message
writer.

This module chooses one of three implementations of the same contract when it is imported.

| file | holds |
|---|---|
| contract/ | the contract, written once: protocols with all docstrings; annotate with these |
| reference/ | the specification in code: dicts and sorted(), never optimised |
| _cython (ext/cython) | the C core bound for CPython |
| cffi_binding/ | the same C core through cffi (the extra): PyPy, and callers with C of their own |
| status.py | the numbers of the C core: exceptions, error texts, column names |
| streams.py | the values that the pull engine and its owner exchange |
| compression.py | reads message bodies that producers compressed |
| include.py | tells a C compiler where ordermq.h is |

The implementations have one file per subject, of the same name. What the cffi binding has no file
for it takes from the reference.

`ORDERMQ_CORE=cython|cffi|reference` forces one, and then failing to load it raises.
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ordermq.errors import ConfigError

__all__ = [
    "HAS_ENGINE",
    "HookedCall",
    "HookedListener",
    "IMPLEMENTATION",
    "AnswerBlock",
    "AnswerQueue",
    "Arrivals",
    "AssignedQueue",
    "CallContext",
    "Claim",
    "ConsumePlan",
    "ConsumeRun",
    "DurationCounts",
    "EventLines",
    "AwaitedAnswer",
    "FrameStream",
    "FrameTemplate",
    "Outbox",
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
    "PullConnection",
    "PullEngine",
    "PullStream",
    "RecordWriter",
    "RequestTemplate",
    "SendRun",
    "SendTimer",
    "SharedRoom",
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
    "include_dir",
    "contract",
    "java_hash",
    "ordered_rows",
    "read_header",
    "read_proxy_message",
    "receipts_of",
    "stored_by_proxy",
    "take_batch",
]

_MODULES: Final = {
    "cython": "ordermq.core._cython",
    "cffi": "ordermq.core.cffi_binding",
    "reference": "ordermq.core.reference",
}


def _choose() -> tuple[str, ModuleType]:
    forced = os.environ.get("ORDERMQ_CORE")
    if forced:
        if forced not in _MODULES:
            raise ConfigError(f"ORDERMQ_CORE={forced!r}: expected one of {', '.join(_MODULES)}")
        # No fallback: it would hide from a test or a benchmark which core it measures.
        try:
            return forced, importlib.import_module(_MODULES[forced])
        except ImportError as error:
            raise ConfigError(f"ORDERMQ_CORE={forced}: {error}") from None
    reasons = []
    for name in ("cython", "cffi"):
        try:
            return name, importlib.import_module(_MODULES[name])
        except ImportError as error:
            reasons.append(f"{name}: {error}")
    warnings.warn(
        "ordermq runs on its reference core, which is slow and meant for tests only "
        f"({'; '.join(reasons)}). Build the native core: pip install ordermq, or in a "
        "checkout: python setup.py build_ext --inplace",
        RuntimeWarning,
        stacklevel=2,
    )
    return "reference", importlib.import_module(_MODULES["reference"])


IMPLEMENTATION, _core = _choose()

OffsetMap: type[contract.OffsetMap] = _core.OffsetMap
ProcessQueue: type[contract.ProcessQueue] = _core.ProcessQueue
LaneMap: type[contract.LaneMap] = _core.LaneMap
LockTable: type[contract.LockTable[Any]] = _core.LockTable
IdWindow: type[contract.IdWindow] = _core.IdWindow
ConsumePlan: type[contract.ConsumePlan] = _core.ConsumePlan
ConsumeRun: type[contract.ConsumeRun] = _core.ConsumeRun
DurationCounts: type[contract.DurationCounts] = _core.DurationCounts
EventLines: type[contract.EventLines] = _core.EventLines
HookedListener: type[contract.HookedListener] = _core.HookedListener
TimedListener: type[contract.TimedListener] = _core.TimedListener
SendTimer: type[contract.SendTimer] = _core.SendTimer
TraceRecords: type[contract.TraceRecords] = _core.TraceRecords
TracedListener: type[contract.TracedListener] = _core.TracedListener
UniqueIds: type[contract.UniqueIds] = _core.UniqueIds
PlainSends: type[contract.PlainSends] = _core.PlainSends
Arrivals: type[contract.Arrivals] = _core.Arrivals
PollLine: type[contract.PollLine] = _core.PollLine
finish_stored: contract.FinishStored = _core.finish_stored
take_batch: contract.TakeBatch = _core.take_batch
gathered: contract.Gathered = _core.gathered
receipts_of: contract.ReceiptsOf = _core.receipts_of
read_header: contract.ReadHeader = _core.read_header
all_acknowledged: contract.AllAcknowledged = _core.all_acknowledged
read_proxy_message: contract.ReadProxyMessage = _core.read_proxy_message
stored_by_proxy: contract.ReadStoredByProxy = _core.stored_by_proxy
FrameTemplate: type[contract.FrameTemplate] = _core.FrameTemplate
RequestTemplate: type[contract.RequestTemplate] = _core.RequestTemplate
java_hash: contract.JavaHash = _core.java_hash
RecordWriter: type[contract.RecordWriter] = _core.RecordWriter
encode_batch: contract.EncodeBatch = _core.encode_batch
encode_proxy_send: contract.EncodeProxySend = _core.encode_proxy_send
encode_rows: contract.EncodeRows = _core.encode_rows
# The engine's classes are of the core for CPython alone. Ask HAS_ENGINE where a path is chosen: the
# others pull in Python, read on the I/O thread, and read each send as a command.
HAS_ENGINE: Final[bool] = hasattr(_core, "PullEngine")
if HAS_ENGINE:
    PullEngine: type[contract.PullEngine] = _core.PullEngine
    PullConnection: type[contract.PullConnection] = _core.PullConnection
    PullStream: type[contract.PullStream] = _core.PullStream
    AnswerQueue: type[contract.AnswerQueue] = _core.AnswerQueue
    AnswerBlock: type[contract.AnswerBlock] = _core.AnswerBlock
    FrameStream: type[contract.FrameStream] = _core.FrameStream
    AwaitedAnswer: type[contract.AwaitedAnswer] = _core.AwaitedAnswer
    Outbox: type[contract.Outbox] = _core.Outbox
    SendRun: type[contract.SendRun] = _core.SendRun
    SharedRoom: type[contract.SharedRoom] = _core.SharedRoom
ordered_rows: contract.OrderedRows = _core.ordered_rows
if TYPE_CHECKING:  # one implementation's types, for these are subclassed
    from ordermq.core import contract
    from ordermq.core.include import include_dir
    from ordermq.core.reference import (
        AssignedQueue,
        CallContext,
        Claim,
        HookedCall,
        MessageIndex,
        MessageRun,
        MessageView,
        PendingFields,
        PolledRun,
    )
else:
    MessageIndex = _core.MessageIndex
    MessageRun = _core.MessageRun
    MessageView = _core.MessageView
    CallContext = _core.CallContext
    Claim = _core.Claim
    HookedCall = _core.HookedCall
    PendingFields = _core.PendingFields
    PolledRun = _core.PolledRun
    AssignedQueue = _core.AssignedQueue

    def __getattr__(name: str) -> Any:
        """Import what few ask for: the contract's protocols take long to define."""
        if name == "contract":
            return importlib.import_module("ordermq.core.contract")
        if name == "include_dir":
            return importlib.import_module("ordermq.core.include").include_dir
        if name in __all__:
            raise AttributeError(f"the {IMPLEMENTATION} core has no engine, so no {name}")
        raise AttributeError(f"module 'ordermq.core' has no attribute {name!r}")
