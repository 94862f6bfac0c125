"""The contract of the core and the C header are each written once; everything else agrees.

`ordermq/core/contract` is the contract, which every core fulfils by name and by signature.
`ordermq.h` declares the C core: the Cython declarations are made from it, cffi reads it,
`status.py` says its numbers in words.
"""

import importlib
import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ordermq.core import cffi_binding, contract, reference, status
from ordermq.core._cffi import ffi, lib

ROOT = Path(__file__).resolve().parents[2]
C_CORE = runpy.run_path(str(ROOT / "ext" / "c_core.py"))
HEADER = C_CORE["declarations"]()

CORES: dict[str, ModuleType] = {
    "cython": importlib.import_module("ordermq.core._cython"),
    "cffi": cffi_binding,
    "reference": reference,
}
CLASSES = [
    "Arrivals",
    "AssignedQueue",
    "CallContext",
    "Claim",
    "ConsumePlan",
    "ConsumeRun",
    "DurationCounts",
    "EventLines",
    "FrameTemplate",
    "RequestTemplate",
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
    "SendTimer",
    "TimedListener",
    "TraceRecords",
    "TracedListener",
    "UniqueIds",
]
ENGINE = [
    "AnswerBlock",
    "AnswerQueue",
    "AwaitedAnswer",
    "FrameStream",
    "Outbox",
    "PullConnection",
    "PullEngine",
    "PullStream",
    "SendRun",
    "SharedRoom",
]
FUNCTIONS = {  # function -> the protocol that it fulfils
    "all_acknowledged": "AllAcknowledged",
    "encode_batch": "EncodeBatch",
    "encode_proxy_send": "EncodeProxySend",
    "encode_rows": "EncodeRows",
    "finish_stored": "FinishStored",
    "gathered": "Gathered",
    "java_hash": "JavaHash",
    "ordered_rows": "OrderedRows",
    "read_header": "ReadHeader",
    "read_proxy_message": "ReadProxyMessage",
    "receipts_of": "ReceiptsOf",
    "stored_by_proxy": "ReadStoredByProxy",
    "take_batch": "TakeBatch",
}

# mypy reads these: the cores in Python fulfil the contract with all its types. The Cython one
# has no types to read; test_every_core_has_the_signatures_of_the_contract looks at its names.
OFFSET_MAPS: list[type[contract.OffsetMap]] = [cffi_binding.OffsetMap, reference.OffsetMap]
PROCESS_QUEUES: list[type[contract.ProcessQueue]] = [
    cffi_binding.ProcessQueue,
    reference.ProcessQueue,
]
LANE_MAPS: list[type[contract.LaneMap]] = [cffi_binding.LaneMap, reference.LaneMap]
LOCK_TABLES: list[type[contract.LockTable[Any]]] = [cffi_binding.LockTable, reference.LockTable]
INDEXES: list[type[contract.MessageIndex]] = [cffi_binding.MessageIndex, reference.MessageIndex]
ID_WINDOWS: list[type[contract.IdWindow]] = [cffi_binding.IdWindow, reference.IdWindow]
CONTEXTS: list[type[contract.CallContext]] = [reference.CallContext]
PLANS: list[type[contract.ConsumePlan]] = [reference.ConsumePlan]
CONSUME_RUNS: list[type[contract.ConsumeRun]] = [reference.ConsumeRun]
DURATIONS: list[type[contract.DurationCounts]] = [reference.DurationCounts]
EVENT_LINES: list[type[contract.EventLines]] = [reference.EventLines]
HOOKED_CALLS: list[type[contract.HookedCall]] = [reference.HookedCall]
HOOKED: list[type[contract.HookedListener]] = [reference.HookedListener]
SEND_TIMERS: list[type[contract.SendTimer]] = [reference.SendTimer]
TIMED: list[type[contract.TimedListener]] = [reference.TimedListener]
TRACE_RECORDS: list[type[contract.TraceRecords]] = [reference.TraceRecords]
TRACED: list[type[contract.TracedListener]] = [reference.TracedListener]
CLAIMS: list[type[contract.Claim]] = [reference.Claim]
PENDING_FIELDS: list[type[contract.PendingFields]] = [reference.PendingFields]
POLL_LINES: list[type[contract.PollLine]] = [reference.PollLine]
POLLED_RUNS: list[type[contract.PolledRun]] = [reference.PolledRun]
ARRIVALS: list[type[contract.Arrivals]] = [reference.Arrivals]
PLAIN_SENDS: list[type[contract.PlainSends]] = [reference.PlainSends]
UNIQUE_IDS: list[type[contract.UniqueIds]] = [reference.UniqueIds]
FINISHERS: list[contract.FinishStored] = [reference.finish_stored]
GATHERERS: list[contract.Gathered] = [reference.gathered]
TAKERS: list[contract.TakeBatch] = [reference.take_batch]
ASSIGNED_QUEUES: list[type[contract.AssignedQueue]] = [reference.AssignedQueue]
RUNS: list[type[contract.MessageRun]] = [cffi_binding.MessageRun, reference.MessageRun]
VIEWS: list[type[contract.MessageView]] = [cffi_binding.MessageView, reference.MessageView]
RECORD_BLOCKS: list[type[contract.RecordBlock]] = [cffi_binding.RecordBlock, reference.RecordBlock]
RECORD_WRITERS: list[type[contract.RecordWriter]] = [
    cffi_binding.RecordWriter,
    reference.RecordWriter,
]
ENCODERS: list[contract.EncodeBatch] = [cffi_binding.encode_batch, reference.encode_batch]
ROW_ORDERS: list[contract.OrderedRows] = [cffi_binding.ordered_rows, reference.ordered_rows]
PROXY_SENDS: list[contract.EncodeProxySend] = [reference.encode_proxy_send]
ROW_ENCODERS: list[contract.EncodeRows] = [cffi_binding.encode_rows, reference.encode_rows]
HASHES: list[contract.JavaHash] = [cffi_binding.java_hash, reference.java_hash]
TEMPLATES: list[type[contract.FrameTemplate]] = [
    cffi_binding.FrameTemplate,
    reference.FrameTemplate,
]
REQUEST_TEMPLATES: list[type[contract.RequestTemplate]] = [
    cffi_binding.RequestTemplate,
    reference.RequestTemplate,
]
RECEIPTS: list[contract.ReceiptsOf] = [reference.receipts_of]
ACKNOWLEDGED: list[contract.AllAcknowledged] = [reference.all_acknowledged]
PROXY_READERS: list[contract.ReadProxyMessage] = [reference.read_proxy_message]
STORED: list[contract.ReadStoredByProxy] = [reference.stored_by_proxy]
READERS: list[contract.ReadHeader] = [cffi_binding.read_header, reference.read_header]

