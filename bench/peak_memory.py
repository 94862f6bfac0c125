"""The most memory that this process has held; imports nothing that would add to it."""

from __future__ import annotations

_STATUS = "/proc/self/status"


def peak_mib() -> float:
    """Return the peak of the resident memory of this program, in MiB.

    The rusage of a process is of no use for a small one: Linux counts what its parent held when it
    forked, too.

    Raises: OSError: this system has no /proc.
    """
    with open(_STATUS) as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise OSError(f"{_STATUS} has no VmHWM")
