"""The C core as builds see it: its files, its flags, and its declarations.

setup.py, ext/cffi/build.py, ext/build_steps.py, ci/sanitize.sh and tests read this through runpy.
Paths count from the repository root. A new C file or Cython part is found, not listed.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def found(pattern: str) -> list[str]:
    """Return the files of a pattern, sorted so that builds are alike."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


INCLUDE_DIR = "ext/core"
PUBLIC_HEADER = "ext/core/ordermq.h"
SOURCES = found("ext/core/*.c")
HEADERS = found("ext/core/*.h")
ENGINE_DIR = "ext/engine"  # of the module for CPython alone
WIRE_DIR = "ext/wire"  # what the engine's parts read and write; of that module, too
ENGINE_SOURCES = [*found("ext/engine/*.c"), *found("ext/wire/*.c")]
ENGINE_HEADERS = [*found("ext/engine/*.h"), *found("ext/wire/*.h")]
CYTHON_MODULE = "ext/cython/_cython.pyx"
CYTHON_DECLARATIONS = "ext/cython/libordermq.pxd"  # made by write_pxd, not in the repository
CYTHON_PARTS = [name for name in found("ext/cython/*.pyx") if name != CYTHON_MODULE]
# Many an interpreter asks for debug information in its own flags: that is two thirds of a wheel.
# The names of functions stay, for profilers and stack traces.
COMPILE_ARGS = ["-O3", "-std=c11", "-pthread", "-g0"]
# For what Cython makes, after these: -O3 takes half as long again there and makes no call faster,
# for what must be fast is in the C files.
GENERATED_COMPILE_ARGS = ["-O2"]
LINK_ARGS = ["-pthread"]
# Each is used where compiler and linker have it (ext/build_steps.py asks them): canaries on the
# stack, bounds of copies checked (the better kind first), and tables of addresses that are resolved
# at the start and read-only from then on. ci/hardening.py finds them in what was built.
HARDENING = [
    (["-fstack-protector-strong"], []),
    (["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"], []),
    (["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"], []),
    ([], ["-Wl,-z,relro", "-Wl,-z,now"]),
    ([], ["-Wl,-z,noexecstack"]),
]

_MARKED = re.compile(r"<declarations>.*?\*/(.*)/\* </declarations>", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BLOCK = re.compile(r"typedef (enum|struct) \{(.*)\} (\w+)", re.DOTALL)

_PXD_START = """\
# Made by ext/c_core.py from the marked part of ext/core/ordermq.h: change that, not this.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "stdbool.h" nogil:
    ctypedef bint bool


cdef extern from "ordermq.h" nogil:
"""


def declarations() -> str:
    """Return the part of ordermq.h between its marks, which is what cffi reads."""
    marked = _MARKED.search((ROOT / PUBLIC_HEADER).read_text(encoding="utf-8"))
    if marked is None:
        raise ValueError(f"{PUBLIC_HEADER}: no <declarations> marks")
    return marked[1]


def _statements(text: str) -> list[str]:
    """Return the C declarations of a text without comments, a typedef's braces kept whole."""
    statements = re.findall(r"[^;{]*(?:\{[^}]*\}[^;]*)?;", _COMMENT.sub(" ", text))
    return [" ".join(statement[:-1].split()) for statement in statements]


def _cython_lines(statement: str) -> list[str]:
    """Return one C declaration in Cython's syntax, indented into its extern block."""
    block = _BLOCK.fullmatch(statement)
    if block is not None:
        kind, body, name = block.groups()
        ends = "," if kind == "enum" else ";"
        # Cython takes the numbers of an enum from the C compiler.
        members = [part.split("=")[0].strip() for part in body.split(ends) if part.strip()]
        return [f"    ctypedef {kind} {name}:", *(f"        {member}" for member in members)]
    if statement.startswith("typedef struct "):
        return [f"    ctypedef struct {statement.split()[-1]}"]
    return [f"    {statement.replace('(void)', '()')}"]


def pxd() -> str:
    """Return the text of libordermq.pxd: the declarations of ordermq.h for Cython."""
    lines = [line for one in _statements(declarations()) for line in _cython_lines(one)]
    return _PXD_START + "\n".join(lines) + "\n"


def write_pxd() -> None:
    """Write libordermq.pxd, unless it is right already: Cython compiles again when it is newer."""
    path = ROOT / CYTHON_DECLARATIONS
    text = pxd()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
