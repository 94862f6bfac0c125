cdef object _MAX_DECOMPRESSED = _compression.MAX_DECOMPRESSED_BYTES


# No garbage collection: an index refers to bytes only, which cannot form a cycle.
@cython.no_gc
cdef class MessageIndex:
    """The messages of a pull body; see core/contract/."""

    cdef readonly bytes body
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_decompressed_bytes
    cdef omq.omq_message_rows _rows  # its arrays are owned; freed in __dealloc__
    cdef omq_answer *_answer  # held: has the arrays, if the pull engine made them; else NULL
    cdef object _view  # a memoryview of the body, once one was asked for; None without a GIL

    def __cinit__(self):
        self.last_offset = -1

    def __dealloc__(self):
        if self._answer is not NULL:
            omq_answer_release(self._answer)
            return
        PyMem_Free(self._rows.positions)
        PyMem_Free(self._rows.body_sizes)
        PyMem_Free(self._rows.outers)
        PyMem_Free(self._rows.numbers)

    def __init__(
        self, body, tags=(), check_crc=False, pulled=None, max_decompressed_bytes=_MAX_DECOMPRESSED
    ):
        # Once: views read through the rows without a check, so they must never change.
        if self._rows.positions is not NULL:
            raise _errors.StateError("a MessageIndex is made once")
        cdef bytes held = body if type(body) is bytes else bytes(body)
        cdef omq.omq_pulled wanted
        if pulled is not None:
            queue_id, first, end = pulled
            wanted.queue_id = <int32_t>min(max(clamped(queue_id), -1), <int64_t>INT32_MAX)
            wanted.first = clamped(first)
            wanted.end = clamped(end)
        self.max_decompressed_bytes = clamped(max_decompressed_bytes)
        _index(self, held, tuple(tags), check_crc, NULL if pulled is None else &wanted)
        self.body = held

    def __len__(self):
        return self._rows.count

    cdef int _adopt(self, omq_answer *answer, int64_t max_decompressed_bytes) except -1:
        """Become the index of an answer, with one hold on it that is handed over."""
        cdef bytes body
        try:
            if self._rows.positions is not NULL:
                raise _errors.StateError("a MessageIndex is made once")
            # A copy: views of a bytes object keep it alive, and C's memory has no such owner.
            body = PyBytes_FromStringAndSize(<const char *>answer.body, answer.size)
        except BaseException:
            omq_answer_release(answer)
            raise
        self._answer = answer
        self._rows = answer.rows
        self.last_offset = answer.last_offset
        self.max_decompressed_bytes = max_decompressed_bytes
        self.body = body
        return 0

    cdef const uint8_t *_bytes(self) noexcept:
        # None before __init__: then there is no row either, and nothing is read.
        if self.body is None:
            return NULL
        return <const uint8_t *>PyBytes_AS_STRING(self.body)

    cdef object _slice(self, uint32_t start, uint32_t size):
        # A view of the same bytes, narrowed as a subscript would do it, but without a slice
        # object and its two numbers, which took a fifth of reading body, tags and keys.
        cdef object part
        if IS_FREE_THREADED:
            # A view of the bytes, not of one view for all: views count those made of them, and up
            # to CPython 3.14 without an atomic.
            part = PyMemoryView_FromObject(self.body)
        else:
            if self._view is None:
                self._view = PyMemoryView_FromObject(self.body)
            part = PyMemoryView_FromObject(self._view)
        cdef Py_buffer *bounds = PyMemoryView_GET_BUFFER(part)
        bounds.buf = <char *>bounds.buf + start
        bounds.len = bounds.shape[0] = size
        return part

    @property
    def offsets(self):
        return self.columns("offsets")["offsets"]

    @property
    def body_sizes(self):
        return self.columns("body_sizes")["body_sizes"]

    cdef void _read_offsets(self, int64_t *offsets) noexcept:
        cdef void *targets[omq.OMQ_COLUMN_END]
        cdef size_t number
        for number in range(omq.OMQ_COLUMN_END):
            targets[number] = NULL
        targets[<size_t>omq.OMQ_COLUMN_OFFSETS] = offsets
        omq.omq_message_read_columns(self._bytes(), &self._rows, targets)

    def offset_at(self, row):
        return omq.omq_message_offset(self._bytes(), &self._rows, row_of(self, row))

    def columns(self, *names):
        cdef void *targets[omq.OMQ_COLUMN_END]
        cdef dict found = {}
        cdef size_t number
        for number in range(omq.OMQ_COLUMN_END):
            targets[number] = NULL
        for name in names:
            known = _COLUMN_NUMBERS.get(name)
            if known is None:
                raise _status.unknown_column(name)
            number = <Py_ssize_t>known
            found[name] = _column(self._rows.count, _COLUMN_FORMATS[number], targets + number)
        omq.omq_message_read_columns(self._bytes(), &self._rows, targets)
        return found

    def property_columns(self, str name not None):
        cdef bytes encoded = name.encode()
        cdef omq.omq_text wanted
        cdef void *positions
        cdef void *sizes
        found = (
            _column(self._rows.count, c"I", &positions), _column(self._rows.count, c"I", &sizes)
        )
        wanted.bytes = <const uint8_t *>PyBytes_AS_STRING(encoded)
        wanted.size = PyBytes_GET_SIZE(encoded)
        omq.omq_message_find_property(
            self._bytes(), &self._rows, &wanted, <uint32_t *>positions, <uint32_t *>sizes
        )
        return found

    def property_entries(self):
        cdef void *starts
        cdef void *positions
        cdef void *name_sizes
        cdef void *value_sizes
        cdef size_t room = omq.omq_message_count_properties(self._bytes(), &self._rows)
        found = (
            _column(self._rows.count + 1, c"i", &starts), _column(room, c"I", &positions),
            _column(room, c"I", &name_sizes), _column(room, c"I", &value_sizes),
        )
        cdef size_t count = omq.omq_message_list_properties(
            self._bytes(), &self._rows, <int32_t *>starts, <uint32_t *>positions,
            <uint32_t *>name_sizes, <uint32_t *>value_sizes,
        )
        if count == room:  # no name occurs twice in a message: the usual case
            return found
        return found[0], found[1][:count], found[2][:count], found[3][:count]

    def gather(self, positions, sizes, bint is_text=False):
        cdef Py_buffer views[2]
        get_column(positions, &views[0], b"IiLl", sizeof(uint32_t), "positions")
        try:
            get_column(sizes, &views[1], b"IiLl", sizeof(uint32_t), "sizes")
            try:
                return _gathered(self, &views[0], &views[1], is_text)
            finally:
                PyBuffer_Release(&views[1])
        finally:
            PyBuffer_Release(&views[0])

    def views(self, type kind not None, first, count):
        if first < 0 or count < 0 or first + count > self._rows.count:
            raise IndexError(f"messages {first}..{first + count - 1} of {self._rows.count}")
        return self._views(kind, first, count)

    cdef object _views(self, type kind, uint32_t first, uint32_t count):
        if not PyType_IsSubtype(kind, MessageView):
            raise TypeError(f"views: expected a class of MessageViews, got {kind.__name__}")
        cdef _Views views = _Views.__new__(_Views)
        views._index = self
        views._kind = kind
        views._next = first
        views._end = first + count
        return views


