@cython.final
@cython.no_gc
cdef class RecordBlock:
    """Records that wait for their places; see core/contract/."""

    cdef uint8_t *_records  # owned, as are the next two; freed in __dealloc__
    cdef uint32_t *_positions  # one more than records
    cdef int64_t *_tags
    cdef size_t _count

    def __cinit__(self):
        self._count = 0

    def __dealloc__(self):
        PyMem_Free(self._records)
        PyMem_Free(self._positions)
        PyMem_Free(self._tags)

    cdef int _allocate(self, size_t count, size_t size) except -1:
        self._records = <uint8_t *>allocate(size, 1)
        self._positions = <uint32_t *>allocate(count + 1, sizeof(uint32_t))
        self._tags = <int64_t *>allocate(count, sizeof(int64_t))
        self._count = count
        return 0

    def __len__(self):
        return self._count

    @property
    def tags(self):
        cdef size_t i
        return [self._tags[i] for i in range(self._count)]

    @cython.critical_section
    def rows(self, int64_t queue_offset, int64_t physical_offset):
        cdef list rows = PyList_New(self._count)
        cdef size_t i
        omq.omq_records_stamp(
            self._records, self._positions, self._count, queue_offset, physical_offset
        )
        for i in range(self._count):
            row = (
                queue_offset + <int64_t>i,
                self._tags[i],
                PyByteArray_FromStringAndSize(
                    <char *>self._records + self._positions[i],
                    self._positions[i + 1] - self._positions[i],
                ),
            )
            Py_INCREF(row)
            PyList_SET_ITEM(rows, i, row)
        return rows


@cython.final
@cython.no_gc
cdef class RecordWriter:
    """Writes the records of one queue and one producer's host; see core/contract/."""

    cdef omq.omq_record_head _head  # its texts are the next three
    cdef bytes _topic
    cdef bytes _born_host
    cdef bytes _store_host

    def __cinit__(
        self, str topic not None, int32_t queue_id, bytes born_host not None,
        bytes store_host not None,
    ):
        self._topic, self._born_host, self._store_host = topic.encode(), born_host, store_host
        self._head.topic = text_of(self._topic)
        self._head.born_host = text_of(born_host)
        self._head.store_host = text_of(store_host)
        self._head.queue_id = queue_id
        if omq.omq_record_size(&self._head, 0, 0) == 0:
            raise failure(_status.OUT_OF_RANGE, f"writer of {topic!r}")

    def write(
        self, bytes body not None, bytes properties not None, *, int32_t flag, int32_t sys_flag,
        int64_t born_ms, int64_t stored_ms, int32_t reconsume_times=0, tag=None,
    ):
        cdef omq.omq_record_head head = self._head
        cdef omq.omq_outgoing message
        cdef RecordBlock block = RecordBlock.__new__(RecordBlock)
        head.sys_flag, head.born_ms, head.stored_ms = sys_flag, born_ms, stored_ms
        head.reconsume_times = reconsume_times
        message.body, message.properties = text_of(body), text_of(properties)
        message.flag = flag
        cdef size_t size = omq.omq_record_size(
            &head, message.body.size, message.properties.size
        )
        if size == 0:
            raise failure(
                _status.OUT_OF_RANGE,
                f"record of a body of {len(body)} and properties of {len(properties)} bytes",
            )
        block._allocate(1, size)
        omq.omq_record_write(&head, &message, block._records)
        block._positions[0], block._positions[1] = 0, <uint32_t>size
        if tag is None:  # a hash that the caller has is not computed again
            block._tags[0] = omq.omq_tag_hash(&message.properties)
        else:
            block._tags[0] = tag
        return block

    def write_batch(
        self, bytes batch not None, *, int32_t sys_flag, int64_t born_ms, int64_t stored_ms
    ):
        cdef omq.omq_record_head head = self._head
        cdef RecordBlock block = RecordBlock.__new__(RecordBlock)
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(batch)
        cdef size_t size = PyBytes_GET_SIZE(batch)
        cdef size_t count
        cdef size_t record_bytes
        cdef omq.omq_message_fault fault
        head.sys_flag, head.born_ms, head.stored_ms = sys_flag, born_ms, stored_ms
        cdef omq.omq_status status = omq.omq_batch_measure(
            &head, data, size, &count, &record_bytes, &fault
        )
        if status == omq.OMQ_MALFORMED:
            raise _status.malformed_batch(fault.fault, fault.record, fault.position, size)
        if status != omq.OMQ_OK:
            raise failure(status, f"records of a batch of {size} bytes")
        block._allocate(count, record_bytes)
        if size < GIL_RELEASE_MIN * 64:  # the same bound as for bodies that are indexed
            omq.omq_batch_write(&head, data, count, block._records, block._positions, block._tags)
        else:
            with nogil:
                omq.omq_batch_write(
                    &head, data, count, block._records, block._positions, block._tags
                )
        return block


cdef omq.omq_text text_of(bytes text):
    """Return where the bytes lie; the caller keeps them alive."""
    cdef omq.omq_text found
    found.bytes = <const uint8_t *>PyBytes_AS_STRING(text)
    found.size = PyBytes_GET_SIZE(text)
    return found


def encode_batch(bodies, properties, flags):
    # Own tuples keep alive what the messages point to, whatever an __index__ of a flag does.
    cdef tuple held_bodies = tuple(bodies)
    cdef tuple held_properties = tuple(properties)
    cdef tuple held_flags = tuple(flags)
    cdef Py_ssize_t count = len(held_bodies)
    if len(held_properties) != count or len(held_flags) != count:
        raise ValueError(
            f"encode_batch: {count} bodies, {len(held_properties)} properties, "
            f"{len(held_flags)} flags: expected one of each per message"
        )
    cdef omq.omq_outgoing *messages = <omq.omq_outgoing *>allocate(
        count, sizeof(omq.omq_outgoing)
    )
    cdef size_t size
    cdef bytes batch
    try:
        fill_outgoing(messages, held_bodies, held_properties, held_flags)
        if omq.omq_batch_size(messages, count, &size) != omq.OMQ_OK:
            raise failure(_status.OUT_OF_RANGE, f"encode_batch of {count} messages")
        # Written in place: nobody else has seen these bytes yet.
        batch = PyBytes_FromStringAndSize(NULL, size)
        omq.omq_batch_encode(messages, count, <uint8_t *>PyBytes_AS_STRING(batch))
        return batch
    finally:
        PyMem_Free(messages)


cdef int fill_outgoing(
    omq.omq_outgoing *messages, tuple bodies, tuple properties, tuple flags
) except -1:
    cdef Py_ssize_t size
    cdef Py_ssize_t i
    for i in range(len(bodies)):
        body = bodies[i]
        if not isinstance(body, bytes):
            raise TypeError(f"encode_batch: a body is bytes, got {type(body).__name__}")
        messages[i].body = text_of(body)
        messages[i].properties.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(
            properties[i], &size
        )
        messages[i].properties.size = size
        messages[i].flag = flags[i]
    return 0


cdef void *buffer_of(list held, object column, const char *formats, Py_ssize_t itemsize, str what, Py_ssize_t *count) except? NULL:
    """Return where a column lies and write its length; `held` keeps its memory in place."""
    cdef Py_buffer view
    cdef object kept = memoryview(column)
    get_column(kept, &view, formats, itemsize, what)
    cdef void *start = view.buf
    count[0] = view.shape[0]
    # Released at once, so that no error path has to: the memoryview `kept` still holds the buffer.
    PyBuffer_Release(&view)
    held.append(kept)
    return start


cdef int read_texts(
    list held, tuple texts, Py_ssize_t count, str what, omq.omq_texts *column
) except -1:
    cdef Py_ssize_t positions = 0
    cdef Py_buffer *data
    column.positions = <const int32_t *>buffer_of(
        held, texts[0], b"il", sizeof(int32_t), what, &positions
    )
    if positions != count + 1:
        raise ValueError(f"{what}: {positions} positions of {count} rows")
    kept = memoryview(texts[1]).cast("B")
    data = PyMemoryView_GET_BUFFER(kept)
    column.bytes, column.size = <const uint8_t *>data.buf, data.len
    held.append(kept)
    return 0


