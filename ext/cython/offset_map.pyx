@cython.final
cdef class OffsetMap:
    """A sorted map of offset -> token; see core/contract/."""

    # Owned; freed in __dealloc__. The C map has no lock: the GIL is it, which no call here releases,
    # and without a GIL the critical section of this object.
    cdef omq.omq_offset_map *_map

    def __cinit__(self):
        self._map = omq.omq_offset_map_new()
        if self._map is NULL:
            raise MemoryError("no memory for an offset map")

    def __dealloc__(self):
        omq.omq_offset_map_free(self._map)

    def put(self, offset, token):
        return self._put(offset, token)

    # Without a result object, and without a method look-up: the quickest put there is.
    def __setitem__(self, offset, token):
        self._put(offset, token)

    @cython.critical_section
    cdef inline bint _put(self, object offset, object token) except -1:
        cdef omq.bool is_new
        cdef int64_t key = clamped(offset)
        cdef uint64_t value = 0
        cdef omq.omq_status status = omq.OMQ_OUT_OF_RANGE
        if is_token(token, &value):
            status = omq.omq_offset_map_put(self._map, key, value, &is_new)
        if status != omq.OMQ_OK:
            raise failure(status, f"put of offset {offset}")
        return is_new

    def put_columns(self, offsets, tokens):
        cdef Py_buffer offset_view
        cdef Py_buffer token_view
        cdef size_t added
        cdef omq.omq_status status
        get_column(offsets, &offset_view, b"ql", sizeof(int64_t), "offsets")
        try:
            get_column(tokens, &token_view, b"QL", sizeof(uint64_t), "tokens")
            try:
                if offset_view.shape[0] != token_view.shape[0]:
                    raise ValueError(
                        f"offset map: {offset_view.shape[0]} offsets, {token_view.shape[0]} tokens"
                    )
                with cython.critical_section(self):
                    status = omq.omq_offset_map_put_columns(
                        self._map,
                        <const int64_t *>offset_view.buf,
                        <const uint64_t *>token_view.buf,
                        offset_view.shape[0],
                        &added,
                    )
            finally:
                PyBuffer_Release(&token_view)
        finally:
            PyBuffer_Release(&offset_view)
        if status != omq.OMQ_OK:
            raise failure(status, "put_columns")
        return added

    def remove_columns(self, offsets):
        cdef Py_buffer view
        get_column(offsets, &view, b"ql", sizeof(int64_t), "offsets")
        try:
            with cython.critical_section(self):
                return omq.omq_offset_map_remove_columns(
                    self._map, <const int64_t *>view.buf, view.shape[0]
                )
        finally:
            PyBuffer_Release(&view)

    @cython.critical_section
    def columns(self, start=0, n=9223372036854775807):
        cdef size_t limit = at_least_one(n, "offset map", "columns")
        # Not more than there are: n is 2**63 - 1 where the caller wants all.
        cdef size_t held = omq.omq_offset_map_count(self._map)
        limit = min(limit, held)
        cdef array offsets = clone(_INT64, limit, zero=False)
        cdef array tokens = clone(_UINT64, limit, zero=False)
        cdef size_t copied = omq.omq_offset_map_read(
            self._map,
            clamped(start),
            <int64_t *>offsets.data.as_longlongs,
            <uint64_t *>tokens.data.as_ulonglongs,
            limit,
        )
        return memoryview(offsets)[:copied], memoryview(tokens)[:copied]

    @cython.critical_section
    def get(self, offset):
        cdef uint64_t token
        if omq.omq_offset_map_get(self._map, clamped(offset), &token):
            return token
        return None

    @cython.critical_section
    def __getitem__(self, offset):
        cdef uint64_t token
        if not omq.omq_offset_map_get(self._map, clamped(offset), &token):
            raise KeyError(offset)
        return token

    @cython.critical_section
    def __delitem__(self, offset):
        if not omq.omq_offset_map_remove(self._map, clamped(offset)):
            raise KeyError(offset)

    @cython.critical_section
    def remove(self, offset):
        return omq.omq_offset_map_remove(self._map, clamped(offset))

    @cython.critical_section
    def pop_first(self, n):
        cdef size_t limit = min(
            at_least_one(n, "offset map", "pop_first"), omq.omq_offset_map_count(self._map)
        )
        cdef omq.omq_entry small[SMALL]
        cdef omq.omq_entry *entries = small
        cdef size_t i
        if limit > SMALL:
            entries = <omq.omq_entry *>allocate(limit, sizeof(omq.omq_entry))
        try:
            limit = omq.omq_offset_map_pop_first(self._map, entries, limit)
            return [(entries[i].offset, entries[i].token) for i in range(limit)]
        finally:
            if entries is not small:
                PyMem_Free(entries)

    @cython.critical_section
    def first(self):
        cdef omq.omq_entry entry
        if omq.omq_offset_map_first(self._map, &entry):
            return (entry.offset, entry.token)
        return None

    @cython.critical_section
    def last(self):
        cdef omq.omq_entry entry
        if omq.omq_offset_map_last(self._map, &entry):
            return (entry.offset, entry.token)
        return None

    @cython.critical_section
    def floor(self, offset):
        cdef omq.omq_entry entry
        if omq.omq_offset_map_floor(self._map, clamped(offset), &entry):
            return (entry.offset, entry.token)
        return None

    @cython.critical_section
    def ceiling(self, offset):
        cdef omq.omq_entry entry
        if omq.omq_offset_map_ceiling(self._map, clamped(offset), &entry):
            return (entry.offset, entry.token)
        return None

    @cython.critical_section
    def clear(self):
        omq.omq_offset_map_clear(self._map)

    @cython.critical_section
    def __len__(self):
        return omq.omq_offset_map_count(self._map)

    @cython.critical_section
    def __contains__(self, offset):
        cdef uint64_t token
        return isinstance(offset, int) and omq.omq_offset_map_get(
            self._map, clamped(offset), &token
        )

    @cython.critical_section
    cdef size_t _read_from(self, int64_t start, int64_t *offsets) except? 0:
        return omq.omq_offset_map_read(self._map, start, offsets, NULL, SMALL)

    def __iter__(self):
        # In portions, each continued behind its last offset: the map may change between two steps.
        cdef int64_t offsets[SMALL]
        cdef int64_t start = 0
        cdef size_t count = SMALL
        cdef size_t i
        while count == SMALL:
            count = self._read_from(start, offsets)
            for i in range(count):
                yield offsets[i]
            start = offsets[count - 1] + 1 if count > 0 else 0

    @cython.critical_section
    def _check(self):
        cdef const char *broken = omq.omq_offset_map_check(self._map)
        if broken is not NULL:
            raise AssertionError(f"{broken.decode()}: {len(self)} entries, {list(self)[:1000]}")
