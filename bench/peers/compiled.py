"""Programs of peers in C and Go: compiled once, into a folder of the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of the user's cache for what benchmarks compile and install."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ordermq"


def program(
    name: str,
    sources: Sequence[Path],
    command: Sequence[str],
) -> Path:
    """Return a compiled program; compile it unless that was done with the same sources.

    Args:
        name: of the program.
        sources: the files it is made from; the command runs in the folder of the first.
        command: the compiler and its options; `-o` and the program follow.
    Raises: subprocess.CalledProcessError: the compiler failed and printed the reason.
    """
    mark = zlib.crc32(b"".join(source.read_bytes() for source in sources))
    mark = zlib.crc32(" ".join(command).encode(), mark)
    made = cache_folder() / f"{name}-{mark:08x}" / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [*command, "-o", str(unfinished)],
            check=True,
            stdout=sys.stderr,
            cwd=sources[0].parent,
        )
        unfinished.rename(made)
    return made
