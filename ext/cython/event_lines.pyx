cdef extern from "text_buffer.h" nogil:
    ctypedef struct omq_text_buffer:
        uint8_t *bytes
        size_t size
        omq.bool was_short
    void omq_buffer_add(omq_text_buffer *buffer, const uint8_t *bytes, size_t size)
    void omq_buffer_add_decimal(omq_text_buffer *buffer, int64_t number)
    void omq_buffer_add_json(omq_text_buffer *buffer, const uint8_t *text, size_t size)
    omq.bool omq_buffer_cut(omq_text_buffer *buffer, size_t size)
    void omq_buffer_clear(omq_text_buffer *buffer, size_t kept)


cdef enum:
    KEPT_LINES_BYTES = 1 << 20  # of a buffer that was written; more is freed


cdef inline void add_text(omq_text_buffer *buffer, const char *text) noexcept:
    omq_buffer_add(buffer, <const uint8_t *>text, strlen(text))


cdef inline void add_object(omq_text_buffer *buffer, bytes text) noexcept:
    omq_buffer_add(buffer, <const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


@cython.final
cdef class EventLines:
    """Lines of a history that wait for who writes them; see core/contract/."""

    cdef bytes _begin  # of each line, up to its number
    cdef clockid_t _clock_id
    cdef size_t _most_bytes
    cdef object _wake
    # Guarded by the GIL, and without one by the critical section of this object.
    cdef omq_text_buffer _text
    cdef int64_t _number  # of the next line
    cdef bint _is_woken
    cdef bint _is_closed

    def __init__(self, bytes begin not None, clock_id, size_t most_bytes, wake):
        self._begin = begin
        self._clock_id = clock_id
        self._most_bytes = most_bytes
        self._wake = wake

    def __dealloc__(self):
        omq_buffer_clear(&self._text, 0)

    @property
    def waiting_bytes(self):
        with cython.critical_section(self):
            return self._text.size

    def add(self, bytes members not None):
        cdef bint is_added
        cdef size_t begun
        with cython.critical_section(self):
            if self._is_closed:
                return True
            begun = self._text.size
            self._begin_line()
            add_object(&self._text, members)
            is_added = self._end_line(begun)
            self._number += not is_added  # the gap says that a line is missing
        if is_added:
            self._wake_writer()
        return is_added

    def add_start(self, bytes head not None, context, int64_t lane=0):
        return self._add_start(head, run_of_call(context), context.attempt, lane)

    def add_end(self, bytes head not None, context, bytes detail not None):
        return self._add_end(head, run_of_call(context), detail)

    cdef bint _add_start(
        self, bytes head, MessageRun messages, int64_t attempt, int64_t lane
    ) except -1:
        cdef bint is_added
        cdef size_t begun
        with cython.critical_section(self):
            if self._is_closed:
                return True
            begun = self._text.size
            if not self._begin_call(b'"type":"START",', head, messages):
                return False
            add_text(&self._text, b',"attempt":')
            omq_buffer_add_decimal(&self._text, attempt)
            if lane:
                add_text(&self._text, b',"lane":')
                omq_buffer_add_decimal(&self._text, lane)
            is_added = self._end_line(begun)
        if is_added:
            self._wake_writer()
        return is_added

    cdef bint _add_end(self, bytes head, MessageRun messages, bytes detail) except -1:
        cdef bint is_added
        cdef size_t begun
        with cython.critical_section(self):
            if self._is_closed:
                return True
            begun = self._text.size
            if not self._begin_call(b'"type":"END",', head, messages):
                return False
            add_text(&self._text, b',"done":')
            omq_buffer_add_decimal(&self._text, messages._length)
            add_text(&self._text, b',"detail":"')
            add_object(&self._text, detail)
            add_text(&self._text, b'"')
            is_added = self._end_line(begun)
        if is_added:
            self._wake_writer()
        return is_added

    cdef bint _begin_call(self, const char *kind, bytes head, MessageRun messages) except -1:
        """Begin the line of a call; False: the properties of a message are no text."""
        cdef size_t begun = self._text.size
        self._begin_line()
        add_text(&self._text, kind)
        add_object(&self._text, head)
        if add_messages(&self._text, messages):
            return True
        omq_buffer_cut(&self._text, begun)
        return False

    cdef void _begin_line(self) noexcept:
        cdef timespec now
        clock_gettime(self._clock_id, &now)
        add_object(&self._text, self._begin)
        omq_buffer_add_decimal(&self._text, self._number)
        add_text(&self._text, b',"t":')
        omq_buffer_add_decimal(
            &self._text, <int64_t>now.tv_sec * 1000000000 + <int64_t>now.tv_nsec
        )
        add_text(&self._text, b",")

    cdef bint _end_line(self, size_t begun) noexcept:
        """Keep the line that has begun there; False: there is no room for it."""
        add_text(&self._text, b"}\n")
        cdef size_t end = self._text.size
        if omq_buffer_cut(&self._text, end) or (begun and end > self._most_bytes):
            omq_buffer_cut(&self._text, begun)
            return False
        self._number += 1
        return True

    cdef int _wake_writer(self) except -1:
        cdef bint wakes
        with cython.critical_section(self):
            wakes = not self._is_woken
            self._is_woken = True
        if not wakes:
            return 0
        cdef bint is_woken = False
        try:
            is_woken = self._wake()
        finally:
            if not is_woken:  # the next line tries it again
                with cython.critical_section(self):
                    self._is_woken = False
        return 0

    @cython.critical_section
    def take(self):
        cdef bytes lines = PyBytes_FromStringAndSize(<const char *>self._text.bytes, self._text.size)
        omq_buffer_clear(&self._text, KEPT_LINES_BYTES)
        self._is_woken = False
        return lines

    @cython.critical_section
    def close(self):
        self._is_closed = True
        omq_buffer_clear(&self._text, 0)


cdef MessageRun run_of_call(object context):
    messages = context.messages
    if not isinstance(messages, MessageRun):
        raise TypeError(f"messages of a {type(messages).__name__}: expected a MessageRun")
    return messages


cdef bint add_messages(omq_text_buffer *text, MessageRun run) except -1:
    """Add the offsets and keys of messages; False: the properties of one are no text."""
    add_text(text, b',"offs":[')
    add_offsets(text, run)
    add_text(text, b'],"keys":[')
    if not add_keys(text, run):
        return False
    add_text(text, b"]")
    return True


cdef int add_offsets(omq_text_buffer *text, MessageRun run) except -1:
    cdef Py_ssize_t i
    cdef size_t row
    cdef MessageIndex index
    for i in range(run._length):
        index = run._locate(i, &row)
        if i:
            add_text(text, b",")
        omq_buffer_add_decimal(text, omq.omq_message_offset(index._bytes(), &index._rows, row))
    return 0


cdef bint add_keys(omq_text_buffer *text, MessageRun run) except -1:
    cdef Py_ssize_t i
    cdef size_t row
    cdef MessageIndex index
    cdef omq.omq_message_parts parts
    cdef omq.omq_text key
    cdef const uint8_t *properties
    for i in range(run._length):
        index = run._locate(i, &row)
        omq.omq_message_locate(index._bytes(), &index._rows, row, &parts)
        properties = index._bytes() + parts.property_at
        if not omq.omq_is_utf8(properties, parts.property_size):
            return False
        if i:
            add_text(text, b",")
        if omq.omq_property_find(properties, parts.property_size, &SHARDING_KEY, &key):
            omq_buffer_add_json(text, key.bytes, key.size)
        else:
            add_text(text, b"null")
    return True
