cdef enum:
    TRACE_MOST_BYTES = 128000  # of one trace message, about; these two are in contract/, too
    TRACE_MOST_KEY_BYTES = 16000


cdef struct TracedMessage:
    omq.omq_text unique_id
    omq.omq_text keys  # size 0: none
    omq.omq_text region  # size 0: none
    int64_t retry_times
    bint is_on


cdef struct EndedCall:
    int64_t begun_in  # number of the trace message with the record of its begin
    int64_t cost_ms
    int64_t code
    bint is_success


cdef inline omq.omq_text constant_text(const char *text) noexcept:
    cdef omq.omq_text made
    made.bytes = <const uint8_t *>text
    made.size = strlen(text)
    return made


cdef omq.omq_text UNIQ_KEY = constant_text(b"UNIQ_KEY")
cdef omq.omq_text KEYS = constant_text(b"KEYS")
cdef omq.omq_text TAGS = constant_text(b"TAGS")
cdef omq.omq_text MSG_REGION = constant_text(b"MSG_REGION")
cdef omq.omq_text TRACE_ON = constant_text(b"TRACE_ON")


cdef inline bint is_text(const omq.omq_text *text, const omq.omq_text *other) noexcept:
    return text.size == other.size and memcmp(text.bytes, other.bytes, text.size) == 0


cdef bint are_plain_keys(const omq.omq_text *keys) noexcept:
    """Return whether words are separated by single blanks, of which no other kind is in them."""
    cdef size_t i
    cdef uint8_t character
    cdef uint8_t before = c" "
    for i in range(keys.size):
        character = keys.bytes[i]
        # The lead bytes of all blanks beyond ASCII, and of many characters that are none.
        if character < c" " or character == 0x7F or 0xC2 <= character <= 0xE3 and character in (
            0xC2, 0xE1, 0xE2, 0xE3
        ):
            return False
        if character == c" " and before == c" ":
            return False
        before = character
    return before != c" "


cdef bint find_traced(MessageRun run, TracedMessage *found) except -1:
    """Read what traces have of each message; False: of one, it has to be read otherwise."""
    cdef Py_ssize_t i
    cdef size_t row
    cdef size_t at
    cdef MessageIndex index
    cdef MessageIndex seen = None
    cdef omq.omq_message_parts parts
    cdef omq.omq_message message
    cdef omq.omq_property property
    cdef const uint8_t *text
    cdef omq.omq_text off = constant_text(b"false")
    for i in range(run._length):
        index = run._locate(i, &row)
        if index is not seen:
            if getattr(index, "attempts", None) is not None:
                return False
            seen = index
        omq.omq_message_locate(index._bytes(), &index._rows, row, &parts)
        omq.omq_message_read(index._bytes(), &index._rows, row, &message)
        text = index._bytes() + parts.property_at
        if not omq.omq_is_utf8(text, parts.property_size):
            return False
        found[i].unique_id.size = found[i].keys.size = found[i].region.size = 0
        found[i].retry_times = message.reconsume_times
        found[i].is_on = True
        at = 0
        while omq.omq_property_next(text, parts.property_size, &at, &property):
            if is_text(&property.name, &UNIQ_KEY):
                found[i].unique_id = property.value
            elif is_text(&property.name, &KEYS):
                found[i].keys = property.value
            elif is_text(&property.name, &MSG_REGION):
                found[i].region = property.value
            elif is_text(&property.name, &TRACE_ON):
                found[i].is_on = not is_text(&property.value, &off)
        if not found[i].unique_id.size or (
            found[i].keys.size and not are_plain_keys(&found[i].keys)
        ):
            return False
    return True


cdef inline void add_found(omq_text_buffer *buffer, const omq.omq_text *text) noexcept:
    omq_buffer_add(buffer, text.bytes, text.size)


cdef inline void add_or_null(omq_text_buffer *buffer, const omq.omq_text *text) noexcept:
    if text.size:
        add_found(buffer, text)
    else:
        add_text(buffer, b"null")


cdef inline int add_str(omq_text_buffer *buffer, object text) except -1:
    cdef Py_ssize_t size
    cdef const char *characters = PyUnicode_AsUTF8AndSize(text, &size)
    omq_buffer_add(buffer, <const uint8_t *>characters, size)
    return 0


