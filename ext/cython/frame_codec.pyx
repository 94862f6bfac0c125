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
