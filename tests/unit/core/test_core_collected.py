"""Errors that keep lent buffers alive, and the garbage collector, which CPython 3.11 lets clear
a memoryview under its borrower. In a process of its own: what goes wrong here is a crash."""

import subprocess
import sys
from types import ModuleType

PROGRAM = """
import gc, importlib, sys
from array import array

core = importlib.import_module(sys.argv[1])
text = memoryview(bytearray(b"text"))


def column(code):
    return lambda value: memoryview(array(code, [value] * abs(value)))


longs, ulongs, uints, ints = map(column, "qQIi")
refused = {
    "offset map": lambda: core.OffsetMap().put_columns(longs(3), ulongs(2)),
    "offset": lambda: core.OffsetMap().put_columns(longs(-1), ulongs(1)),
    "process queue": lambda: core.ProcessQueue("q").put_columns(longs(3), ulongs(2), uints(3)),
    "lane map": lambda: core.LaneMap("q").add_columns(
        longs(2), ulongs(2), text, uints(1), uints(1)
    ),
    "lanes done": lambda: core.LaneMap("q").done_columns(uints(2)),
    "locks": lambda: core.LockTable().unlock_ids(1, ulongs(2), 2, ulongs(3)),
    "gather": lambda: core.MessageIndex(b"").gather(uints(2), uints(3)),
    "ordered rows": lambda: core.ordered_rows(longs(3), ints(2), [], 0, 1),
    "names": lambda: core.ordered_rows(longs(3), ints(3), [(ints(2), text)], 0, 1),
    "encoded rows": lambda: core.encode_rows(
        (ints(3), text), uints(0), fixed=b"", columns=[(b"K", (ints(3), text))],
        unique=b"", most_bytes=100,
    ),
}


def kept(call):
    try:
        call()
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        cycle = error  # the frame keeps the error, whose traceback keeps the frame
    else:
        print("was not refused")


for name, call in refused.items():
    print(name, flush=True)
    for _ in range(20):
        kept(call)
        gc.collect()
print("ended")
"""


def test_an_error_kept_with_its_buffers_is_collected(core: ModuleType) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, core.__name__],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), f"at {ended.stdout.split()[-2:]}"
    assert "not refused" not in ended.stdout
    assert ended.stdout.endswith("ended\n")
