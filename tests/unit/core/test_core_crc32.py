"""The checksum of bodies, as instructions of the CPU compute it and as tables do."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "ext" / "core" / "crc32.c"
LONGEST, ALIGNMENTS = 400, 16  # several rounds of every loop, from each place in a lane


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("crc32") / "crc32.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-std=c11", "-o", str(built), str(SOURCE)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


@pytest.mark.parametrize("name", ["omq_crc32", "omq_crc32_by_tables"])
def test_it_is_zlibs_at_every_size_and_alignment(library: ctypes.CDLL, name: str) -> None:
    checksum: Callable[[int, int], int] = getattr(library, name)
    checksum.argtypes = [ctypes.c_void_p, ctypes.c_size_t]  # type: ignore[attr-defined]
    checksum.restype = ctypes.c_uint32  # type: ignore[attr-defined]
    data = random.Random(7).randbytes(1_000_003)
    memory = ctypes.create_string_buffer(data, len(data))
    start = ctypes.addressof(memory)
    for at in range(ALIGNMENTS):
        for size in [*range(LONGEST), 4_096, 65_537]:
            wanted = crc32(memoryview(data)[at : at + size])
            assert checksum(start + at, size) == wanted, f"{size} bytes at {at}"
    assert checksum(start, len(data)) == crc32(data)
