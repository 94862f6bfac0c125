def read_header(bytes header not None):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(header)
    cdef omq.omq_header found
    cdef omq.omq_property field
    cdef size_t position
    cdef size_t at = 0
    cdef omq.omq_header_fault fault = omq.omq_header_read(
        data, PyBytes_GET_SIZE(header), &found, &position
    )
    if fault != omq.OMQ_HEADER_OK:
        raise _status.malformed_header(fault, header, position)
    cdef dict fields = {}
    while omq.omq_header_next_field(&found, &at, &field):
        fields[decoded(&field.name)] = decoded(&field.value)
    return (
        found.code, found.language, found.version, found.opaque, found.flag,
        decoded(&found.remark), fields,
    )


cdef str decoded(const omq.omq_text *text):
    return PyUnicode_DecodeUTF8(<const char *>text.bytes, text.size, NULL)


cdef enum:
    MOST_VALUES = 8


@cython.final
@cython.no_gc
cdef class FrameTemplate:
    """A JSON header with gaps for values; see core/contract/."""

    cdef tuple _held
    cdef omq.omq_text _texts[MOST_VALUES + 1]
    cdef Py_ssize_t _count  # of the values

    def __cinit__(self, texts):
        cdef Py_ssize_t i
        self._held = tuple(texts)
        self._count = len(self._held) - 1
        if not 0 <= self._count <= MOST_VALUES:
            raise _status.texts_of_template(len(self._held), MOST_VALUES)
        for i in range(self._count + 1):
            self._texts[i] = text_of(<bytes?>self._held[i])

    def frame(self, tuple values not None, bytes body not None):
        cdef omq.omq_frame_value found[MOST_VALUES]
        cdef omq.omq_text text = text_of(body)
        cdef size_t size
        cdef Py_ssize_t length
        cdef Py_ssize_t i
        cdef object value
        cdef bytes frame
        if len(values) != self._count:
            raise _status.values_of_template(len(values), self._count)
        for i in range(self._count):
            value = values[i]
            if isinstance(value, str):
                # The string keeps its UTF-8.
                found[i].text.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(value, &length)
                found[i].text.size = length
            else:
                found[i].text.bytes = NULL
                found[i].number = value
        size = omq.omq_frame_size(self._texts, found, self._count, text.size)
        if size == 0:
            raise failure(_status.OUT_OF_RANGE, f"a frame with a body of {text.size} bytes")
        frame = PyBytes_FromStringAndSize(NULL, size)
        omq.omq_frame_write(
            self._texts, found, self._count, &text, <uint8_t *>PyBytes_AS_STRING(frame)
        )
        return frame