cdef size_t row_of(MessageIndex index, object row) except? 0:
    cdef int64_t number = clamped(row)
    if number < 0 or <size_t>number >= index._rows.count:
        raise IndexError(f"message {row} of {index._rows.count}")
    return <size_t>number


cdef object _gathered(
    MessageIndex index, Py_buffer *positions, Py_buffer *sizes, bint is_text
):
    cdef size_t count = positions.shape[0]
    cdef const uint32_t *where = <const uint32_t *>positions.buf
    cdef size_t size = 0 if index.body is None else PyBytes_GET_SIZE(index.body)
    cdef void *memory
    if <size_t>sizes.shape[0] != count:
        raise ValueError(f"gather: {count} positions, {sizes.shape[0]} sizes")
    starts = _column(count + 1, c"i", &memory)
    cdef int32_t *begins = <int32_t *>memory
    cdef omq.omq_status status = omq.omq_gather_measure(
        size, where, <const uint32_t *>sizes.buf, count, begins
    )
    if status != omq.OMQ_OK:
        raise failure(status, f"gather of {count} pieces")
    cdef bytes pieces = PyBytes_FromStringAndSize(NULL, begins[count])
    cdef uint8_t *into = <uint8_t *>PyBytes_AS_STRING(pieces)
    cdef const uint8_t *body = index._bytes()
    cdef size_t wrong
    if count < GIL_RELEASE_MIN:
        wrong = omq.omq_gather_copy(body, where, begins, count, is_text, into)
    else:
        with nogil:
            wrong = omq.omq_gather_copy(body, where, begins, count, is_text, into)
    if wrong < count:
        try:
            pieces[begins[wrong] : begins[wrong + 1]].decode()
        except UnicodeDecodeError as error:
            raise _status.piece_not_text(wrong, error) from None
    return starts, pieces


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class _Views:
    # An iterator of views.
    cdef MessageIndex _index
    cdef type _kind
    cdef uint32_t _next
    cdef uint32_t _end

    def __iter__(self):
        return self

    def __next__(self):
        cdef uint32_t row
        cdef bint is_over
        with cython.critical_section(self):  # no two threads may take one row, or step over the end
            row = self._next
            is_over = row == self._end
            self._next = row + (not is_over)
        if is_over:
            raise StopIteration
        cdef MessageView view = <MessageView>bare_instance(self._kind, ())
        view._index = self._index
        view._row = row
        return view


