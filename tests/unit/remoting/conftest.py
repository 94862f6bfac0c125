from __future__ import annotations

import pytest

from .contexts import Contexts, made_in


@pytest.fixture(scope="session")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """Contexts of TLS whose two sides trust each other."""
    return made_in(tmp_path_factory.mktemp("tls"))
