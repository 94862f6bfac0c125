cdef enum:
    TAKE_MS = 200  # between two looks whether there are signals
    MOST_WANTED = 1 << 30  # bytes of answers in one block: positions of Arrow have 31 bits
    KEPT_BLOCKS = 4
    KEPT_BYTES = 8 << 20  # written to


cdef omq.omq_text *texts_of(tuple texts) except NULL:
    """Return them as the core takes texts: memory to free, which does not hold what it points to."""
    cdef omq.omq_text *found = <omq.omq_text *>allocate(len(texts) + 1, sizeof(omq.omq_text))
    cdef Py_ssize_t i
    try:
        for i in range(len(texts)):
            found[i] = text_of(<bytes?>texts[i])
    except BaseException:
        PyMem_Free(found)
        raise
    return found


@cython.final
@cython.no_gc
cdef class AnswerQueue:
    """Answers of pulls, between the engine and one reader; see core/contract/streams.py."""

    cdef omq_answer_queue *_queue  # owned; freed in __dealloc__

    def __cinit__(self, start, end, most_bytes, bint is_whole):
        self._queue = omq_answer_queue_new(start, end, most_bytes, is_whole)
        if self._queue is NULL:
            raise MemoryError("no memory for a queue of answers")

    def __dealloc__(self):
        omq_answer_queue_free(self._queue)

    @property
    def next(self):
        return omq_answer_queue_next(self._queue)

    def put(self, bytes body not None, tuple tags, bint check_crc, queue_id, first, next):
        cdef omq.omq_pulled pulled
        cdef omq.omq_text *texts = texts_of(tags)
        cdef omq_answer *answer
        cdef omq.omq_status status
        cdef omq_room_waiter nobody = [NULL, NULL]
        try:
            pulled.queue_id = queue_id
            pulled.first = first
            pulled.end = next
            status = omq_answer_new(
                <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), texts, len(tags),
                check_crc, &pulled, &answer,
            )
        finally:
            PyMem_Free(texts)
        if status != omq.OMQ_OK:
            MessageIndex(body, tags, check_crc, (queue_id, first, next))  # raises, and says why
            raise failure(status, "an answer to a pull")
        if omq_answer_queue_fill(self._queue, answer, first, next, nobody) == OMQ_FILL_REFUSED:
            omq_answer_release(answer)
            raise _errors.StateError("the queue of answers has ended, or waits for another offset")
        omq_answer_release(answer)

    def skip(self, next):
        omq_answer_queue_skip(self._queue, next)

    def end(self):
        omq_answer_queue_end(self._queue)

    def lost(self):
        cdef int64_t first
        cdef uint64_t count = omq_answer_queue_lost(self._queue, &first)
        return count, first


# Memory of columns that were read, for the next ones: pages that are new cost more to get than to
# write. The GIL guards it; without a GIL nothing is kept.
cdef void *_kept[KEPT_BLOCKS]
cdef size_t _kept_sizes[KEPT_BLOCKS]