@cython.no_gc
cdef class MessageView:
    """One message of an index; see core/contract/."""

    cdef MessageIndex _index  # None in one that __new__ alone has made
    cdef uint32_t _row
    cdef int _is_text  # its properties are known to be UTF-8; read and set by any thread
    cdef bytes _decompressed  # the body, once it was asked for
    cdef dict _properties  # all of them, once they were asked for
    cdef _PropertyLayout _layout  # with `_is_text`, if one is known that its properties have
    cdef uint32_t _differing  # a bit for each value that is not the layout's

    def __init__(self, MessageIndex index not None, row):
        self._row = row_of(index, row)
        self._index = index
        self._is_text = 0
        self._layout = None
        self._decompressed = None
        self._properties = None

    cdef const uint8_t *_locate(self, omq.omq_message_parts *parts) except NULL:
        if self._index is None:
            raise _errors.StateError("a MessageView without its index")
        cdef const uint8_t *body = self._index._bytes()
        omq.omq_message_locate(body, &self._index._rows, self._row, parts)
        return body

    cdef const uint8_t *_text(self, omq.omq_message_parts *parts) except NULL:
        """Return the properties' text, checked once to be UTF-8; `parts` has its size."""
        cdef const uint8_t *text = self._locate(parts) + parts.property_at
        cdef _PropertyLayout layout
        cdef uint32_t differing = 0
        if not omq_flag(&self._is_text):
            layout = layout_of(text, parts.property_size, &differing)
            self._layout, self._differing = layout, differing
            if layout is None and not omq.omq_is_utf8(text, parts.property_size):
                try:
                    text[: parts.property_size].decode()
                except UnicodeDecodeError as error:
                    raise _status.not_text(error) from None
            omq_set_flag(&self._is_text)
        return text

    cdef object _property(self, const char *name, size_t size):
        cdef omq.omq_message_parts parts
        cdef const uint8_t *text = self._text(&parts)
        cdef omq.omq_text wanted
        cdef omq.omq_text value
        cdef Py_ssize_t entry
        if self._layout is not None:
            entry = self._layout.entry_of(name, size)
            return None if entry < 0 else self._layout.value(text, self._differing, entry)
        wanted.bytes = <const uint8_t *>name
        wanted.size = size
        if not omq.omq_property_find(text, parts.property_size, &wanted, &value):
            return None
        return PyUnicode_DecodeUTF8(<const char *>value.bytes, value.size, NULL)

    cdef int _read(self, omq.omq_message *message) except -1:
        if self._index is None:
            raise _errors.StateError("a MessageView without its index")
        omq.omq_message_read(self._index._bytes(), &self._index._rows, self._row, message)
        return 0

    @property
    def index(self):
        return self._index

    @property
    def body(self):
        cdef omq.omq_message_parts parts
        self._locate(&parts)
        if not parts.is_compressed:
            return self._index._slice(parts.body_at, parts.body_size)
        return memoryview(self._whole_body())

    cdef bytes _whole_body(self):
        cdef bytes whole
        with cython.critical_section(self):
            whole = self._decompressed
        if whole is None:
            whole = _compression.decompress(
                bytes(self.stored_body), self.sys_flag, self._index.max_decompressed_bytes
            )
            with cython.critical_section(self):
                if self._decompressed is None:  # else another thread was quicker
                    self._decompressed = whole
                whole = self._decompressed
        return whole

    @property
    def stored_body(self):
        cdef omq.omq_message_parts parts
        self._locate(&parts)
        return self._index._slice(parts.body_at, parts.body_size)

    @property
    @cython.critical_section
    def properties(self):
        cdef omq.omq_message_parts parts
        cdef const uint8_t *text
        cdef omq.omq_property found
        cdef size_t at = 0
        cdef dict properties
        if self._properties is None:
            text = self._text(&parts)
            if self._layout is not None:
                self._properties = self._layout.all_of(text, self._differing)
                return self._properties
            properties = {}
            while omq.omq_property_next(text, parts.property_size, &at, &found):
                properties[property_name(&found.name)] = PyUnicode_DecodeUTF8(
                    <const char *>found.value.bytes, found.value.size, NULL
                )
            self._properties = properties
        return self._properties

    def get_property(self, str name not None):
        cdef Py_ssize_t size
        cdef const char *encoded = PyUnicode_AsUTF8AndSize(name, &size)
        return self._property(encoded, size)

    @property
    def tags(self):
        return self._property(b"TAGS", 4)

    @property
    def keys(self):
        words = self._property(b"KEYS", 4)
        if words is None:
            return []
        # Mostly there is one key, and a split starts with room for a dozen.
        if not words or " " in words:
            return [word for word in (<str>words).split(" ") if word]
        return [words]

    @property
    def sharding_key(self):
        return self._property(b"__SHARDINGKEY", 13)

    @property
    def queue_offset(self):
        if self._index is None:
            raise _errors.StateError("a MessageView without its index")
        return omq.omq_message_offset(self._index._bytes(), &self._index._rows, self._row)

    @property
    def physical_offset(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.physical_offset

    @property
    def queue_id(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.queue_id

    @property
    def flag(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.flag

    @property
    def sys_flag(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.sys_flag

    @property
    def born_timestamp_ms(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.born_ms

    @property
    def store_timestamp_ms(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.stored_ms

    @property
    def reconsume_times(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.reconsume_times

    @property
    def prepared_transaction_offset(self):
        cdef omq.omq_message message
        self._read(&message)
        return message.prepared_offset

    @property
    def born_host_bytes(self):
        cdef omq.omq_message message
        self._read(&message)
        return (self._index._bytes() + message.born_host_at)[: message.born_host_size]

    @property
    def store_host_bytes(self):
        cdef omq.omq_message message
        self._read(&message)
        return (self._index._bytes() + message.store_host_at)[: message.store_host_size]


cdef dict _COLUMN_NUMBERS = {name: number for name, (number, _) in _status.COLUMNS.items()}
cdef char[<size_t>omq.OMQ_COLUMN_END] _COLUMN_FORMATS
for _number, _format in _status.COLUMNS.values():
    _COLUMN_FORMATS[<size_t>_number] = <char>ord(_format)


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class _Column:
    # The owner of a column's memory, which lives as long as a memoryview of it. Not an array.array:
    # columns are read-only.
    cdef void *_values  # owned; freed in __dealloc__
    cdef char _format[2]
    cdef Py_ssize_t _shape[1]
    cdef Py_ssize_t _strides[1]

    def __dealloc__(self):
        PyMem_Free(self._values)

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


cdef object _column(size_t rows, char format, void **values):
    """Return a column without values, and write where they go."""
    cdef _Column column = _Column.__new__(_Column)
    column._format[0] = format
    column._format[1] = 0
    column._shape[0] = rows
    column._strides[0] = sizeof(int64_t) if column._format[0] == c"q" else sizeof(uint32_t)
    column._values = values[0] = allocate(rows, column._strides[0])
    return PyMemoryView_FromObject(column)


cdef int _index(
    MessageIndex index, bytes held, tuple tags, bint check_crc, const omq.omq_pulled *pulled
) except -1:
    cdef const uint8_t *body = <const uint8_t *>PyBytes_AS_STRING(held)
    cdef size_t size = PyBytes_GET_SIZE(held)
    cdef size_t tag_count = len(tags)
    cdef omq.omq_text *wanted = NULL
    cdef omq.omq_message_fault fault
    cdef omq.omq_status status
    cdef omq.bool has_inner
    cdef size_t room = omq.omq_message_count(body, size, &has_inner)
    cdef size_t i
    try:
        index._rows.positions = <uint32_t *>allocate(room, sizeof(uint32_t))
        index._rows.body_sizes = <uint32_t *>allocate(room, sizeof(uint32_t))
        if has_inner:
            index._rows.outers = <uint32_t *>allocate(room, sizeof(uint32_t))
            index._rows.numbers = <uint32_t *>allocate(room, sizeof(uint32_t))
        if tag_count > 0:
            wanted = <omq.omq_text *>allocate(tag_count, sizeof(omq.omq_text))
        for i in range(tag_count):
            if not isinstance(tags[i], bytes):
                raise TypeError("tags: expected a sequence of bytes objects")
            wanted[i].bytes = <const uint8_t *>PyBytes_AS_STRING(tags[i])
            wanted[i].size = PyBytes_GET_SIZE(tags[i])
        if size < GIL_RELEASE_MIN * 64:  # bytes: a record is read in the time that 64 bytes take
            status = omq.omq_message_index(
                body, size, wanted, tag_count, check_crc, pulled, &index._rows, &index.last_offset,
                &fault,
            )
        else:
            with nogil:
                status = omq.omq_message_index(
                    body, size, wanted, tag_count, check_crc, pulled, &index._rows,
                    &index.last_offset, &fault,
                )
        if status == omq.OMQ_MALFORMED:
            raise _status.malformed(fault.fault, fault.record, fault.position)
        if status != omq.OMQ_OK:
            raise failure(status, f"index of {size} bytes")
    except BaseException:
        index._rows.count = 0  # no row may be read; __dealloc__ frees the arrays
        raise
    if index._rows.count < room:
        index._rows.positions = shrunk(index._rows.positions, index._rows.count)
        index._rows.body_sizes = shrunk(index._rows.body_sizes, index._rows.count)
        index._rows.outers = shrunk(index._rows.outers, index._rows.count)
        index._rows.numbers = shrunk(index._rows.numbers, index._rows.count)
    return 0


cdef uint32_t *shrunk(uint32_t *column, size_t rows) noexcept:
    """Return the column in no more memory than its rows need; unchanged if realloc fails."""
    cdef uint32_t *smaller = NULL
    if column is not NULL:
        smaller = <uint32_t *>PyMem_Realloc(column, rows * sizeof(uint32_t) if rows else 1)
    return column if smaller is NULL else smaller


@cython.no_gc
cdef class MessageRun:
    """Neighbouring messages of one index, or of several; see core/contract/."""

    # Most runs are of one index, and then there is no list.
    cdef MessageIndex _index
    cdef uint32_t _first
    cdef Py_ssize_t _length
    cdef list _segments  # (index, first, count); None if all is in the three above

    def __init__(self, segments):
        cdef list checked = []
        cdef Py_ssize_t length = 0
        for index, first, count in segments:
            if not isinstance(index, MessageIndex):
                raise TypeError(f"a segment of a {type(index).__name__}: expected a MessageIndex")
            if first < 0 or count < 1 or first + count > (<MessageIndex>index)._rows.count:
                raise IndexError(f"messages {first}..{first + count - 1} of {len(index)}")
            checked.append((index, first, count))
            length += count
        self._length = length
        if len(checked) == 1:
            self._index, self._first = checked[0][0], checked[0][1]
            self._segments = None
        else:
            self._index = None
            self._segments = checked

    def __len__(self):
        return self._length

    @property
    def segments(self):
        if self._index is not None:
            return [(self._index, self._first, self._length)]
        return self._segments if self._segments is not None else []

    @property
    def first_offset(self):
        return self._offset_at(0)

    @property
    def last_offset(self):
        return self._offset_at(self._length - 1)

    cdef object _offset_at(self, Py_ssize_t position):
        cdef size_t row
        cdef MessageIndex index = self._locate(position, &row)
        return omq.omq_message_offset(index._bytes(), &index._rows, row)

    cdef MessageIndex _locate(self, Py_ssize_t position, size_t *row):
        """Return the index that a message lies in, and write its row there."""
        cdef Py_ssize_t left = position
        cdef Py_ssize_t count
        if 0 <= position < self._length:
            if self._index is not None:
                row[0] = self._first + position
                return self._index
            for segment in self._segments:
                count = (<tuple>segment)[2]
                if left < count:
                    row[0] = <Py_ssize_t>(<tuple>segment)[1] + left
                    return <MessageIndex>(<tuple>segment)[0]
                left -= count
        raise IndexError(f"message {position} of {self._length}")

    def offsets(self):
        return [
            index.offset_at(row)
            for index, first, count in self.segments
            for row in range(first, first + count)
        ]

    def cut(self, kind, Py_ssize_t size):
        if not (PyType_Check(kind) and issubclass(kind, MessageRun)):
            raise TypeError(f"cut: expected a class of MessageRuns, got {kind!r}")
        if size < 1:
            raise ValueError(f"cut: a size of {size}: expected 1 or more")
        cdef _Parts parts = _Parts.__new__(_Parts)
        parts._kind = kind
        parts._size = size
        if self._index is not None:
            parts._index = self._index
            parts._next = self._first
            parts._left = self._length
        else:
            parts._segments = self.segments
        return parts

    def views(self, type kind not None):
        if self._index is not None:
            return self._index._views(kind, self._first, self._length)
        return _chain.from_iterable(
            [index.views(kind, first, count) for index, first, count in self.segments]
        )

    def view(self, type kind not None, Py_ssize_t position):
        if not issubclass(kind, MessageView):
            raise TypeError(f"view: expected a class of MessageViews, got {kind.__name__}")
        cdef size_t row
        cdef MessageIndex index = self._locate(position, &row)
        cdef MessageView view = <MessageView>bare_instance(kind, ())
        view._index = index
        view._row = row
        return view


@cython.final
@cython.no_gc
cdef class _Parts:
    # An iterator of runs.
    cdef object _kind  # a class, perhaps with a metaclass
    cdef Py_ssize_t _size
    # What is left of the current segment; then the segments that follow.
    cdef MessageIndex _index
    cdef uint32_t _next
    cdef Py_ssize_t _left
    cdef list _segments
    cdef Py_ssize_t _segments_taken

    def __iter__(self):
        return self

    def __next__(self):
        cdef MessageIndex index
        cdef uint32_t first
        cdef Py_ssize_t length
        with cython.critical_section(self):  # each part goes to one thread
            if self._left < self._size and not self._is_last():
                return self._gathered()
            index = self._index
            first = self._next
            length = min(self._left, self._size)
            self._next += length
            self._left -= length
        if length == 0:
            raise StopIteration
        cdef MessageRun run = <MessageRun>bare_instance(<type>self._kind, ())
        run._index = index
        run._first = first
        run._length = length
        return run

    cdef bint _is_last(self):
        return self._segments is None or self._segments_taken == len(self._segments)

    cdef object _gathered(self):
        """Return a run that may need more than what is left of the current segment."""
        cdef list segments = []
        cdef Py_ssize_t held = 0
        cdef Py_ssize_t taken
        while True:
            if self._left > 0:
                taken = min(self._left, self._size - held)
                segments.append((self._index, self._next, taken))
                self._next += taken
                self._left -= taken
                held += taken
            if held == self._size or self._is_last():
                break
            self._index, self._next, self._left = self._segments[self._segments_taken]
            self._segments_taken += 1
        if not segments:
            raise StopIteration
        cdef MessageRun run = <MessageRun>bare_instance(<type>self._kind, ())
        run._length = held
        if len(segments) == 1:
            run._index, run._first = segments[0][0], segments[0][1]
        else:
            run._segments = segments
        return run


def java_hash(str text not None):
    cdef omq.omq_text found
    cdef Py_ssize_t size
    found.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
    found.size = size
    return omq.omq_java_hash(&found)
