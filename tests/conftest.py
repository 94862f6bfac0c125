"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import Engine, NullPool, create_engine

import ordermq.core
from tests.hung_tests import pytest_runtest_protocol, pytest_sessionstart
from tests.postgresql import NoPostgreSql, PostgreSql
from tests.secrets_in_logs import pytest_configure, pytest_runtest_makereport

# Hooks of this folder.
__all__ = [
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_sessionstart",
]

VECTORS = Path(__file__).parent / "vectors"

# No deadline an example, nor for making some: the machine's load is not what these tests are about.
# Failures print the blob that repeats them.
hypothesis.settings.register_profile(
    "ordermq",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("ordermq")


def pytest_report_header(config: pytest.Config) -> str:
    return f"ordermq core: {ordermq.core.IMPLEMENTATION}"


@pytest.fixture(scope="session")
def vector() -> Callable[[str], bytes]:
    """Reads a file of tests/vectors by its name, as `remoting/json_request`."""

    def read(name: str) -> bytes:
        return bytes.fromhex((VECTORS / f"{name}.hex").read_text())

    return read


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSql]:
    """A private PostgreSQL, empty at first."""
    try:
        server = PostgreSql()
    except NoPostgreSql as error:
        pytest.skip(f"PostgreSQL cannot be had here: {error}")
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database of each kind, with one engine of it."""
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 20})
        with made.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.exec_driver_sql("PRAGMA synchronous = OFF")
    else:
        server: PostgreSql = request.getfixturevalue("postgresql")
        # No pool: a store's thread may give its connection back after the test has ended.
        made = create_engine(server.url, poolclass=NullPool)
        with made.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
    yield made
    made.dispose()