cdef inline void end_field(omq_text_buffer *buffer) noexcept:
    add_text(buffer, b"\x01")


@cython.final
cdef class TraceRecords:
    """Records of traces that wait to be sent; see core/contract/."""

    cdef size_t _most
    cdef size_t _enough
    cdef object _on_enough
    cdef object _on_dropped
    # Guarded by the GIL, and without one by the critical section of this object.
    cdef omq_text_buffer _text  # of the trace message under way
    cdef omq_text_buffer _keys
    cdef size_t _text_end  # of both, behind the last whole record
    cdef size_t _keys_end
    cdef size_t _count
    cdef size_t _waiting  # records of all of them
    cdef int64_t _number  # of the trace message under way
    cdef object _full  # a deque of those before it
    cdef bint _is_hurried

    def __init__(self, size_t most, size_t enough, on_enough, on_dropped):
        self._most = most
        self._enough = enough
        self._on_enough = on_enough
        self._on_dropped = on_dropped
        self._full = _deque()

    def __dealloc__(self):
        omq_buffer_clear(&self._text, 0)
        omq_buffer_clear(&self._keys, 0)

    @property
    def waiting(self):
        with cython.critical_section(self):
            return self._waiting

    def add(self, str text not None, str message_id not None, keys):
        cdef size_t dropped = 0
        with cython.critical_section(self):
            if not self._has_room(1):
                dropped = 1
            else:
                add_str(&self._text, text)
                add_str(&self._keys, message_id)
                add_text(&self._keys, b" ")
                if keys is not None:
                    add_str(&self._keys, keys)
                    add_text(&self._keys, b" ")
                dropped = self._end_record()
        self._tell(dropped)

    def add_begun(self, MessageRun messages not None, bytes group not None, str request_id not None, int64_t at_ms):
        return self._add_begun(messages, group, request_id, at_ms)

    def add_ended(
        self, MessageRun messages not None, bytes group not None, str request_id not None,
        int64_t begun_in, int64_t cost_ms, bint is_success, int64_t code, int64_t at_ms,
    ):
        return self._add_ended(
            messages, group, request_id, begun_in, cost_ms, is_success, code, at_ms
        )

    cdef int64_t _add_begun(
        self, MessageRun run, bytes group, str request_id, int64_t at_ms
    ) except -2:
        return self._add_call(run, group, request_id, at_ms, NULL)

    cdef bint _add_ended(
        self, MessageRun run, bytes group, str request_id, int64_t begun_in, int64_t cost_ms,
        bint is_success, int64_t code, int64_t at_ms,
    ) except -1:
        cdef EndedCall ended
        ended.begun_in = begun_in
        ended.cost_ms = cost_ms
        ended.is_success = is_success
        ended.code = code
        return self._add_call(run, group, request_id, at_ms, &ended) >= 0

    cdef int64_t _add_call(
        self, MessageRun run, bytes group, str request_id, int64_t at_ms, const EndedCall *ended
    ) except -2:
        """Add a record per message; return the number of the trace message, or -1 for none.

        Args:
            ended: NULL: the call begins.
        """
        cdef TracedMessage few[SMALL]
        cdef TracedMessage *found = few
        cdef TracedMessage *message
        cdef Py_ssize_t i
        cdef size_t dropped = 0
        cdef int64_t number = -1
        if run._length > SMALL:
            found = <TracedMessage *>PyMem_Malloc(run._length * sizeof(TracedMessage))
            if found is NULL:
                return -1
        try:
            if not find_traced(run, found):
                return -1
            with cython.critical_section(self):
                number = self._number
                if not self._has_room(run._length):
                    dropped = run._length
                else:
                    for i in range(run._length):
                        message = &found[i]
                        if not message.is_on:
                            continue
                        if ended is NULL:
                            self._put_begun(message, group, request_id, at_ms)
                        else:
                            self._put_ended(message, group, request_id, at_ms, ended)
                        # The trace message in which the call begins has its keys already.
                        if ended is NULL or ended.begun_in != self._number:
                            self._add_keys(&message.unique_id, &message.keys)
                        dropped += self._end_record()
        finally:
            if found is not few:
                PyMem_Free(found)
        self._tell(dropped)
        return number

    cdef inline int _put_begun(
        self, const TracedMessage *message, bytes group, str request_id, int64_t at_ms
    ) except -1:
        add_text(&self._text, b"SubBefore\x01")
        omq_buffer_add_decimal(&self._text, at_ms)
        end_field(&self._text)
        if message.region.size:
            add_found(&self._text, &message.region)
        else:
            add_text(&self._text, b"DefaultRegion")
        end_field(&self._text)
        add_object(&self._text, group)
        end_field(&self._text)
        add_str(&self._text, request_id)
        end_field(&self._text)
        add_found(&self._text, &message.unique_id)
        end_field(&self._text)
        omq_buffer_add_decimal(&self._text, message.retry_times)
        end_field(&self._text)
        add_or_null(&self._text, &message.keys)
        add_text(&self._text, b"\x02")
        return 0

    cdef inline int _put_ended(
        self, const TracedMessage *message, bytes group, str request_id, int64_t at_ms,
        const EndedCall *ended,
    ) except -1:
        add_text(&self._text, b"SubAfter\x01")
        add_str(&self._text, request_id)
        end_field(&self._text)
        add_found(&self._text, &message.unique_id)
        end_field(&self._text)
        omq_buffer_add_decimal(&self._text, ended.cost_ms)
        add_text(&self._text, b"\x01true\x01" if ended.is_success else b"\x01false\x01")
        add_or_null(&self._text, &message.keys)
        end_field(&self._text)
        omq_buffer_add_decimal(&self._text, ended.code)
        end_field(&self._text)
        omq_buffer_add_decimal(&self._text, at_ms)
        end_field(&self._text)
        add_object(&self._text, group)
        add_text(&self._text, b"\x02")
        return 0

    def add_published(
        self, batch not None, receipts not None, bytes head not None, bytes host not None,
        bint is_success, int64_t now_ms,
    ):
        cdef PendingFields pending
        cdef Py_ssize_t count = 0
        cdef size_t dropped = 0
        for pending in batch:
            if pending.is_alone:
                return False
            count += len(pending.bodies)
        with cython.critical_section(self):
            if not self._has_room(count):
                dropped = count
            else:
                for pending, its_receipts in zip(batch, receipts):
                    for text, body, receipt in zip(
                        pending.properties, pending.bodies, its_receipts
                    ):
                        dropped += self._add_sent(
                            pending, text, len(body), receipt, head, host, is_success, now_ms
                        )
        self._tell(dropped)
        return True

    cdef size_t _add_sent(
        self, PendingFields pending, object text, Py_ssize_t body_size, object receipt, bytes head,
        bytes host, bint is_success, int64_t now_ms,
    ) except? 999999:
        cdef Py_ssize_t size
        cdef const uint8_t *properties = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
        cdef int64_t cost_ms = pending.spent_ns // 1000000
        cdef omq.omq_text tags
        cdef omq.omq_text keys
        cdef omq.omq_text unique_id
        cdef Py_ssize_t id_size
        message_id = receipt.message_id
        offset_message_id = receipt.offset_message_id
        unique_id.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(message_id, &id_size)
        unique_id.size = id_size
        if not omq.omq_property_find(properties, size, &TAGS, &tags):
            tags.size = 0
        if not omq.omq_property_find(properties, size, &KEYS, &keys):
            keys.size = 0
        add_text(&self._text, b"Pub\x01")
        omq_buffer_add_decimal(&self._text, now_ms - cost_ms)
        add_object(&self._text, head)
        add_found(&self._text, &unique_id)
        end_field(&self._text)
        add_or_null(&self._text, &tags)
        end_field(&self._text)
        add_or_null(&self._text, &keys)
        end_field(&self._text)
        add_object(&self._text, host)
        end_field(&self._text)
        omq_buffer_add_decimal(&self._text, body_size)
        end_field(&self._text)
        omq_buffer_add_decimal(&self._text, cost_ms)
        add_text(&self._text, b"\x010\x01")  # an ordinary message
        add_str(&self._text, offset_message_id)
        add_text(&self._text, b"\x01true\x02" if is_success else b"\x01false\x02")
        self._add_keys(&unique_id, &keys)
        return self._end_record()

    cdef inline bint _has_room(self, size_t count) noexcept:
        return self._waiting + count <= self._most

    cdef inline void _add_keys(
        self, const omq.omq_text *unique_id, const omq.omq_text *keys
    ) noexcept:
        add_found(&self._keys, unique_id)
        add_text(&self._keys, b" ")
        if keys.size:
            add_found(&self._keys, keys)
            add_text(&self._keys, b" ")

    cdef size_t _end_record(self) except? 999999:
        """Count a record that was added; return 1 if memory was short, and it is dropped."""
        cdef bint was_short = self._text.was_short or self._keys.was_short
        if was_short:  # of both, all is kept that other records have added
            omq_buffer_cut(&self._text, self._text_end)
            omq_buffer_cut(&self._keys, self._keys_end)
            return 1
        self._text_end = self._text.size
        self._keys_end = self._keys.size
        self._count += 1
        self._waiting += 1
        if self._text.size >= TRACE_MOST_BYTES or self._keys.size >= TRACE_MOST_KEY_BYTES:
            self._seal()
        return 0

    cdef int _seal(self) except -1:
        """End the trace message under way."""
        self._full.append((
            PyBytes_FromStringAndSize(<const char *>self._text.bytes, self._text.size),
            PyBytes_FromStringAndSize(<const char *>self._keys.bytes, self._keys.size),
            self._count,
        ))
        omq_buffer_clear(&self._text, 2 * TRACE_MOST_BYTES)
        omq_buffer_clear(&self._keys, 2 * TRACE_MOST_BYTES)
        self._text_end = self._keys_end = 0
        self._count = 0
        self._number += 1
        return 0

    cdef int _tell(self, size_t dropped) except -1:
        if self._waiting >= self._enough and not self._is_hurried:
            self._is_hurried = True
            self._on_enough()
        if dropped:
            self._on_dropped(dropped)
        return 0

    @cython.critical_section
    def take(self):
        self._is_hurried = False
        if self._count and not self._full:
            self._seal()
        if not self._full:
            return None
        taken = self._full.popleft()
        self._waiting -= <size_t>taken[2]
        return taken


