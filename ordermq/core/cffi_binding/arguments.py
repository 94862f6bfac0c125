"""What the structures share: conversion of arguments and of a status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ordermq.core import status
from ordermq.core._cffi import ffi

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
INT32_MAX: Final = 2**31 - 1


def raise_unless_ok(code: int, where: str) -> None:
    if code != status.OK:
        raise status.failure(code, where)


def clamped(offset: int) -> int:
    """The nearest int64, which is no offset, where it does not fit."""
    return min(max(offset, INT64_MIN), INT64_MAX)


def at_least_one(n: int, owner: str, operation: str) -> int:
    if n < 1:
        raise status.failure(status.OUT_OF_RANGE, f"{owner}: {operation} of {n}")
    return min(n, INT64_MAX)


def column_of(column: ReadableBuffer, formats: str, ctype: str, what: str) -> Any:
    """The buffer as a C array; the caller keeps the result while C reads it."""
    view = memoryview(column)
    size = ffi.sizeof(ctype)
    is_right = view.ndim == 1 and view.contiguous and view.itemsize == size
    if not is_right or view.format not in tuple(formats):
        raise TypeError(
            f"{what}: expected a contiguous buffer of {size}-byte integers "
            f"({'/'.join(formats)}), got format {view.format!r}, {view.itemsize} bytes an item"
        )
    return ffi.from_buffer(f"{ctype}[]", view)
