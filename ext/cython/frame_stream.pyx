cdef extern from "frame_stream.h" nogil:
    ctypedef struct omq_frame_stream:
        pass
    ctypedef struct omq_frame:
        uint8_t encoding
        const uint8_t *header
        size_t header_size
        const uint8_t *body
        size_t body_size
    ctypedef struct omq_awaited:
        uint32_t opaque
        int event
        uint8_t *frame
        size_t size
        omq.omq_text message_ids
        int64_t queue_id
        int64_t queue_offset
        omq.bool is_ahead
    ctypedef enum omq_waited:
        OMQ_ANSWERED
        OMQ_SEALED
    omq_frame_stream *omq_frame_stream_new(size_t max_frame_bytes, omq.bool is_sealed)
    void omq_frame_stream_free(omq_frame_stream *stream)
    omq.bool omq_frame_stream_add(omq_frame_stream *stream, const uint8_t *bytes, size_t size)
    omq.bool omq_frame_stream_next(omq_frame_stream *stream, omq_frame *frame)
    void omq_frame_stream_drop(omq_frame_stream *stream)
    omq.bool omq_frame_stream_is_broken(omq_frame_stream *stream)
    const uint8_t *omq_frame_stream_rest(omq_frame_stream *stream, size_t *size)
    size_t omq_frame_stream_buffered(omq_frame_stream *stream)
    void omq_frame_stream_counts(omq_frame_stream *stream, uint64_t *bytes, uint64_t *frames)
    int omq_frame_stream_attach(omq_frame_stream *stream, int socket, int gate)
    void omq_frame_stream_trust(omq_frame_stream *stream)
    omq.bool omq_frame_stream_begin(omq_frame_stream *stream)
    ssize_t omq_frame_stream_receive(omq_frame_stream *stream)
    void omq_frame_stream_end(omq_frame_stream *stream, omq.bool are_waiters_alone)
    omq.bool omq_frame_stream_stop(omq_frame_stream *stream)
    omq.bool omq_frame_stream_has_records(omq_frame_stream *stream)
    const uint8_t *omq_frame_stream_take_records(
        omq_frame_stream *stream, size_t *size, size_t *count
    )
    uint8_t *omq_frame_stream_room(omq_frame_stream *stream, size_t size)
    void omq_frame_stream_opened(omq_frame_stream *stream, size_t size)
    omq_waited omq_frame_stream_wait(
        omq_frame_stream *stream, omq_awaited *awaited, int timeout_ms
    )
    omq_waited omq_frame_stream_hand_over(
        omq_frame_stream *stream, omq_awaited *awaited, omq.bool is_over
    )
    void omq_frame_stream_leave(omq_frame_stream *stream, omq_awaited *awaited)
    void omq_frame_stream_pass(omq_frame_stream *stream, omq_awaited *awaited)


cdef extern from "outbox.h" nogil:
    ctypedef struct omq_outbox:
        pass
    ctypedef enum omq_flushed:
        OMQ_FLUSHED
        OMQ_FULL
        OMQ_FAILED
    omq_outbox *omq_outbox_new(int socket)
    void omq_outbox_free(omq_outbox *outbox)
    omq.bool omq_outbox_append(omq_outbox *outbox, const uint8_t *bytes, size_t size)
    omq_flushed omq_outbox_flush(omq_outbox *outbox, int *error)
    uint8_t *omq_outbox_take(omq_outbox *outbox, size_t *size)
    void omq_outbox_close(omq_outbox *outbox)


cdef tuple _frame_of(const omq_frame *frame):
    return (
        frame.encoding,
        PyBytes_FromStringAndSize(<const char *>frame.header, frame.header_size),
        PyBytes_FromStringAndSize(<const char *>frame.body, frame.body_size),
    )


cdef uint8_t *room_of_stream(void *stream, size_t size) noexcept:
    return omq_frame_stream_room(<omq_frame_stream *>stream, size)


cdef void add_to_stream(void *stream, size_t size) noexcept:
    omq_frame_stream_opened(<omq_frame_stream *>stream, size)