Declarations = dict[str, dict[str, Any]]


def squeezed(text: str) -> str:
    """One blank between words, none beside a star, so that layouts compare equal."""
    return re.sub(r" ?\* ?", " *", " ".join(text.split())).strip()


def header_declarations(text: str) -> Declarations:
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    found: Declarations = {"functions": {}, "structs": {}, "enums": {}}
    for kind, body, name in re.findall(r"typedef (enum|struct) \{(.*?)\} (\w+);", text, re.DOTALL):
        if kind == "enum":
            found["enums"][name] = re.findall(r"(\w+) = ", body)
        else:
            found["structs"][name] = [squeezed(field) for field in body.split(";")[:-1]]
    text = re.sub(r"typedef (?:enum|struct) \{.*?\} \w+;", " ", text, flags=re.DOTALL)
    for name in re.findall(r"typedef struct (\w+) \1;", text):
        found["structs"][name] = []
    text = re.sub(r"typedef struct \w+ \w+;", " ", text)
    for statement in filter(str.strip, text.split(";")):
        add_function(found, statement.replace("(void)", "()"))
    return found


def pxd_declarations(text: str) -> Declarations:
    found: Declarations = {"functions": {}, "structs": {}, "enums": {}}
    block = text.split('cdef extern from "ordermq.h" nogil:')[1]
    block = re.sub(r",\n +", ", ", block)
    into: list[str] = []
    for line in filter(str.strip, block.splitlines()):
        if opened := re.fullmatch(r"    ctypedef (enum|struct) (\w+):?", line):
            kind, name = opened.groups()
            into = found[f"{kind}s"][name] = []
        elif line.startswith("        "):
            into.append(squeezed(line))
        else:
            add_function(found, line)
    return found


def add_function(found: Declarations, text: str) -> None:
    parts = re.fullmatch(r"(.*?)(\w+)\((.*)\)", squeezed(text))
    assert parts is not None, text
    result, name, arguments = parts.groups()
    found["functions"][name] = (result.strip(), [squeezed(one) for one in arguments.split(",")])


def test_the_pxd_declares_what_the_header_does() -> None:
    header, pxd = header_declarations(HEADER), pxd_declarations(C_CORE["pxd"]())
    assert len(header["functions"]) > 40
    for kind in header:
        assert pxd[kind] == header[kind]
    assert list(pxd["functions"]) == list(header["functions"]), "in the header's order"


def test_cffi_has_what_the_header_declares() -> None:
    header = header_declarations(HEADER)
    constants = {name for names in header["enums"].values() for name in names}
    assert set(dir(lib)) == {*header["functions"], *constants}
    for name, fields in header["structs"].items():
        if fields:
            assert [field for field, _ in ffi.typeof(name).fields] == [
                field.replace("*", " ").split()[-1] for field in fields
            ]


