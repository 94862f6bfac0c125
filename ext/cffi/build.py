"""The cffi binding's builder: declares what ordermq.h declares, compiles the same C files."""

import runpy
from pathlib import Path

from cffi import FFI as _FFI

CORE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "c_core.py"))

FFI = _FFI()
FFI.cdef(CORE["declarations"]())
FFI.set_source(
    "ordermq.core._cffi",
    '#include "ordermq.h"',
    sources=CORE["SOURCES"],
    depends=CORE["HEADERS"],
    include_dirs=[CORE["INCLUDE_DIR"]],
    extra_compile_args=CORE["COMPILE_ARGS"],
    extra_link_args=CORE["LINK_ARGS"],
)
