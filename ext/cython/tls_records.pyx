cdef enum:
    TLS_PLAIN_BYTES = 16384  # most of a record, deciphered (RFC 8446, 5.1)

ctypedef uint8_t *(*omq_room_of)(void *reader, size_t size) noexcept
ctypedef void (*omq_add_to)(void *reader, size_t size) noexcept


@cython.final
@cython.internal
cdef class TlsRecords:
    """Deciphers the records of a session, for whoever reads its socket; one thread at a time."""

    cdef object _read
    cdef object _incoming
    cdef object _wants_more  # classes of exceptions
    cdef object _ended
    cdef object failed
    cdef object lock
    cdef size_t opened  # bytes, since the reader has set it to 0

    def __cinit__(self, tls):
        self._read, self._incoming = tls.read, tls.incoming
        self._wants_more, self._ended, self.failed = tls.wants_more, tls.ended, tls.failed
        self.lock = tls.lock

    cdef bint open(
        self,
        const uint8_t *records,
        size_t size,
        size_t count,
        omq_room_of room_of,
        omq_add_to add_to,
        void *reader,
    ) except -1:
        """Decipher whole records into the reader's room; False: the peer has ended the session.

        An exception of a signal handler may come here, and what was in a record is lost then.
        """
        cdef size_t i
        cdef Py_ssize_t got
        cdef uint8_t *room
        self._incoming.write(PyMemoryView_FromMemory(<char *>records, size, PyBUF_READ))
        for i in range(count):
            room = room_of(reader, TLS_PLAIN_BYTES)
            if room is NULL:
                raise MemoryError("no memory for a record of TLS")
            try:
                got = self._read(
                    TLS_PLAIN_BYTES,
                    PyMemoryView_FromMemory(<char *>room, TLS_PLAIN_BYTES, PyBUF_WRITE),
                )
            except self._wants_more:
                continue  # a ticket for another session, or new keys
            except self._ended:
                return False
            if got == 0:
                return False
            add_to(reader, got)
            self.opened += got
        return True
