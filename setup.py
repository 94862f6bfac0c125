"""Extensions and dependencies; all other metadata is in pyproject.toml."""

import runpy
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup

CORE = runpy.run_path("ext/c_core.py")
STEPS = runpy.run_path("ext/build_steps.py")
CYTHON = Extension(
    "ordermq.core._cython",
    sources=[CORE["CYTHON_MODULE"], *CORE["SOURCES"], *CORE["ENGINE_SOURCES"]],
    depends=[
        *CORE["HEADERS"],
        *CORE["ENGINE_HEADERS"],
        *CORE["CYTHON_PARTS"],
        CORE["CYTHON_DECLARATIONS"],
    ],
    include_dirs=[CORE["INCLUDE_DIR"], CORE["ENGINE_DIR"], CORE["WIRE_DIR"]],
    extra_compile_args=CORE["COMPILE_ARGS"],
    extra_link_args=CORE["LINK_ARGS"],
)
# The generated file would be twice as large with the lines of its source in it.
CYTHON.cython_directives = {"emit_code_comments": False}
NATIVE = STEPS["native_is_wanted"]()
if NATIVE:
    CORE["write_pxd"]()

# No marker of a requirement names Python without the interpreter lock, which orjson does not know.
PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
HAS_LOCK = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    install_requires=PROJECT["tool"]["ordermq"]["dependencies"] if HAS_LOCK else [],
    ext_modules=[CYTHON] if NATIVE else [],
    cffi_modules=["ext/cffi/build.py:FFI"] if NATIVE else [],
    cmdclass={"build_ext": STEPS["CheckedBuildExt"], "build_py": STEPS["CoreInWheel"]},
)