@cython.final
cdef class TracedListener(_ListenerAround):
    """A listener whose calls are traced; see core/contract/."""

    cdef TraceRecords _records
    cdef bytes _group
    cdef object _one_id
    cdef object _wall_ms
    cdef object _success
    cdef object _other_success
    cdef int64_t _timeout_ns
    cdef object _on_begin
    cdef object _on_end

    def __init__(self, listener, rules):
        cdef int64_t timeout_ms = rules.timeout_ms
        # A cdef class takes None where it declares another: the first call would crash.
        if rules.records is None or rules.group is None:
            raise TypeError("a traced listener needs records and a group")
        self._set_listener(listener)
        self._records = rules.records
        self._group = rules.group
        self._one_id = rules.one_id
        self._wall_ms = rules.wall_ms
        self._success = rules.success
        self._other_success = rules.other_success
        self._timeout_ns = timeout_ms * 1000000
        self._on_begin = rules.on_begin
        self._on_end = rules.on_end

    cdef object _perform(self, messages, CallContext context):
        cdef int64_t at_ms = self._wall_ms()
        cdef str request_id = self._one_id()
        cdef int64_t number = -1
        cdef int64_t begun_ns
        cdef int64_t spent_ns
        if isinstance(messages, MessageRun):
            number = self._records._add_begun(messages, self._group, request_id, at_ms)
        if number < 0:
            self._on_begin(messages, request_id, at_ms)
        begun_ns = monotonic_ns()
        try:
            value = self._call_listener(messages, context)
        except BaseException as error:
            self._on_end(messages, context, None, error, monotonic_ns() - begun_ns, request_id)
            raise
        spent_ns = monotonic_ns() - begun_ns
        if (
            number >= 0
            and (value is self._success or value is self._other_success)
            and spent_ns < self._timeout_ns
            and context._ack is None
            and self._records._add_ended(
                messages, self._group, request_id, number,
                spent_ns // 1000000 // (<MessageRun>messages)._length, True, 0, self._wall_ms(),
            )
        ):
            return value
        return self._on_end(messages, context, value, None, spent_ns, request_id)
