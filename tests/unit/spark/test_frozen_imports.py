"""Freezing of imports, so that the garbage collections of Spark's processes leave them out."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from ordermq.spark.frozen_imports import freeze_imports
freeze_imports()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
freeze_imports()
assert gc.get_freeze_count() == first, "nothing was imported"
import wave
freeze_imports()
assert gc.get_freeze_count() > first + 1000
"""


def test_imports_are_frozen_once_and_again_after_further_ones() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
