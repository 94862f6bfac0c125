"""A PostgreSQL of the tests' own; ci/postgresql.sh runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class NoPostgreSql(Exception):
    """There is none, and it could not be installed."""


class PostgreSql:
    """A private cluster, started; `close` removes it.

    Raises: NoPostgreSql: it cannot be had here.
    """

    def __init__(self) -> None:
        self._folder = ""
        self.start()

    @property
    def url(self) -> str:
        """For `sqlalchemy.create_engine`."""
        return f"postgresql+psycopg://ordermq@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start it; again on its port, if it was stopped."""
        line = self._run("start", *([self._folder] if self._folder else []))
        self._folder, port = line.split()
        self._port = int(port)

    def stop(self, *, crash: bool = False) -> None:
        """Stop it in order, or as if it had been killed."""
        self._run("stop", self._folder, *(["--crash"] if crash else []))

    def close(self) -> None:
        self._run("remove", self._folder)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["ci/postgresql.sh", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        if done.returncode != 0:
            raise NoPostgreSql(done.stderr.strip())
        return done.stdout.strip()
