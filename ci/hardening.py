"""Find the hardening of ext/c_core.py in a native module: python ci/hardening.py MODULE.so..."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from elftools.elf.constants import P_FLAGS
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_DT_FLAGS, ENUM_DT_FLAGS_1
from elftools.elf.sections import SymbolTableSection

ELF = b"\x7fELF"


def faults(name: str, module: IO[bytes]) -> list[str]:
    """Return what a module lacks; nothing can be told of one that is no ELF file."""
    if module.read(len(ELF)) != ELF:
        return []
    module.seek(0)
    return [f"{name}: {fault}" for fault in _faults(ELFFile(module))]


def _faults(elf: ELFFile) -> Iterator[str]:
    segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
    if "PT_GNU_RELRO" not in segments:
        yield "no RELRO: its table of addresses stays writable"
    stack = segments.get("PT_GNU_STACK")
    if stack is None or stack["p_flags"] & P_FLAGS.PF_X:
        yield "its stack may be executed"
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    tags = {tag["d_tag"]: tag["d_val"] for tag in dynamic.iter_tags()}
    binds_now = tags.get("DT_FLAGS", 0) & ENUM_DT_FLAGS["DF_BIND_NOW"]
    if not binds_now and not tags.get("DT_FLAGS_1", 0) & ENUM_DT_FLAGS_1["DF_1_NOW"]:
        yield "no BIND_NOW: addresses are resolved late, so their table stays writable"
    if "DT_TEXTREL" in tags:
        yield "text relocations: it is no position-independent code"
    table = elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    symbols = {symbol.name for symbol in table.iter_symbols()}
    if "__stack_chk_fail" not in symbols:
        yield "no stack protector: -fstack-protector-strong calls __stack_chk_fail"
    if not any(name.startswith("__mem") and name.endswith("_chk") for name in symbols):
        yield "not fortified: -D_FORTIFY_SOURCE calls functions such as __memcpy_chk"


def main() -> int:
    found = []
    for path in map(Path, sys.argv[1:]):
        with path.open("rb") as module:
            found += faults(path.name, module)
    for fault in found:
        print(f"ordermq: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
