"""The place of the C core's header, for programs with C of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HEADER: Final = "ordermq.h"


def include_dir() -> Path:
    """Return the folder of ordermq.h and of the core's C files, all there is to compile.

    A wheel packs them; an editable install has them in its checkout. See docs/core.md.
    Raises: FileNotFoundError: neither is there.
    """
    here = Path(__file__).resolve()
    # ext/build_steps.py packs the first into wheels; an editable install has only the second.
    folders = (here.parent / "c", here.parents[2] / "ext" / "core")
    for folder in folders:
        if (folder / HEADER).is_file():
            return folder
    raise FileNotFoundError(
        f"no {HEADER} in {folders[0]} or {folders[1]}: this installation is not complete; "
        "install ordermq again"
    )
