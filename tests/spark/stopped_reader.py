"""The driver's half of a query, which SIGTERM meets at many places of its `stop`.

    python stopped_reader.py NAME_SERVERS STRIDE

At each place a process of its own reads with a group of its own, `stopped-PLACE`. Spark calls
`stop` because it has closed the connection, and then sends SIGTERM. Prints the number of places.
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql.types import BinaryType, StructType

from pyspark_ordermq import DefaultSource
from tests.component.interruption import HandledCall


def stop_reader(name_servers: str, place: int) -> int:
    """Read with locks, and stop; return the number of places that a signal could have met."""
    options = {"name_servers": name_servers, "topic": "orders", "group": f"stopped-{place}"}
    source = DefaultSource(options | {"columns": "body"})
    columns = StructType().add("body", BinaryType()).add("lease", BinaryType())
    reader = source.streamReader(columns)
    reader.initialOffset()
    with HandledCall(place, lambda: signal.raise_signal(signal.SIGTERM)) as call:
        reader.stop()
    # Programs that this process starts would ignore it as well.
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    return call.places


def main() -> None:
    name_servers, stride = sys.argv[1], int(sys.argv[2])
    place, is_met = 1, True
    while is_met:
        pid = os.fork()
        if pid == 0:
            places = stop_reader(name_servers, place)
            sys.exit(0 if places >= place else 3)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 3, 128 + signal.SIGTERM), f"at place {place}: exit code {code}"
        is_met = code != 3
        place += stride
    sys.stdout.write(f"{place - stride}\n")


if __name__ == "__main__":
    main()
