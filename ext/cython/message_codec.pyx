@cython.final
@cython.no_gc
cdef class MessageIndex:
    """Where the records of a pull body are; see core/interface."""

    cdef void *_memory  # owned, every column; freed in __dealloc__
    cdef omq.omq_message_columns _columns
    cdef size_t _rows
    cdef readonly int64_t last_offset

    def __cinit__(self):
        self._memory = NULL
        self.last_offset = -1

    def __dealloc__(self):
        PyMem_Free(self._memory)

    cdef int _allocate(self, size_t rows) except -1:
        self._memory = allocate(rows, sizeof(int64_t) + 5 * sizeof(uint32_t))
        self._columns.offsets = <int64_t *>self._memory
        self._columns.positions = <uint32_t *>(self._columns.offsets + rows)
        self._columns.body_positions = self._columns.positions + rows
        self._columns.body_sizes = self._columns.body_positions + rows
        self._columns.property_positions = self._columns.body_sizes + rows
        self._columns.property_sizes = self._columns.property_positions + rows
        return 0

    @property
    def offsets(self):
        return _column(self, self._columns.offsets, b"q", sizeof(int64_t))

    @property
    def positions(self):
        return _column(self, self._columns.positions, b"I", sizeof(uint32_t))

    @property
    def body_positions(self):
        return _column(self, self._columns.body_positions, b"I", sizeof(uint32_t))

    @property
    def body_sizes(self):
        return _column(self, self._columns.body_sizes, b"I", sizeof(uint32_t))

    @property
    def property_positions(self):
        return _column(self, self._columns.property_positions, b"I", sizeof(uint32_t))

    @property
    def property_sizes(self):
        return _column(self, self._columns.property_sizes, b"I", sizeof(uint32_t))

    def __len__(self):
        return self._rows


@cython.final
@cython.no_gc
cdef class _Column:
    # One column of an index for memoryview; keeps the index, whose memory it is.
    cdef MessageIndex _index
    cdef void *_values
    cdef char *_format
    cdef Py_ssize_t _shape[1]
    cdef Py_ssize_t _strides[1]

    def __getbuffer__(self, Py_buffer *view, int flags):
        view.buf = self._values
        view.obj = self
        view.len = self._shape[0] * self._strides[0]
        view.readonly = 1
        view.itemsize = self._strides[0]
        view.format = self._format
        view.ndim = 1
        view.shape = self._shape
        view.strides = self._strides
        view.suboffsets = NULL
        view.internal = NULL


cdef object _column(MessageIndex index, void *values, char *format, Py_ssize_t itemsize):
    cdef _Column column = _Column.__new__(_Column)
    column._index = index
    column._values = values
    column._format = format
    column._shape[0] = index._rows
    column._strides[0] = itemsize
    return memoryview(column)


def index_messages(body, tags=()):
    cdef Py_buffer view
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        return _index(&view, tuple(tags))
    finally:
        PyBuffer_Release(&view)


cdef MessageIndex _index(Py_buffer *view, tuple tags):
    cdef const uint8_t *body = <const uint8_t *>view.buf
    cdef size_t size = view.len
    cdef size_t tag_count = len(tags)
    cdef omq.omq_tag *wanted = NULL
    cdef MessageIndex index = MessageIndex.__new__(MessageIndex)
    cdef omq.omq_message_fault fault
    cdef omq.omq_status status
    cdef size_t i
    index._allocate(omq.omq_message_count(body, size))
    if tag_count > 0:
        wanted = <omq.omq_tag *>allocate(tag_count, sizeof(omq.omq_tag))
    try:
        for i in range(tag_count):
            if not isinstance(tags[i], bytes):
                raise TypeError("tags: expected a sequence of bytes objects")
            wanted[i].bytes = <const uint8_t *>PyBytes_AS_STRING(tags[i])
            wanted[i].size = PyBytes_GET_SIZE(tags[i])
        if size < GIL_RELEASE_MIN * 64:  # a record is read in the time of some 64 bytes
            status = omq.omq_message_index(
                body, size, wanted, tag_count, &index._columns, &index._rows,
                &index.last_offset, &fault,
            )
        else:
            with nogil:
                status = omq.omq_message_index(
                    body, size, wanted, tag_count, &index._columns, &index._rows,
                    &index.last_offset, &fault,
                )
    finally:
        PyMem_Free(wanted)
    if status == omq.OMQ_MALFORMED:
        raise _status.malformed(fault.fault, fault.record, fault.position)
    if status != omq.OMQ_OK:
        raise _status.failure(status, f"index_messages of {size} bytes")
    return index
