"""The header between its marks, libordermq.pxd, what cffi read and status.py say the same."""

import re
import runpy
from pathlib import Path
from typing import Any

from ordermq.core import _cython, cffi_binding, columns, interface, reference, status
from ordermq.core._cffi import ffi, lib

ROOT = Path(__file__).resolve().parents[2]
HEADER = runpy.run_path(str(ROOT / "ext" / "cffi" / "build.py"))["declarations"]()
PXD = (ROOT / "ext" / "cython" / "libordermq.pxd").read_text(encoding="utf-8")

# mypy reads these: every core fulfils the contract.
OFFSET_MAPS: list[type[interface.OffsetMap]] = [
    _cython.OffsetMap,
    cffi_binding.OffsetMap,
    reference.OffsetMap,
]
PROCESS_QUEUES: list[type[interface.ProcessQueue]] = [
    _cython.ProcessQueue,
    cffi_binding.ProcessQueue,
    reference.ProcessQueue,
]
LANE_MAPS: list[type[interface.LaneMap]] = [
    _cython.LaneMap,
    cffi_binding.LaneMap,
    reference.LaneMap,
]
LOCK_TABLES: list[type[interface.LockTable[Any]]] = [
    _cython.LockTable,
    cffi_binding.LockTable,
    reference.LockTable,
]
INDEXES: list[type[interface.MessageIndex]] = [
    _cython.MessageIndex,
    cffi_binding.MessageIndex,
    reference.MessageIndex,
]
RUNS: list[type[interface.MessageRun]] = [
    _cython.MessageRun,
    cffi_binding.MessageRun,
    reference.MessageRun,
]
VIEWS: list[type[interface.MessageView]] = [
    _cython.MessageView,
    cffi_binding.MessageView,
    reference.MessageView,
]

RECORD_BLOCKS: list[type[interface.RecordBlock]] = [
    _cython.RecordBlock,
    cffi_binding.RecordBlock,
    reference.RecordBlock,
]
RECORD_WRITERS: list[type[interface.RecordWriter]] = [
    _cython.RecordWriter,
    cffi_binding.RecordWriter,
    reference.RecordWriter,
]
ENCODERS: list[interface.EncodeBatch] = [
    _cython.encode_batch,
    cffi_binding.encode_batch,
    reference.encode_batch,
]

ROW_ORDERS: list[interface.OrderedRows] = [
    _cython.ordered_rows,
    cffi_binding.ordered_rows,
    reference.ordered_rows,
]
ROW_ENCODERS: list[interface.EncodeRows] = [
    _cython.encode_rows,
    cffi_binding.encode_rows,
    reference.encode_rows,
]

HASHES: list[interface.JavaHash] = [
    _cython.java_hash,
    cffi_binding.java_hash,
    reference.java_hash,
]

READERS: list[interface.ReadHeader] = [
    _cython.read_header,
    cffi_binding.read_header,
    reference.read_header,
]

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
    header, pxd = header_declarations(HEADER), pxd_declarations(PXD)
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


def test_every_core_has_the_names_of_the_contract_and_no_other() -> None:
    for kind in OFFSET_MAPS:
        assert public_names(kind) == public_names(interface.OffsetMap)
    for queue in PROCESS_QUEUES:
        assert public_names(queue) == public_names(interface.ProcessQueue)
    for lanes in LANE_MAPS:
        assert public_names(lanes) == public_names(interface.LaneMap)
    for table in LOCK_TABLES:
        assert public_names(table) == public_names(interface.LockTable)
    for index in INDEXES:
        assert public_names(index) == public_names(interface.MessageIndex)
    for block in RECORD_BLOCKS:
        assert public_names(block) == public_names(interface.RecordBlock)
    for writer in RECORD_WRITERS:
        assert public_names(writer) == public_names(interface.RecordWriter)
    for run in RUNS:
        assert public_names(run) == public_names(interface.MessageRun)
    for view in VIEWS:
        assert public_names(view) == public_names(interface.MessageView)


def test_every_column_has_its_number_and_its_format() -> None:
    names = header_declarations(HEADER)["enums"]["omq_column"]
    assert names[-1] == "OMQ_COLUMN_END"
    for number, name in enumerate(names[:-1]):
        found, form = columns.COLUMNS[name.removeprefix("OMQ_COLUMN_").lower()]
        assert (found, getattr(lib, name)) == (number, number)
        assert form == ("q" if number < 4 else "I" if number < 9 else "i")
    assert len(columns.COLUMNS) == lib.OMQ_COLUMN_END
