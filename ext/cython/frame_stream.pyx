cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *descriptors, unsigned long count, int timeout_ms)
    enum:
        POLLIN

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int descriptor, void *buffer, size_t size, int flags)
    enum:
        MSG_DONTWAIT

cdef enum:
    RECEIVED_AT_ONCE = 65536
    FRAME_WORDS = 8  # bytes of the two lengths before a header


@cython.final
@cython.no_gc
cdef class FrameStream:
    """Bytes received from one socket, and the frames they make; see core/interface.py."""

    cdef uint8_t *_bytes  # owned; freed in __dealloc__
    cdef size_t _first  # of what no frame was dropped of
    cdef size_t _end
    cdef size_t _capacity
    cdef size_t _frame_size  # of the frame that `frame` returned last; 0: none since `drop`
    cdef size_t _max_frame_bytes
    cdef readonly bint is_broken

    def __cinit__(self, size_t max_frame_bytes):
        self._max_frame_bytes = max_frame_bytes

    def __dealloc__(self):
        PyMem_Free(self._bytes)

    @property
    @cython.critical_section
    def buffered_bytes(self):
        return self._end - self._first

    def wait(self, int descriptor, int event, int timeout_ms):
        cdef pollfd waited[2]
        cdef uint8_t count[512]
        cdef int found
        waited[0].fd, waited[0].events, waited[0].revents = descriptor, POLLIN, 0
        waited[1].fd, waited[1].events, waited[1].revents = event, POLLIN, 0
        with nogil:
            found = poll(waited, 2, timeout_ms)
            if found > 0 and waited[1].revents:
                read(event, count, sizeof(count))
        if found < 0:  # a signal: its handler is Python's
            PyErr_CheckSignals()
            return False
        return waited[0].revents != 0

    @cython.critical_section
    def receive(self, int descriptor):
        # With the interpreter lock, if there is one: it takes only what is there already.
        self._make_room(RECEIVED_AT_ONCE)
        cdef ssize_t got = recv(
            descriptor, self._bytes + self._end, self._capacity - self._end, MSG_DONTWAIT
        )
        if got > 0:
            self._end += got
        elif got < 0:
            if errno in (EAGAIN, EINTR):
                return -1
            PyErr_SetFromErrno(OSError)
        return got

    @cython.critical_section
    def add(self, bytes data not None):
        cdef size_t size = PyBytes_GET_SIZE(data)
        self._make_room(size)
        memmove(self._bytes + self._end, PyBytes_AS_STRING(data), size)
        self._end += size

    @cython.critical_section
    def frame(self):
        cdef const uint8_t *at = self._bytes + self._first
        cdef size_t have = self._end - self._first
        cdef size_t size
        cdef size_t header_size
        self._frame_size = 0
        if have < FRAME_WORDS or self.is_broken:
            return None
        size = 4 + <size_t>omq_read_big_u32(at)
        header_size = omq_read_big_u32(at + 4) & 0xFFFFFF
        # A length with its highest bit set is negative in the protocol; here it is over the limit.
        if size < FRAME_WORDS or size > self._max_frame_bytes or header_size > size - FRAME_WORDS:
            self.is_broken = True
            return None
        if have < size:
            return None
        self._frame_size = size
        return (
            at[4],
            PyBytes_FromStringAndSize(<const char *>at + FRAME_WORDS, header_size),
            PyBytes_FromStringAndSize(
                <const char *>at + FRAME_WORDS + header_size, size - FRAME_WORDS - header_size
            ),
        )

    @cython.critical_section
    def drop(self):
        self._first += self._frame_size
        self._frame_size = 0
        if self._first == self._end:
            self._first = self._end = 0

    @cython.critical_section
    def rest(self):
        return PyBytes_FromStringAndSize(
            <const char *>self._bytes + self._first, self._end - self._first
        )

    cdef int _make_room(self, size_t size) except -1:
        cdef size_t have = self._end - self._first
        cdef size_t wanted = 2 * (have + size)
        cdef uint8_t *grown
        if self._capacity - self._end >= size:
            return 0
        if self._first:
            memmove(self._bytes, self._bytes + self._first, have)
            self._first, self._end = 0, have
        if self._capacity - have < size:
            # Twice as much: a long frame is then moved a few times, not once for each read.
            grown = <uint8_t *>PyMem_Realloc(self._bytes, wanted)
            if grown is NULL:
                raise MemoryError("no memory for what was received")
            self._bytes, self._capacity = grown, wanted
        return 0


cdef inline uint32_t omq_read_big_u32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]
