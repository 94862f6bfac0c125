"""What every test of the house shares."""

from __future__ import annotations

import hypothesis
import pytest

import ordermq.core

# No deadline a example: the machine's load is not what these tests are about. Failures print
# the blob that repeats them.
hypothesis.settings.register_profile("ordermq", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ordermq")


def pytest_report_header(config: pytest.Config) -> str:
    return f"ordermq core: {ordermq.core.IMPLEMENTATION}"