@cython.final
cdef class FrameStream:
    """Bytes received from one socket, and the frames they make; see core/contract/."""

    cdef omq_frame_stream *_stream  # owned; freed in __dealloc__
    cdef TlsRecords _tls  # None: what comes are frames
    # Changed by whoever has the turn; the owner is told by `receive`.
    cdef object _failure  # an OSError; None: there is none, or it was told
    cdef bint _is_over  # nothing more will come

    def __cinit__(self, size_t max_frame_bytes, tls=None):
        if tls is not None:
            self._tls = TlsRecords(tls)
        self._stream = omq_frame_stream_new(max_frame_bytes, tls is not None)
        if self._stream is NULL:
            raise MemoryError("no memory for the frames of a connection")

    def __dealloc__(self):
        omq_frame_stream_free(self._stream)

    @property
    def is_broken(self):
        return omq_frame_stream_is_broken(self._stream)

    @property
    def buffered_bytes(self):
        return omq_frame_stream_buffered(self._stream)

    @property
    def counts(self):
        cdef uint64_t received
        cdef uint64_t answered
        omq_frame_stream_counts(self._stream, &received, &answered)
        return received, answered

    def add(self, bytes data not None):
        if not omq_frame_stream_add(
            self._stream, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        ):
            raise MemoryError("no memory for what was received")

    @cython.critical_section
    def frame(self):
        cdef omq_frame frame
        if not omq_frame_stream_next(self._stream, &frame):
            return None
        return _frame_of(&frame)

    @cython.critical_section
    def drop(self):
        omq_frame_stream_drop(self._stream)

    @cython.critical_section
    def rest(self):
        cdef size_t size
        cdef const uint8_t *rest = omq_frame_stream_rest(self._stream, &size)
        return PyBytes_FromStringAndSize(<const char *>rest, size)

    def attach(self, int socket, int gate):
        cdef int error = omq_frame_stream_attach(self._stream, socket, gate)
        if error:
            raise OSError(error, _strerror(error))

    def trust(self):
        omq_frame_stream_trust(self._stream)

    def begin(self):
        return omq_frame_stream_begin(self._stream)

    def receive(self, double patience_s=0.0):
        # With the interpreter lock, if there is one: it takes only what is there already.
        cdef ssize_t got = omq_frame_stream_receive(self._stream)
        cdef object error
        if got < -1:
            raise OSError(-got, _strerror(-got))
        if self._tls is None:
            return got
        self._is_over = self._is_over or got == 0
        self._tls.opened = 0
        if not self._open(patience_s):
            return -1
        if self._tls.opened > 0:
            return self._tls.opened
        if self._failure is not None:
            error, self._failure, self._is_over = self._failure, None, True
            raise error
        return 0 if self._is_over else -1

    @property
    def has_more(self):
        return self._tls is not None and (
            self._is_over
            or self._failure is not None
            or omq_frame_stream_has_records(self._stream)
        )

    cdef bint _open(self, double patience_s) except -1:
        """Decipher the records that came, with the turn; False: another thread held the session.

        Args: patience_s: how long to wait for that thread; -1 for as long as it takes.
        """
        cdef size_t size
        cdef size_t count
        cdef const uint8_t *records
        if not self._tls.lock.acquire(True, patience_s):
            return False
        try:
            if self._failure is None:
                records = omq_frame_stream_take_records(self._stream, &size, &count)
                if records is not NULL and not self._tls.open(
                    records, size, count, room_of_stream, add_to_stream, self._stream
                ):
                    self._is_over = True
        except self._tls.failed as error:
            self._failure = error
        except MemoryError:
            self._failure = OSError(ENOMEM, _strerror(ENOMEM))
        except BaseException:
            self._failure = OSError(ECONNABORTED, "a read was interrupted")
            raise
        finally:
            self._tls.lock.release()
        return True

    def end(self, bint are_waiters_alone):
        omq_frame_stream_end(self._stream, are_waiters_alone)

    def stop(self):
        return omq_frame_stream_stop(self._stream)


