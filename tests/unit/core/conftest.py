"""Every test that takes `core` runs on each core; one that does not import fails, never skips."""

import importlib
from types import ModuleType

import pytest

MODULES = {
    "cython": "ordermq.core._cython",
    "cffi": "ordermq.core.cffi_binding",
    "reference": "ordermq.core.reference",
}


@pytest.fixture(params=list(MODULES))
def core(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(MODULES[request.param])


@pytest.fixture(params=["cython", "cffi"])
def native_core(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(MODULES[request.param])
