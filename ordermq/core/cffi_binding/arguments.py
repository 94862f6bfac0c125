"""Arguments of C calls: clamped numbers, buffers lent for one call; and the error of a status."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ordermq.core import status
from ordermq.core._cffi import ffi

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
INT32_MAX: Final = 2**31 - 1


def raise_unless_ok(code: int, where: str) -> None:
    """Raise the exception of a status; `where` names the operation and its object."""
    if code != status.OK:
        raise status.failure(code, where)


def clamped(offset: int) -> int:
    """Return the nearest int64, which is never a valid offset if the argument does not fit."""
    # C then answers as for any absent offset; cffi alone would raise OverflowError, and the three
    # cores must fail alike.
    return min(max(offset, INT64_MIN), INT64_MAX)


def epoch_of(epoch: int) -> int:
    """Return an epoch; UINT64_MAX, which no lock has, for an int that is none."""
    return epoch if 0 <= epoch <= UINT64_MAX else UINT64_MAX


def at_least_one(n: int, owner: str, operation: str) -> int:
    """Return a limit as an int64, or raise if it is below 1."""
    if n < 1:
        raise status.failure(status.OUT_OF_RANGE, f"{owner}: {operation} of {n}")
    return min(n, INT64_MAX)


class Lent:
    """Buffers lent to C for one call, given back before an error leaves it.

    A traceback keeps its frames' buffers and the memoryviews they are of in one cycle, and
    CPython 3.11 crashes when its garbage collector clears a memoryview that is still lent out.
    """

    def __init__(self) -> None:
        self._buffers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._buffers:
            ffi.release(self._buffers.pop())

    def _lend(self, buffer: ReadableBuffer, ctype: str) -> Any:
        self._buffers.append(ffi.from_buffer(f"{ctype}[]", buffer))
        return self._buffers[-1]

    def column(self, column: ReadableBuffer, formats: str, ctype: str, what: str) -> Any:
        """Return the buffer as a C array of these items."""
        view = memoryview(column)
        size = ffi.sizeof(ctype)
        # Several formats are the same integer: "q" and "l" on 64-bit Linux, and NumPy says "l".
        is_right = view.ndim == 1 and view.contiguous and view.itemsize == size
        if not is_right or view.format not in tuple(formats):
            raise TypeError(
                f"{what}: expected a contiguous buffer of {size}-byte integers "
                f"({'/'.join(formats)}), got format {view.format!r}, {view.itemsize} bytes an item"
            )
        return self._lend(column, ctype)

    def bytes_of(self, values: ReadableBuffer) -> Any:
        """Return the buffer as C bytes, whatever its items are."""
        if not memoryview(values).c_contiguous:
            raise TypeError("expected a contiguous buffer")
        return self._lend(values, "uint8_t")
