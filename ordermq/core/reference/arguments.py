"""Arguments: their ranges, and columns read into lists."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ordermq.core import status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_TOKEN = 2**64 - 1
MAX_EPOCH = 2**63 - 1
MAX_SIZE = 2**31 - 1  # bytes of a body: a Java int


def out_of_range(where: str) -> Exception:
    """Return the error that the native cores raise for OMQ_OUT_OF_RANGE."""
    return status.failure(status.OUT_OF_RANGE, where)


def column_of(column: ReadableBuffer, formats: str, what: str) -> list[int]:
    """Return the integers of a contiguous buffer in one of these formats, all of one size."""
    # The same check and text as in the bindings: a column that one core takes, all take.
    view = memoryview(column)
    size = struct.calcsize(formats[0])
    is_right = view.ndim == 1 and view.contiguous and view.itemsize == size
    if not is_right or view.format not in tuple(formats):
        raise TypeError(
            f"{what}: expected a contiguous buffer of {size}-byte integers ({'/'.join(formats)}), "
            f"got format {view.format!r}, {view.itemsize} bytes an item"
        )
    return view.tolist()