def test_every_status_and_fault_has_its_number_and_its_text() -> None:
    enums = header_declarations(HEADER)["enums"]
    for name in enums["omq_status"]:
        number = getattr(lib, name)
        assert getattr(status, name.removeprefix("OMQ_")) == number
        if name not in ("OMQ_OK", "OMQ_MALFORMED"):
            assert "here: " in str(status.failure(number, "here"))
    for name in enums["omq_fault"]:
        number = getattr(lib, name)
        assert getattr(status, name.removeprefix("OMQ_FAULT_")) == number
        assert "record 3, byte 7: " in str(status.malformed(number, 3, 7))
    for name in ("INNER_SIZE", "INNER_BODY", "INNER_PROPERTIES", "INNER_DELAYED"):
        error = status.malformed_batch(getattr(status, name), 3, 7, 40)
        assert "batch of 40 bytes: message 3, byte 7: " in str(error)
    for kind in ("omq_stage", "omq_claim_result", "omq_claim_kind", "omq_follow"):
        for name in enums[kind]:
            if name != "OMQ_CLAIMED":
                assert getattr(status, name.removeprefix("OMQ_")) == getattr(lib, name)
    for name in enums["omq_header_fault"]:
        number = getattr(lib, name)
        assert getattr(status, name.removeprefix("OMQ_")) == number
        if number:
            assert "byte 7: " in str(status.malformed_header(number, bytes(20), 7))


INSTANCES = {"name", "lease_ms", "max_in_flight", "max_ahead"}


def public_names(kind: type) -> set[str]:
    """The names of a class; those of INSTANCES are attributes of instances in some."""
    names = {name for name in vars(kind) if not name.startswith("_") or name == "_check"}
    return names - INSTANCES


@pytest.mark.parametrize("core", CORES)
def test_every_core_has_the_names_of_the_contract_and_no_other(core: str) -> None:
    for name in CLASSES:
        promised = getattr(contract, name)
        assert public_names(getattr(CORES[core], name)) == public_names(promised), name


def functions(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods of a class by name; of the special ones only those that take arguments."""
    for name, found in vars(kind).items():
        if inspect.isroutine(found) and not name.startswith("__"):
            yield name, found


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """A function's parameters: name, kind and default; types are left to mypy."""
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


@pytest.mark.parametrize("core", CORES)
def test_every_core_has_the_signatures_of_the_contract(core: str) -> None:
    for name in CLASSES:
        kind = getattr(CORES[core], name)
        for method, promised in functions(getattr(contract, name)):
            if method.startswith("_") and method != "_check":
                continue
            # But for `self`, which methods of C take by its place alone.
            found = parameters(inspect.getattr_static(kind, method))[1:]
            assert found == parameters(promised)[1:], f"{name}.{method}"
    for name, protocol in FUNCTIONS.items():
        promised = getattr(contract, protocol).__call__
        assert parameters(getattr(CORES[core], name)) == parameters(promised)[1:], name


@pytest.mark.parametrize("core", CORES)
def test_every_core_has_the_special_methods_of_the_contract(core: str) -> None:
    for name in CLASSES:
        promised = vars(getattr(contract, name))
        special = {
            one
            for one in ("__len__", "__contains__", "__iter__", "__getitem__", "__setitem__")
            if one in promised
        }
        assert special <= vars(getattr(CORES[core], name)).keys(), name


def test_properties_of_the_contract_are_properties_in_every_core() -> None:
    for name in CLASSES:
        for attribute, promised in vars(getattr(contract, name)).items():
            if isinstance(promised, property) and attribute not in INSTANCES:
                for core in CORES.values():
                    found = inspect.getattr_static(getattr(core, name), attribute)
                    assert inspect.isdatadescriptor(found), f"{name}.{attribute}"


def test_the_cython_module_has_nothing_that_the_contract_has_not() -> None:
    cython = CORES["cython"]
    own = {
        name
        for name, found in vars(cython).items()
        if not name.startswith("_") and getattr(found, "__module__", None) == cython.__name__
    }
    assert own == {*CLASSES, *FUNCTIONS, *ENGINE}


def test_what_one_core_alone_has_fulfils_its_contract_by_name() -> None:
    # The others have no thread without an interpreter to run it.
    for name in ENGINE:
        declared = vars(getattr(contract, name))
        public = {each for each in declared if not each.startswith("_")}
        assert public <= set(dir(getattr(CORES["cython"], name))), name


def included(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [f"ext/core/{found}" for found in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]


def test_the_includes_of_the_c_core_have_no_circle() -> None:
    # A .c file and its header are one unit, as a reader sees them.
    units: dict[str, set[str]] = {}
    for name in [*C_CORE["SOURCES"], *C_CORE["HEADERS"]]:
        unit = name.rsplit(".", 1)[0]
        others = {one.rsplit(".", 1)[0] for one in included(name)}
        units.setdefault(unit, set()).update(others - {unit})
    while free := [unit for unit, others in units.items() if not others & units.keys()]:
        for unit in free:
            del units[unit]
    assert units == {}, "these include each other"


def test_every_column_has_its_number_and_its_format() -> None:
    names = header_declarations(HEADER)["enums"]["omq_column"]
    assert names[-1] == "OMQ_COLUMN_END"
    for number, name in enumerate(names[:-1]):
        found, form = status.COLUMNS[name.removeprefix("OMQ_COLUMN_").lower()]
        assert (found, getattr(lib, name)) == (number, number)
        assert form == ("q" if number < 4 else "I" if number < 9 else "i")
    assert len(status.COLUMNS) == lib.OMQ_COLUMN_END
