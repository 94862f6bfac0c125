@cython.final
cdef class IdWindow:
    """The ids of a queue's newest messages; see core/contract/."""

    # Owned; freed in __dealloc__. The C window has no lock: the GIL is it, and without a GIL the
    # critical section of this object.
    cdef omq.omq_id_window *_window
    cdef uint32_t _size

    def __cinit__(self, size):
        if not 1 <= size <= INT32_MAX:
            raise failure(_status.OUT_OF_RANGE, f"id window of {size} offsets")
        self._size = size
        self._window = omq.omq_id_window_new(self._size, random_seed())
        if self._window is NULL:
            raise MemoryError("no memory for an id window")

    def __dealloc__(self):
        omq.omq_id_window_free(self._window)

    def drop_copies(self, MessageIndex index not None, end=9223372036854775807):
        cdef size_t dropped
        cdef int64_t before = clamped(end)
        cdef omq.omq_status status
        with cython.critical_section(self, index):
            status = omq.omq_id_window_drop_copies(
                self._window, index._bytes(), before, &index._rows, &dropped
            )
        if status != omq.OMQ_OK:
            raise failure(status, f"drop_copies of {len(index)} messages")
        return dropped

    @cython.critical_section
    def clear(self):
        omq.omq_id_window_clear(self._window)

    @property
    def size(self):
        return self._size

    @cython.critical_section
    def __len__(self):
        return omq.omq_id_window_count(self._window)

    @cython.critical_section
    def _check(self):
        cdef const char *broken = omq.omq_id_window_check(self._window)
        if broken is not NULL:
            raise AssertionError(f"{broken.decode()}: {len(self)} ids")
