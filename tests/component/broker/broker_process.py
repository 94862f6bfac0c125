"""A broker in a process of its own, to be killed or starved of disk."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_SCRIPT = """
import json, sys
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
with EmbeddedBroker(sys.argv[1], config=BrokerConfig(**json.loads(sys.argv[2]))) as broker:
    print(broker.port, flush=True)
    sys.stdin.read()
"""


class BrokerProcess:
    """Runs until killed, or until the block ends in order.

    Args:
        settings: of its `BrokerConfig`.
        environment: variables besides those of this process.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = open(path.with_suffix(".log"), "ab")  # noqa: SIM115 - closed below
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _SCRIPT, str(path), json.dumps(settings or {})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | (environment or {}),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, path.with_suffix(".log").read_text()
        self.port = int(line)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(timeout=10) == 0
        self._release()

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10)
        self._release()

    def limit_file_size(self, size: int) -> None:
        """Let no file of the process grow beyond `size` bytes, as a full disk would."""
        hard = resource.RLIM_INFINITY
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def lift_limit(self) -> None:
        """Give the space back."""
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))

    def _release(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None and not stream.closed:
                stream.close()
