"""A fixture for the tests of applications: a broker of their own, in memory, on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ordermq.broker import EmbeddedBroker


@pytest.fixture
def ordermq_broker() -> Iterator[EmbeddedBroker]:
    """An `EmbeddedBroker` for one test; `ordermq_broker.name_servers` goes to any client."""
    # Imported here: pytest loads plugins for every run, also where no test asks for this.
    from ordermq.broker import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker
