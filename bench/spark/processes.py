"""The processes of a Spark session in local mode, their memory and CPU time; Linux, by /proc."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Usage:
    """Resident MiB per kind of process; `heap` is the used part of the JVM's heap."""

    source: float = 0.0  # the driver half of the stream
    workers: float = 0.0  # all workers for reads, stages and sends
    largest_worker: float = 0.0
    program: float = 0.0
    jvm: float = 0.0
    heap: float = 0.0

    def to_dict(self) -> dict[str, float]:
        return {name: round(mib, 1) for name, mib in asdict(self).items()}


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / (1 << 20)
    except (OSError, IndexError):
        return 0.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that ended; 0 if it has ended."""
    try:
        # The command's name stands in parentheses, and may contain blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    except (OSError, IndexError):
        return 0.0


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of every process below it, those that ended included."""
    return sum(map(cpu_seconds, (pid, *below(pid))))


class Tree:
    """The JVM of a session and the Python processes below it."""

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark.sparkContext._jvm
        self._jvm = int(java.ProcessHandle.current().pid())
        self._runtime = java.Runtime.getRuntime()

    def usage(self) -> Usage:
        """Return their present memory."""
        found = Usage(program=resident_mib(os.getpid()), jvm=resident_mib(self._jvm))
        found.heap = (self._runtime.totalMemory() - self._runtime.freeMemory()) / (1 << 20)
        for pid in below(self._jvm):
            mib = resident_mib(pid)
            if _is_source(pid):
                found.source += mib
            else:
                found.workers += mib
                found.largest_worker = max(found.largest_worker, mib)
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of this program, the JVM and every process below it."""
        return sum(map(cpu_seconds, (os.getpid(), self._jvm, *below(self._jvm))))

    def source_cpu_seconds(self) -> float:
        """Return the CPU time of the driver half of the streams."""
        return sum(cpu_seconds(pid) for pid in below(self._jvm) if _is_source(pid))


def _is_source(pid: int) -> bool:
    return "python_streaming_source_runner" in _command(pid)


def below(pid: int) -> list[int]:
    """Return the ids of all processes below one.  O(processes of the machine)."""
    # By each process's parent: a process's own list of children may lack one while others end.
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found[1:]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
