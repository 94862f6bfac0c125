# What ext/wire/proxy_message.h declares.
cdef extern from "proxy_message.h" nogil:
    ctypedef struct omq_proxy_message:
        omq.omq_text data
        omq.omq_text message_id
        omq.omq_text receipt_handle
        omq.omq_text body
        int64_t queue_offset
        int64_t born_ms
        int64_t stored_ms
        int32_t queue_id
        int32_t reconsume_times
        omq.bool is_zipped
    enum:
        OMQ_PROXY_PROPERTIES_MORE
    const char *omq_proxy_message_read(
        const uint8_t *data, size_t size, omq_proxy_message *message
    )
    size_t omq_proxy_properties(const omq_proxy_message *message, uint8_t *text)
    omq.bool omq_proxy_all_well(const uint8_t *data, size_t size)
    ctypedef struct omq_proxy_stored:
        omq.omq_text message_id
        omq.omq_text transaction_id
        omq.omq_text recall_handle
        int64_t offset
    size_t omq_proxy_stored_read(const uint8_t *data, size_t size, omq_proxy_stored *stored)
    size_t omq_proxy_stored_ids(const uint8_t *data, size_t size, uint8_t *text)


# What ext/wire/proxy_send.h declares.
cdef extern from "proxy_send.h" nogil:
    int64_t OMQ_PROXY_NUMBER_MOST
    ctypedef struct omq_proxy_head:
        omq.omq_text topic
        int64_t born_ms
        int64_t now_ms
        omq.bool is_zipped
    ctypedef struct omq_proxy_send:
        size_t size
        omq.bool is_keyed
    omq.bool omq_proxy_send_measure(
        const omq_proxy_head *head, const omq.omq_outgoing *message, omq_proxy_send *send
    )
    uint8_t *omq_proxy_send_write(const omq_proxy_send *send, uint8_t *at)
    omq.bool omq_proxy_batch_measure(
        const omq_proxy_head *head, omq.omq_text batch, size_t *size
    )
    void omq_proxy_batch_write(const omq_proxy_head *head, omq.omq_text batch, uint8_t *request)


cdef enum:
    SMALL_MESSAGE = 2048  # bytes of properties that are written on the stack


def read_proxy_message(bytes data not None, str topic not None):
    cdef omq_proxy_message message
    cdef uint8_t small[SMALL_MESSAGE]
    cdef uint8_t *text = small
    cdef size_t room = PyBytes_GET_SIZE(data) + OMQ_PROXY_PROPERTIES_MORE
    cdef const char *problem = omq_proxy_message_read(
        <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &message
    )
    if problem != NULL:
        raise _status.malformed_proxy_message(problem.decode())
    if message.data.bytes == NULL:
        return None
    if room > sizeof(small):
        text = <uint8_t *>allocate(room, 1)
    try:
        record = proxy_record(&message, text, topic)
    finally:
        if text != small:
            PyMem_Free(text)
    return (
        message.queue_id, message.queue_offset, decoded(&message.message_id),
        decoded(&message.receipt_handle), record,
    )


def all_acknowledged(bytes data not None):
    return omq_proxy_all_well(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def stored_by_proxy(bytes data not None):
    cdef omq_proxy_stored stored
    cdef const uint8_t *bytes_ = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef size_t size = PyBytes_GET_SIZE(data)
    cdef size_t count = omq_proxy_stored_read(bytes_, size, &stored)
    if count == 0:
        return None
    return (
        decoded(&stored.message_id) if count == 1 else joined_ids(bytes_, size), stored.offset,
        decoded(&stored.transaction_id), decoded(&stored.recall_handle),
    )


cdef str joined_ids(const uint8_t *data, size_t size):
    """Return the ids of the messages that an answer says are stored."""
    cdef uint8_t *text = <uint8_t *>allocate(size, 1)
    try:
        return PyUnicode_DecodeUTF8(<char *>text, omq_proxy_stored_ids(data, size, text), NULL)
    finally:
        PyMem_Free(text)


def encode_proxy_send(
    bytes topic not None, bytes body not None, str properties, *, int32_t flag, bint is_zipped,
    int64_t born_ms, int64_t now_ms,
):
    cdef omq_proxy_head head
    cdef omq_proxy_send send
    cdef omq.omq_outgoing outgoing
    cdef Py_ssize_t text_size
    cdef size_t size
    cdef bytes request
    if not (0 <= born_ms <= OMQ_PROXY_NUMBER_MOST and 0 <= now_ms <= OMQ_PROXY_NUMBER_MOST):
        raise failure(_status.OUT_OF_RANGE, f"send born at {born_ms} and encoded at {now_ms}")
    head.topic, head.is_zipped = text_of(topic), is_zipped
    head.born_ms, head.now_ms = born_ms, now_ms
    outgoing.body, outgoing.flag = text_of(body), flag
    if properties is None:
        if not omq_proxy_batch_measure(&head, outgoing.body, &size):
            return None
        request = PyBytes_FromStringAndSize(NULL, size)
        omq_proxy_batch_write(&head, outgoing.body, <uint8_t *>PyBytes_AS_STRING(request))
        return request, False
    outgoing.properties.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(properties, &text_size)
    outgoing.properties.size = text_size
    if not omq_proxy_send_measure(&head, &outgoing, &send):
        return None
    request = PyBytes_FromStringAndSize(NULL, send.size)
    omq_proxy_send_write(&send, <uint8_t *>PyBytes_AS_STRING(request))
    return request, bool(send.is_keyed)


cdef bytes proxy_record(const omq_proxy_message *message, uint8_t *text, str topic):
    """Write the record of a message; `text` has room for its properties."""
    cdef omq.omq_record_head head
    cdef omq.omq_outgoing outgoing
    cdef uint32_t[2] positions
    cdef uint8_t[8] no_host
    cdef Py_ssize_t topic_size
    memset(no_host, 0, sizeof(no_host))
    memset(&head, 0, sizeof(head))
    head.topic.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(topic, &topic_size)
    head.topic.size = topic_size
    head.born_host.bytes = head.store_host.bytes = no_host
    head.born_host.size = head.store_host.size = sizeof(no_host)
    head.born_ms, head.stored_ms = message.born_ms, message.stored_ms
    head.queue_id, head.reconsume_times = message.queue_id, message.reconsume_times
    head.sys_flag = 0
    if message.is_zipped:
        start = PyBytes_FromStringAndSize(
            <const char *>message.body.bytes, min(message.body.size, <size_t>4)
        )
        head.sys_flag = _compression.zipped_sys_flag(start)
    outgoing.body, outgoing.flag = message.body, 0
    outgoing.properties.bytes = text
    outgoing.properties.size = omq_proxy_properties(message, text)
    cdef size_t size = omq.omq_record_size(&head, outgoing.body.size, outgoing.properties.size)
    if size == 0:
        raise _status.malformed_proxy_message("it is too long for a record")
    record = PyBytes_FromStringAndSize(NULL, size)
    omq.omq_record_write(&head, &outgoing, <uint8_t *>PyBytes_AS_STRING(record))
    positions[0], positions[1] = 0, <uint32_t>size
    omq.omq_records_stamp(
        <uint8_t *>PyBytes_AS_STRING(record), positions, 1, message.queue_offset, 0
    )
    return record

