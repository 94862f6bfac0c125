"""Steps of a build besides compiling: check the compiler, pack the C core; setup.py reads this.

`ORDERMQ_CORE=reference pip install .` builds no native module.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError, LinkError, PlatformError

CORE = runpy.run_path("ext/c_core.py")
PACKED_IN = "ordermq/core/c"  # ordermq.core.include_dir() looks there

_NO_COMPILER = "no C compiler: {command!r} is not there"
_NO_HEADERS = (
    "{command!r} cannot compile a file that includes Python.h, it says why above (the headers "
    "of Python or of the C library may be missing)"
)
_WAYS_OUT = """
ordermq's core is C and is compiled when ordermq is installed from source. Install a compiler:
    Debian, Ubuntu   apt install gcc libc6-dev python3-dev
    Fedora           dnf install gcc python3-devel
    macOS            xcode-select --install
or name one:         CC=clang pip install .
or do without:       ORDERMQ_CORE=reference pip install .
The last installs the reference core alone, in pure Python: the same results, but slow, and
meant for tests."""


def native_is_wanted() -> bool:
    """Return whether to compile, by ORDERMQ_CORE, which also forces a core at run time."""
    core = os.environ.get("ORDERMQ_CORE", "")
    if core not in ("", "cython", "cffi", "reference"):
        raise SystemExit(f"ordermq: ORDERMQ_CORE={core!r}: expected cython, cffi or reference")
    if core == "reference":
        sys.stderr.write("ordermq: ORDERMQ_CORE=reference: no native module is built\n")
    return core != "reference"


def require_compiler(compiler: Any, include_dirs: list[str]) -> None:
    """Raise in plain words unless the compiler can build an extension module."""
    command = compiler.compiler_so[0]
    problem = _NO_COMPILER
    if shutil.which(command) is not None:
        problem = _NO_HEADERS
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, "probe.c")
            probe.write_text("#include <Python.h>\n#include <pthread.h>\n", encoding="utf-8")
            try:
                compiler.compile([str(probe)], output_dir=folder, include_dirs=include_dirs)
                return
            except CCompilerError:
                pass  # said below, with the ways out
    raise PlatformError(problem.format(command=command) + "\n" + _WAYS_OUT)


def hardening(compiler: Any) -> tuple[list[str], list[str]]:
    """Return the hardening flags, to compile and to link with, that work without a warning."""
    compiling: list[str] = []
    linking: list[str] = []
    for compile_flags, link_flags in CORE["HARDENING"]:
        if compile_flags[:1] and compile_flags[0] in compiling:
            continue  # the better kind works
        if _works(compiler, [*compile_flags, "-O2", "-Werror"], link_flags):
            compiling += compile_flags
            linking += link_flags
    return compiling, linking


def _works(compiler: Any, compile_flags: list[str], link_flags: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text("#include <string.h>\nint ordermq_probe;\n", encoding="utf-8")
        try:
            objects = compiler.compile([str(probe)], folder, extra_postargs=compile_flags)
            made = str(Path(folder, "probe.so"))
            compiler.link_shared_object(objects, made, extra_postargs=link_flags)
        except (CCompilerError, LinkError):
            return False
    return True


class CheckedBuildExt(build_ext):
    """Builds hardened extensions, with a compiler or a plain message."""

    def build_extensions(self) -> None:
        if self.extensions:
            require_compiler(self.compiler, self.include_dirs)
            compiling, linking = hardening(self.compiler)
            for extension in self.extensions:
                extension.extra_compile_args += compiling
                extension.extra_link_args += linking
        super().build_extensions()


class CoreInWheel(build_py):
    """Packs the header and the C files, for programs with C of their own."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # there ext/core itself is at hand
        folder = str(Path(self.build_lib, PACKED_IN))
        self.mkpath(folder)
        for name in [*CORE["HEADERS"], *CORE["SOURCES"]]:
            self.copy_file(name, folder)
