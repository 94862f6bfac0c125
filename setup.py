"""Extensions only; the metadata is in pyproject.toml."""

import runpy

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

setup(
    ext_modules=[CYTHON] if NATIVE else [],
    cffi_modules=["ext/cffi/build.py:FFI"] if NATIVE else [],
    cmdclass={"build_ext": STEPS["CheckedBuildExt"], "build_py": STEPS["CoreInWheel"]},
)
