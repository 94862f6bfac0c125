"""pytest fixture for applications: an embedded broker in memory, on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ordermq.broker import EmbeddedBroker


@pytest.fixture
def ordermq_broker() -> Iterator[EmbeddedBroker]:
    """Run an `EmbeddedBroker` for one test; pass `ordermq_broker.name_servers` to any client."""
    # Imported here: pytest loads plugins for every run, also where no test asks for this.
    from ordermq.broker import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker
