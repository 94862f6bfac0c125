cdef void *buffer_of(list held, object column, const char *formats, Py_ssize_t itemsize, str what, Py_ssize_t *count) except? NULL:
    """Where a column lies, and its items; `held` keeps it there."""
    cdef Py_buffer view
    cdef object kept = memoryview(column)
    get_column(kept, &view, formats, itemsize, what)
    cdef void *start = view.buf
    count[0] = view.shape[0]
    PyBuffer_Release(&view)  # `kept` still holds the buffer
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
            raise _status.failure(
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
        raise _status.failure(status, "ordered_rows")
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
            raise _status.failure(_status.OUT_OF_RANGE, "encode_rows of no rows")
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
        raise _status.failure(_status.OUT_OF_RANGE, f"encode_rows: row {rows[fitting]}")
    cdef bytes batch = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t *>PyBytes_AS_STRING(batch)
    if size < GIL_RELEASE_MIN * 64:  # as bodies that are indexed
        omq.omq_rows_encode(messages, rows, fitting, at)
    else:
        with nogil:
            omq.omq_rows_encode(messages, rows, fitting, at)
    return batch, fitting