@cython.final
@cython.no_gc
cdef class Outbox:
    """Frames that threads write to one socket; see core/contract/."""

    cdef omq_outbox *_outbox  # owned; freed in __dealloc__

    def __cinit__(self, int socket):
        self._outbox = omq_outbox_new(socket)
        if self._outbox is NULL:
            raise MemoryError("no memory for what is written")

    def __dealloc__(self):
        omq_outbox_free(self._outbox)

    def append(self, bytes data not None, request not None):
        if not omq_outbox_append(
            self._outbox, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        ):
            return False
        request.is_asked = True
        return True

    def append_sealed(self, bytes data not None, request not None, tls not None):
        cdef const char *at = PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t done
        cdef object lock = tls.lock
        cdef object write = tls.write
        cdef object sealed
        lock.acquire()
        try:
            done = write(data)
            while done < size:
                done += write(PyMemoryView_FromMemory(<char *>at + done, size - done, PyBUF_READ))
            sealed = tls.outgoing.read()
        finally:
            lock.release()
        return self.append(sealed, request)

    def flush(self):
        cdef int error = 0
        cdef omq_flushed said
        with nogil:
            said = omq_outbox_flush(self._outbox, &error)
        if said == OMQ_FAILED:
            raise OSError(error, _strerror(error))
        return said == OMQ_FLUSHED

    def take(self):
        cdef size_t size
        cdef uint8_t *taken = omq_outbox_take(self._outbox, &size)
        if taken is NULL:
            if size:
                raise MemoryError("no memory for what is written")
            return b""
        try:
            return PyBytes_FromStringAndSize(<const char *>taken, size)
        finally:
            free(taken)

    def close(self):
        omq_outbox_close(self._outbox)


@cython.final
@cython.no_gc
cdef class AwaitedAnswer:
    """The answer to one request, for the thread that wrote it; see core/contract/."""

    cdef FrameStream _stream
    cdef Outbox _outbox
    cdef omq_awaited _awaited  # its frame is owned; freed in __dealloc__
    cdef int _error

    def __cinit__(self, FrameStream stream not None, Outbox outbox not None, opaque, int event):
        self._stream, self._outbox = stream, outbox
        self._awaited.opaque, self._awaited.event = opaque, event

    def __dealloc__(self):
        free(self._awaited.frame)

    def wait(self, int timeout_ms):
        cdef omq_waited said
        cdef omq_flushed flushed
        if self._awaited.frame is not NULL:
            return <int>OMQ_ANSWERED
        with nogil:
            flushed = omq_outbox_flush(self._outbox._outbox, &self._error)
            if flushed == OMQ_FLUSHED:
                said = omq_frame_stream_wait(self._stream._stream, &self._awaited, timeout_ms)
        while flushed == OMQ_FLUSHED and said == OMQ_SEALED:
            said = self._open()
            if said == OMQ_SEALED:
                with nogil:
                    said = omq_frame_stream_wait(self._stream._stream, &self._awaited, timeout_ms)
        if self._awaited.is_ahead:
            omq_frame_stream_pass(self._stream._stream, &self._awaited)
        if flushed != OMQ_FLUSHED:
            return BROKEN if flushed == OMQ_FAILED else NOT_WRITTEN
        if said != OMQ_ANSWERED:  # perhaps by a signal: its handler is Python's
            PyErr_CheckSignals()
        return <int>said

    cdef omq_waited _open(self) except *:
        """Decipher what came and hand it over, with the turn."""
        cdef FrameStream stream = self._stream
        try:
            # A handler's exception loses nothing as long as nothing was deciphered.
            PyErr_CheckSignals()
            stream._open(-1)
        except BaseException:
            omq_frame_stream_leave(stream._stream, &self._awaited)
            raise
        return omq_frame_stream_hand_over(
            stream._stream, &self._awaited, stream._is_over or stream._failure is not None
        )

    @property
    def error(self):
        return self._error

    @property
    def stored(self):
        if self._awaited.message_ids.bytes is NULL:
            return None
        return (
            PyUnicode_DecodeUTF8(
                <const char *>self._awaited.message_ids.bytes, self._awaited.message_ids.size, NULL
            ),
            self._awaited.queue_id,
            self._awaited.queue_offset,
        )

    @property
    def is_here(self):
        return self._awaited.frame is not NULL

    @property
    def frame(self):
        cdef const uint8_t *at = self._awaited.frame
        cdef size_t header_size
        if at is NULL:
            raise ValueError("the answer is not here yet")
        header_size = (<size_t>at[1] << 16) | (<size_t>at[2] << 8) | at[3]
        return (
            at[0],
            PyBytes_FromStringAndSize(<const char *>at + 4, header_size),
            PyBytes_FromStringAndSize(
                <const char *>at + 4 + header_size, self._awaited.size - 4 - header_size
            ),
        )


cdef enum:
    NOT_WRITTEN = 4  # besides the numbers of omq_waited, as AnswerWait has them
    BROKEN = 5
