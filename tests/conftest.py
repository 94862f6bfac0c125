"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

import ordermq.core

VECTORS = Path(__file__).parent / "vectors"

# No deadline an example: the machine's load is not what these tests are about. Failures print
# the blob that repeats them.
hypothesis.settings.register_profile("ordermq", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ordermq")


def pytest_report_header(config: pytest.Config) -> str:
    return f"ordermq core: {ordermq.core.IMPLEMENTATION}"


@pytest.fixture(scope="session")
def vector() -> Callable[[str], bytes]:
    """Reads a file of tests/vectors by its name, as `remoting/json_request`."""

    def read(name: str) -> bytes:
        return bytes.fromhex((VECTORS / f"{name}.hex").read_text())

    return read
