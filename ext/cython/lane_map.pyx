cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef int read_key(object key, omq.omq_key *name) except -1:
    """Point at a key's bytes, which live as long as the key does."""
    cdef Py_ssize_t size
    # The UTF-8 of a str is kept by the str, so that nothing is copied here; C copies new keys.
    if type(key) is bytes:
        name.bytes = <const uint8_t *>PyBytes_AS_STRING(key)
        name.size = PyBytes_GET_SIZE(key)
    elif isinstance(key, str):
        name.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(key, &size)
        name.size = size
    elif isinstance(key, bytes):
        name.bytes = <const uint8_t *>PyBytes_AS_STRING(key)
        name.size = PyBytes_GET_SIZE(key)
    else:
        raise TypeError(f"expected a key, str or bytes, got {type(key).__name__}")
    return 0


@cython.final
cdef class LaneMap:
    """The key lanes of one assigned message queue; see core/contract/."""

    cdef omq.omq_lane_map *_map  # owned; freed in __dealloc__
    cdef readonly str name  # "topic@broker/queueId", for errors and repr
    cdef readonly uint32_t max_in_flight
    cdef readonly int64_t max_ahead
    # offset -> message, in a map of objects. The GIL guards it, and without a GIL the critical
    # section of this object: no Python code runs between a native call and the change here that
    # goes with it.
    cdef dict _messages

    def __cinit__(
        self, str name not None="", *, max_in_flight=20, max_ahead=2_000, keyless="barrier"
    ):
        if not (1 <= max_in_flight <= INT32_MAX and 1 <= max_ahead <= INT64_MAX):
            raise failure(
                _status.OUT_OF_RANGE,
                f"{name}: max_in_flight={max_in_flight}, max_ahead={max_ahead}",
            )
        if keyless not in ("barrier", "lane"):
            raise failure(_status.OUT_OF_RANGE, f"{name}: keyless={keyless!r}")
        self.name = name
        self.max_in_flight = max_in_flight
        self.max_ahead = max_ahead
        self._messages = {}
        self._map = omq.omq_lane_map_new(
            self.max_in_flight, self.max_ahead, keyless == "barrier", random_seed()
        )
        if self._map is NULL:
            raise MemoryError(f"{name}: no memory for a lane map")

    def __dealloc__(self):
        omq.omq_lane_map_free(self._map)

    def __repr__(self):
        return f"LaneMap({self.name!r}, messages={self.message_count})"

    def add(self, messages):
        # Own tuples in an own list: C gets pointers into their keys, and reading an offset may run
        # code that changes the caller's.
        cdef list triples = [
            one if type(one) is tuple else tuple(one) for one in messages
        ]
        cdef Py_ssize_t count = len(triples)
        cdef omq.omq_key small[SMALL]
        cdef int64_t small_offsets[SMALL]
        cdef omq.omq_key *keys = small
        cdef int64_t *offsets = small_offsets
        cdef Py_ssize_t i
        cdef tuple triple
        if count > SMALL:
            keys = <omq.omq_key *>allocate(count, sizeof(omq.omq_key) + sizeof(int64_t))
            offsets = <int64_t *>(keys + count)
        try:
            for i in range(count):
                triple = <tuple>triples[i]
                if PyTuple_GET_SIZE(triple) != 3:
                    raise ValueError(
                        f"{self.name}: expected (offset, key, message), got {len(triple)} items"
                    )
                offsets[i] = clamped(<object>PyTuple_GET_ITEM(triple, 0))
                if <object>PyTuple_GET_ITEM(triple, 1) is None:
                    keys[i].bytes = NULL
                    keys[i].size = 0
                else:
                    read_key(<object>PyTuple_GET_ITEM(triple, 1), keys + i)
            return self._add(triples, offsets, keys, count)
        finally:
            if keys is not small:
                PyMem_Free(keys)

    @cython.critical_section
    cdef size_t _add(
        self, list triples, const int64_t *offsets, const omq.omq_key *keys, size_t count
    ) except? 0:
        cdef size_t ignored
        cdef size_t added
        cdef size_t i
        cdef omq.omq_status status = omq.omq_lane_map_add(
            self._map, offsets, keys, count, &ignored, &added
        )
        for i in range(ignored, ignored + added):  # before raising: without memory a prefix is in
            self._messages[offsets[i]] = <object>PyTuple_GET_ITEM(<tuple>triples[i], 2)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: add")
        return added

    def add_columns(self, offsets, tokens, keys, key_positions, key_sizes):
        cdef Py_buffer views[5]
        cdef int filled = 0
        try:
            get_column(offsets, &views[0], b"ql", sizeof(int64_t), "offsets")
            filled = 1
            get_column(tokens, &views[1], b"QL", sizeof(uint64_t), "tokens")
            filled = 2
            get_column(key_positions, &views[2], b"IiLl", sizeof(uint32_t), "key_positions")
            filled = 3
            get_column(key_sizes, &views[3], b"IiLl", sizeof(uint32_t), "key_sizes")
            filled = 4
            try:
                PyObject_GetBuffer(keys, &views[4], PyBUF_SIMPLE)
            except BufferError as error:
                raise TypeError("keys: expected a contiguous buffer") from error
            filled = 5
            return self._add_columns(views)
        finally:
            while filled > 0:
                filled -= 1
                PyBuffer_Release(&views[filled])

    cdef size_t _add_columns(self, Py_buffer *views) except? 0:
        cdef Py_ssize_t count = views[0].shape[0]
        cdef const int64_t *offsets = <const int64_t *>views[0].buf
        cdef const uint64_t *tokens = <const uint64_t *>views[1].buf
        cdef omq.omq_key_column keys
        cdef size_t ignored
        cdef size_t added
        cdef omq.omq_status status
        if not (views[1].shape[0] == count and views[2].shape[0] == count
                and views[3].shape[0] == count):
            raise ValueError(
                f"{self.name}: {count} offsets, {views[1].shape[0]} tokens, "
                f"{views[2].shape[0]} key positions, {views[3].shape[0]} key sizes"
            )
        keys.bytes = <const uint8_t *>views[4].buf
        keys.size = views[4].len
        keys.positions = <const uint32_t *>views[2].buf
        keys.sizes = <const uint32_t *>views[3].buf
        if count < GIL_RELEASE_MIN:
            status = omq.omq_lane_map_add_columns(
                self._map, offsets, tokens, &keys, count, &ignored, &added
            )
        else:
            with nogil:
                status = omq.omq_lane_map_add_columns(
                    self._map, offsets, tokens, &keys, count, &ignored, &added
                )
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: add_columns")
        return added

    def take(self, n):
        return self._objects(NULL, n, "take")

    def divert(self, key, n):
        cdef omq.omq_key name
        read_key(key, &name)
        return self._objects(&name, n, "divert")

    def take_columns(self, n):
        return self._columns(NULL, n, "take_columns")

    def divert_columns(self, key, n):
        cdef omq.omq_key name
        read_key(key, &name)
        return self._columns(&name, n, "divert_columns")

    cdef size_t _limit(self, object n, str operation) except 0:
        """Return n, or less where not so many can be in flight: the room to allocate."""
        cdef size_t limit = at_least_one(n, self.name, operation)
        if limit > SMALL:
            limit = max(<size_t>1, min(limit, self._state().messages, self.max_in_flight))
        return limit

    cdef omq.omq_status _start(
        self, const omq.omq_key *key, int64_t *offsets, uint64_t *tokens, size_t limit,
        size_t *taken
    ) noexcept nogil:
        if key is NULL:
            return omq.omq_lane_map_take(self._map, offsets, tokens, limit, taken)
        return omq.omq_lane_map_divert(self._map, key, offsets, tokens, limit, taken)

    @cython.critical_section
    cdef list _objects(self, const omq.omq_key *key, object n, str operation):
        cdef size_t limit = self._limit(n, operation)
        cdef int64_t small[SMALL]
        cdef int64_t *offsets = small
        cdef size_t taken
        cdef size_t i
        cdef omq.omq_status status
        cdef list found = []
        if limit > SMALL:
            offsets = <int64_t *>allocate(limit, sizeof(int64_t))
        try:
            status = self._start(key, offsets, NULL, limit, &taken)
            if status != omq.OMQ_OK:
                raise failure(status, f"{self.name}: {operation}")
            # Get all messages before any tuple is made: that may collect garbage, which may run
            # Python code, and another thread may then reset the map, which drops its messages.
            for i in range(taken):
                found.append(self._messages[offsets[i]])
            for i in range(taken):
                found[i] = (offsets[i], found[i])
            return found
        finally:
            if offsets is not small:
                PyMem_Free(offsets)

    cdef tuple _columns(self, const omq.omq_key *key, object n, str operation):
        cdef size_t limit = self._limit(n, operation)
        cdef array offsets = clone(_INT64, limit, zero=False)
        cdef array tokens = clone(_UINT64, limit, zero=False)
        cdef int64_t *offset_column = <int64_t *>offsets.data.as_longlongs
        cdef uint64_t *token_column = <uint64_t *>tokens.data.as_ulonglongs
        cdef size_t taken
        cdef omq.omq_status status
        if limit < GIL_RELEASE_MIN:
            status = self._start(key, offset_column, token_column, limit, &taken)
        else:
            with nogil:
                status = self._start(key, offset_column, token_column, limit, &taken)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: {operation}")
        return memoryview(offsets)[:taken], memoryview(tokens)[:taken]

    @cython.critical_section
    def done(self, offset):
        cdef int64_t ended = clamped(offset)
        cdef omq.omq_flight flight = omq.omq_lane_map_done(self._map, ended)
        if flight == omq.OMQ_FLIGHT_OWN:
            self._messages.pop(ended, None)  # columns have none
        return flight != omq.OMQ_FLIGHT_NONE

    def done_columns(self, offsets):
        cdef Py_buffer view
        cdef size_t ended
        cdef omq.omq_status status
        get_column(offsets, &view, b"ql", sizeof(int64_t), "offsets")
        try:
            if view.shape[0] < GIL_RELEASE_MIN:
                status = omq.omq_lane_map_done_columns(
                    self._map, <const int64_t *>view.buf, view.shape[0], &ended
                )
            else:
                with nogil:
                    status = omq.omq_lane_map_done_columns(
                        self._map, <const int64_t *>view.buf, view.shape[0], &ended
                    )
        finally:
            PyBuffer_Release(&view)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: done_columns")
        return ended

    def failed(self, offset):
        return omq.omq_lane_map_failed(self._map, clamped(offset)) != omq.OMQ_FLIGHT_NONE

    def park(self, key):
        cdef omq.omq_key name
        cdef omq.bool changed
        read_key(key, &name)
        cdef omq.omq_status status = omq.omq_lane_map_park(self._map, &name, &changed)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: park")
        return changed

    def unpark(self, key):
        cdef omq.omq_key name
        read_key(key, &name)
        return omq.omq_lane_map_unpark(self._map, &name)

    def is_parked(self, key):
        cdef omq.omq_key name
        read_key(key, &name)
        return omq.omq_lane_map_is_parked(self._map, &name)

    @cython.critical_section
    def reset(self, next_offset):
        cdef omq.omq_status status = omq.OMQ_OUT_OF_RANGE
        cdef dict dropped = {}
        if 0 <= next_offset <= INT64_MAX:
            status = omq.omq_lane_map_reset(self._map, next_offset)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: reset to {next_offset}")
        # The messages' finalizers run when `dropped` goes, after the exchange: they may call back.
        dropped, self._messages = self._messages, dropped

    cdef omq.omq_lane_map_state _state(self):
        cdef omq.omq_lane_map_state state
        omq.omq_lane_map_read(self._map, &state)
        return state

    @property
    def watermark(self):
        return self._state().watermark

    @property
    def next_offset(self):
        return self._state().next_offset

    @property
    def is_full(self):
        return self._state().is_full

    @property
    def message_count(self):
        return self._state().messages

    @property
    def in_flight_count(self):
        return self._state().in_flight

    @property
    def old_flight_count(self):
        return self._state().old_flights

    @property
    def ready_count(self):
        return self._state().ready

    @property
    def key_count(self):
        return self._state().keys

    @property
    def parked_count(self):
        return self._state().parked

    @property
    def duplicates_ignored(self):
        return self._state().duplicates_ignored

    def _check(self):
        cdef const char *broken
        cdef omq.omq_lane_map_state state
        cdef size_t kept
        with cython.critical_section(self):
            broken = omq.omq_lane_map_check(self._map)
            state = self._state()
            kept = len(self._messages)
        if broken is not NULL:
            raise AssertionError(f"{self!r}: {broken.decode()}: {state}")
        assert kept in (0, state.messages), f"{self!r}: {kept} objects kept"
