"""Steps of a build besides compiling: check the compiler, pack the C core; setup.py reads this.

`ORDERMQ_CORE=reference pip install .` builds no native module.

Extensions are built once: a finished one is kept in `build/extensions` of the source tree (or in
the folder that ORDERMQ_BUILD_CACHE names) under a hash of everything that it is made from. The next
build of the same takes it from there: with other extras, from a copy of the tree, after a change
elsewhere. A wheel of the core alone would save the same, but then users would have two
distributions whose versions must match.
"""

from __future__ import annotations

import hashlib
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError, LinkError, PlatformError

CORE = runpy.run_path("ext/c_core.py")
PACKED_IN = "ordermq/core/c"  # ordermq.core.include_dir() looks there
GENERATED = Path(CORE["CYTHON_MODULE"]).with_suffix(".c").name
CACHE = os.environ.get("ORDERMQ_BUILD_CACHE") or str(CORE["ROOT"] / "build" / "extensions")

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


def compile_together(compiler: Any) -> None:
    """Let a compiler object translate the files of an extension on all cores, in their order.

    The C core's, which the extensions share, it translates once.
    """
    compile_all = compiler.compile
    of_core: dict[tuple[str, ...], list[str]] = {}

    def compile_each(sources: list[str], **options: Any) -> list[str]:
        """Return the object files; raises what the compiler raised for the first bad file."""

        def compile_one(source: str) -> list[str]:
            flags = list(options.get("extra_postargs") or [])
            if Path(source).name == GENERATED:
                flags += CORE["GENERATED_COMPILE_ARGS"]
            asked = (source, str(options.get("output_dir")), *flags)
            if asked not in of_core:
                made = list(compile_all([source], **{**options, "extra_postargs": flags}))
                if source not in CORE["SOURCES"]:
                    return made
                # Their includes are next to them and they ask for no macro of an extension, so
                # that no other option of a call matters.
                of_core[asked] = made
            return of_core[asked]

        # The largest first, which is the generated one: it takes longer than all others.
        ordered = sorted(sources, key=lambda source: -os.path.getsize(source))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = dict(zip(ordered, pool.map(compile_one, ordered), strict=True))
        return [name for source in sources for name in objects[source]]

    compiler.compile = compile_each


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def fingerprint(compiler: Any, extension: Any) -> str:
    """Return a hash of all that an extension is made from: files, flags, tools, interpreter."""
    commands = [compiler.compiler_so, compiler.linker_so]
    command = shutil.which(compiler.compiler_so[0])
    said = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=False)
    made_from = [
        commands,
        said.stdout,
        [sysconfig.get_platform(), platform.libc_ver()],
        sys.version,
        sysconfig.get_config_var("EXT_SUFFIX"),
        [_version(package) for package in ("cython", "cffi", "setuptools")],
        {name: os.environ.get(name) for name in ("CFLAGS", "CPPFLAGS", "LDFLAGS", "ARCHFLAGS")},
        extension.name,
        extension.include_dirs,
        extension.define_macros,
        extension.extra_compile_args,
        extension.extra_link_args,
        CORE["GENERATED_COMPILE_ARGS"],
    ]
    hashed = hashlib.sha256(repr(made_from).encode())
    for name in [__file__, *extension.sources, *extension.depends]:
        content = Path(name).read_bytes()
        hashed.update(f"{Path(name).name} {len(content)}\n".encode() + content)
    return hashed.hexdigest()[:32]


class CheckedBuildExt(build_ext):
    """Builds hardened extensions, each once, with a compiler or a plain message."""

    def build_extensions(self) -> None:
        if self.extensions:
            require_compiler(self.compiler, self.include_dirs)
            compiling, linking = hardening(self.compiler)
            for extension in self.extensions:
                extension.extra_compile_args += compiling
                extension.extra_link_args += linking
            compile_together(self.compiler)
        super().build_extensions()

    def build_extension(self, ext: Any) -> None:
        """Build one extension, or take the one that was built from the same."""
        made = Path(self.get_ext_fullpath(ext.name))
        kept = Path(CACHE, fingerprint(self.compiler, ext), made.name)
        if kept.is_file():
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept, made)
            return
        self.force = (
            True  # the generated C of another state of the tree may be newer than the parts
        )
        super().build_extension(ext)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # whole or not at all
            shutil.copyfile(made, Path(folder, made.name))
            os.replace(Path(folder, made.name), kept)


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
