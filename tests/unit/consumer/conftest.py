from collections.abc import Iterator

import pytest

from .consume_loops import LOOPS, consuming_by


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the consume loop of the core, and with that of the reference."""
    with consuming_by(request.param):
        yield request.param
