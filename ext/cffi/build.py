"""The cffi binding's builder: declares the header's <declarations>, compiles the same C files."""

import re
import runpy
from pathlib import Path

from cffi import FFI as _FFI

ROOT = Path(__file__).resolve().parents[2]
CORE = runpy.run_path(str(ROOT / "ext" / "c_core.py"))

_MARKED = re.compile(r"<declarations>.*?\*/(.*)/\* </declarations>", re.DOTALL)


def declarations() -> str:
    """Return the part of ordermq.h between its marks."""
    marked = _MARKED.search((ROOT / CORE["PUBLIC_HEADER"]).read_text(encoding="utf-8"))
    if marked is None:
        raise ValueError(f"{CORE['PUBLIC_HEADER']}: no <declarations> marks")
    return marked[1]


FFI = _FFI()
FFI.cdef(declarations())
FFI.set_source(
    "ordermq.core._cffi",
    '#include "ordermq.h"',
    sources=CORE["SOURCES"],
    depends=CORE["HEADERS"],
    include_dirs=[CORE["INCLUDE_DIR"]],
    extra_compile_args=CORE["COMPILE_ARGS"],
    extra_link_args=CORE["LINK_ARGS"],
)
