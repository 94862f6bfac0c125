cdef extern from "ordermq.h" nogil:
    enum:
        OMQ_REQUEST_GAPS_MOST


@cython.final
@cython.no_gc
cdef class RequestTemplate:
    """A request of which the offset and the request id change; see core/contract/."""

    cdef omq.omq_request_template *_template  # owned; freed in __dealloc__

    def __cinit__(self, tuple texts not None, tuple gaps not None, is_binary, signing):
        cdef omq.omq_text places[OMQ_REQUEST_GAPS_MOST + 1]
        cdef omq.omq_request_plan wanted
        cdef bytes kinds = bytes(gaps)
        cdef Py_ssize_t i
        if len(texts) != len(gaps) + 1 or len(gaps) > OMQ_REQUEST_GAPS_MOST:
            raise _status.texts_of_request(len(texts), len(gaps), OMQ_REQUEST_GAPS_MOST)
        for i in range(len(texts)):
            places[i] = text_of(<bytes?>texts[i])
        wanted.texts = places
        wanted.gaps = <const uint8_t *>PyBytes_AS_STRING(kinds)
        wanted.gap_count = len(gaps)
        wanted.is_binary = is_binary
        wanted.is_signed = signing is not None
        if wanted.is_signed:
            key, before, after = signing
            wanted.secret_key = text_of(<bytes?>key)
            wanted.signed_before = text_of(<bytes?>before)
            wanted.signed_after = text_of(<bytes?>after)
        self._template = omq.omq_request_template_new(&wanted)
        if self._template is NULL:
            raise MemoryError("no memory for a request template")

    def __dealloc__(self):
        omq.omq_request_template_free(self._template)

    def frame(self, offset, request_id):
        cdef size_t most = omq.omq_request_template_most(self._template)
        cdef uint8_t *frame = <uint8_t *>allocate(most, 1)
        cdef size_t size
        try:
            size = omq.omq_request_template_write(self._template, offset, request_id, frame)
            return PyBytes_FromStringAndSize(<const char *>frame, size)
        finally:
            PyMem_Free(frame)