def ordered_rows(offsets, queue_ids, names, Py_ssize_t first, Py_ssize_t end):
    cdef list held = []
    cdef tuple texts = tuple(names)
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t id_count = 0
    cdef size_t name_count = len(texts)
    cdef size_t found
    cdef omq.omq_status status
    cdef const int64_t *column = <const int64_t *>buffer_of(
        held, offsets, b"ql", sizeof(int64_t), "offsets", &count
    )
    cdef const int32_t *ids = <const int32_t *>buffer_of(
        held, queue_ids, b"il", sizeof(int32_t), "queue_ids", &id_count
    )
    if id_count != count:
        raise ValueError(f"ordered_rows: {count} offsets, {id_count} queue_ids")
    cdef omq.omq_texts *columns = <omq.omq_texts *>allocate(name_count, sizeof(omq.omq_texts))
    try:
        for i in range(name_count):
            read_texts(held, texts[i], count, "names", &columns[i])
        if not 0 <= first < end <= count:
            raise failure(
                _status.OUT_OF_RANGE, f"ordered_rows from {first} to {end} of {count}"
            )
        if end - first < GIL_RELEASE_MIN:
            status = omq.omq_ordered_rows(column, ids, columns, name_count, first, end, &found)
        else:
            with nogil:
                status = omq.omq_ordered_rows(
                    column, ids, columns, name_count, first, end, &found
                )
    finally:
        PyMem_Free(columns)
    if status != omq.OMQ_OK:
        raise failure(status, "ordered_rows")
    return found


cdef int read_property(
    list held, tuple named, Py_ssize_t count, omq.omq_property_column *column
) except -1:
    cdef Py_ssize_t numbers = 0
    cdef bytes name = named[0]
    held.append(name)
    column.name = text_of(name)
    column.numbers = NULL
    if isinstance(named[1], tuple):
        return read_texts(held, named[1], count, "columns", &column.texts)
    column.numbers = <const int64_t *>buffer_of(
        held, named[1], b"ql", sizeof(int64_t), "columns", &numbers
    )
    if numbers != count:
        raise ValueError(f"columns: {numbers} numbers of {count} rows")
    if column.name.size == 0:
        raise ValueError("columns: numbers without a name")
    return 0


def encode_rows(
    tuple bodies not None, rows, *, bytes fixed not None, columns, bytes unique not None,
    Py_ssize_t most_bytes,
):
    cdef list held = []
    cdef tuple named = tuple(columns)
    cdef omq.omq_row_messages messages
    cdef Py_ssize_t wanted = 0
    cdef Py_ssize_t count = len(memoryview(bodies[0])) - 1
    if count < 0:
        raise ValueError("bodies: 0 positions")
    read_texts(held, bodies, count, "bodies", &messages.bodies)
    cdef const uint32_t *chosen = <const uint32_t *>buffer_of(
        held, rows, b"IL", sizeof(uint32_t), "rows", &wanted
    )
    if len(unique) not in (0, 16):
        raise ValueError(f"encode_rows: unique of {len(unique)} bytes: expected 0 or 16")
    messages.count = count
    messages.fixed = text_of(fixed)
    messages.unique = <const uint8_t *>PyBytes_AS_STRING(unique) if unique else NULL
    messages.column_count = len(named)
    cdef omq.omq_property_column *properties = <omq.omq_property_column *>allocate(
        len(named), sizeof(omq.omq_property_column)
    )
    try:
        for i in range(len(named)):
            read_property(held, named[i], count, &properties[i])
        messages.columns = properties
        if wanted == 0:
            raise failure(_status.OUT_OF_RANGE, "encode_rows of no rows")
        return encoded(&messages, chosen, wanted, max(most_bytes, 0))
    finally:
        PyMem_Free(properties)


cdef tuple encoded(
    const omq.omq_row_messages *messages, const uint32_t *rows, size_t wanted, size_t most_bytes
):
    cdef size_t fitting
    cdef size_t size
    cdef uint8_t *at
    if omq.omq_rows_measure(messages, rows, wanted, most_bytes, &fitting, &size) != omq.OMQ_OK:
        raise failure(_status.OUT_OF_RANGE, f"encode_rows: row {rows[fitting]}")
    cdef bytes batch = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t *>PyBytes_AS_STRING(batch)
    if size < GIL_RELEASE_MIN * 64:  # as bodies that are indexed
        omq.omq_rows_encode(messages, rows, fitting, at)
    else:
        with nogil:
            omq.omq_rows_encode(messages, rows, fitting, at)
    return batch, fitting