@cython.final
@cython.no_gc
cdef class _ColumnMemory:
    """The memory of the columns of one block, as a buffer."""

    cdef uint8_t *_memory  # owned
    cdef size_t _size
    cdef Py_ssize_t _used
    cdef Py_ssize_t _shape[1]

    def __cinit__(self, size_t size):
        cdef size_t i
        if not IS_FREE_THREADED:
            for i in range(KEPT_BLOCKS):
                if _kept_sizes[i] >= size:
                    self._memory, self._size = <uint8_t *>_kept[i], _kept_sizes[i]
                    _kept[i], _kept_sizes[i] = NULL, 0
                    return
        self._memory = <uint8_t *>malloc(size)
        if self._memory is NULL:
            raise MemoryError(f"no memory for columns of {size} bytes")
        self._size = size

    def __dealloc__(self):
        cdef size_t smallest = 0
        cdef size_t i
        if not IS_FREE_THREADED and self._used <= KEPT_BYTES:
            for i in range(1, KEPT_BLOCKS):
                if _kept_sizes[i] < _kept_sizes[smallest]:
                    smallest = i
            if _kept_sizes[smallest] < self._size:
                free(_kept[smallest])
                _kept[smallest], _kept_sizes[smallest] = self._memory, self._size
                return
        free(self._memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        self._shape[0] = <Py_ssize_t>self._size
        view.buf = self._memory
        view.obj = self
        view.len = self._shape[0]
        view.itemsize = 1
        view.readonly = True
        view.ndim = 1
        view.format = NULL  # bytes
        view.shape = self._shape if flags & PyBUF_ND else NULL
        view.strides = NULL
        view.suboffsets = NULL
        view.internal = NULL


@cython.final
cdef class AnswerBlock:
    """Messages of answers that become columns together; see core/contract/streams.py."""

    cdef omq_answer_rows *_parts  # owned, each with a hold on its answer
    cdef size_t _count
    cdef size_t _room
    cdef size_t _rows
    cdef size_t _bytes
    cdef tuple _malformed  # part and row, once `columns` has found one

    def __dealloc__(self):
        self._release()
        PyMem_Free(self._parts)

    def __len__(self):
        return self._rows

    cdef void _release(self) noexcept:
        cdef size_t i
        for i in range(self._count):
            omq_answer_release(self._parts[i].answer)
        self._count = self._rows = self._bytes = 0

    def clear(self):
        self._release()

    def take(self, AnswerQueue queue not None, size_t most_rows, size_t most_bytes):
        cdef omq_answer_rows taken
        cdef omq_taken result
        if most_bytes > MOST_WANTED:
            most_bytes = MOST_WANTED
        while self._rows < most_rows and self._bytes < most_bytes:
            if self._count == self._room:
                self._grow()
            with nogil:
                result = omq_answer_queue_take(
                    queue._queue, most_rows - self._rows, TAKE_MS, &taken
                )
            if result == OMQ_TAKEN_ALL:
                return True
            if result == OMQ_TAKEN_NONE:
                PyErr_CheckSignals()
                continue
            self._parts[self._count] = taken
            self._count += 1
            self._rows += taken.end_row - taken.first_row
            self._bytes += taken.answer.size
        return False

    cdef int _grow(self) except -1:
        cdef size_t room = 2 * self._room if self._room else 64
        cdef void *grown = PyMem_Realloc(self._parts, room * sizeof(omq_answer_rows))
        if grown is NULL:
            raise MemoryError("no memory for a block of answers")
        self._parts = <omq_answer_rows *>grown
        self._room = room
        return 0

    def columns(self, uint32_t wanted, tuple left_out not None, bytes prefix not None):
        cdef size_t most = omq_answer_columns_most(self._parts, self._count, wanted)
        if most == 0:
            raise _errors.StateError(f"{self._rows} messages have more than 2 GiB: take fewer")
        cdef _ColumnMemory memory = _ColumnMemory(most)
        cdef omq_answer_columns found
        cdef omq_left_out names
        cdef size_t part
        cdef size_t row
        cdef bint is_text
        names.count = len(left_out)
        names.prefix = text_of(prefix)
        names.names = texts_of(left_out)
        with nogil:
            is_text = omq_answer_columns_write(
                self._parts, self._count, wanted, &names, memory._memory, &found, &part, &row
            )
        PyMem_Free(<void *>names.names)
        if not is_text:
            self._malformed = part, row
            return None
        memory._used = found.bytes
        cdef Py_ssize_t i
        spans = [(found.spans[i].at, found.spans[i].size) for i in range(OMQ_BUFFER_END)]
        return memory, spans, found.entries, bool(found.has_compressed)

    def malformed(self):
        cdef size_t part
        cdef size_t row
        part, row = self._malformed
        cdef omq_answer *answer = self._parts[part].answer
        cdef omq.omq_message_parts places
        omq.omq_message_locate(answer.body, &answer.rows, row, &places)
        text = PyBytes_FromStringAndSize(
            <const char *>answer.body + places.property_at, places.property_size
        )
        return omq.omq_message_offset(answer.body, &answer.rows, row), text
