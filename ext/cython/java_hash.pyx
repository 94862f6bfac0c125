def java_hash(str text not None):
    cdef omq.omq_text found
    cdef Py_ssize_t size
    found.bytes = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
    found.size = size
    return omq.omq_java_hash(&found)
