cdef enum:
    # The most that is taken with the interpreter lock: to get it again takes longer than to take
    # them, but larger answers would keep listeners waiting.
    MOST_TAKEN_BYTES = 65536

@cython.final
cdef class PullEngine:
    """The thread that pulls without the interpreter; see core/contract/."""

    cdef omq_pull_engine *_engine  # owned; freed in __dealloc__
    # The GIL guards this and each stream's _is_active, and without a GIL the critical section of
    # the engine: nothing is started or stopped while the engine closes or events are collected.
    cdef bint _is_closed
    cdef bint _has_thread_state  # the engine's thread has one of the interpreter, for TLS

    def __cinit__(self, wake_read, wake_write, tell_write, clock_id, max_frame_bytes):
        self._engine = omq_pull_engine_new(
            wake_read, wake_write, tell_write, clock_id, max_frame_bytes
        )
        if self._engine is NULL:
            raise MemoryError("no memory, or no thread, for the pull engine")

    def __dealloc__(self):
        # Never while something of it is in use: connections and streams hold the engine. While the
        # interpreter ends, a thread that asks for its lock, as TLS does, may never come back.
        if self._engine is not NULL and not is_finalizing():
            self.close()
            omq_pull_engine_free(self._engine)

    @cython.critical_section
    def collect(self):
        cdef omq_pull_event event
        cdef list ended = []
        cdef list events = []
        cdef object owner
        cdef object held
        while omq_pull_engine_next(self._engine, &event):
            held = b""
            if event.bytes is not NULL:
                try:
                    held = PyBytes_FromStringAndSize(<const char *>event.bytes, event.size)
                finally:
                    free(event.bytes)
            owner = <object>event.owner
            if event.connection is not NULL:
                ended.append((
                    (<PullConnection>owner).owner, <int>event.connection_end, event.error, held
                ))
                Py_DECREF(owner)  # the reference of PullConnection.__cinit__
            else:
                number = <int>event.end
                events.append((
                    (<PullStream>owner).owner, number, event.is_dispatched, event.offset, held
                ))
                if number != OMQ_STREAM_GOES_ON:
                    (<PullStream>owner)._is_active = False
                    Py_DECREF(owner)  # the reference of `start`
        return ended, events

    @cython.critical_section
    def take_ready(self):
        # A stream is freed by `collect` only, which does not run beside this.
        cdef void *owner = omq_pull_engine_take_ready(self._engine)
        return None if owner is NULL else (<PullStream>owner).owner

    def wait_ready(self):
        cdef bint is_open
        with nogil:
            is_open = omq_pull_engine_wait_ready(self._engine)
        return is_open

    def interrupt(self):
        omq_pull_engine_interrupt(self._engine)

    def rest(self):
        with nogil:  # the thread may wait for it in a step of TLS
            omq_pull_engine_rest(self._engine)

    def resume(self):
        omq_pull_engine_resume(self._engine)

    def close(self):
        cdef bint is_closed
        with cython.critical_section(self):
            is_closed = self._is_closed
            self._is_closed = True
        if not is_closed:
            with nogil:  # as `rest`
                omq_pull_engine_close(self._engine)


@cython.final
cdef class PullConnection:
    """A connection of the engine; see core/contract/."""

    cdef omq_pull_connection *_connection  # owned; freed in __dealloc__
    cdef PullEngine _engine
    cdef readonly object owner
    # With TLS; used by the engine's thread until the connection has ended.
    cdef TlsRecords _records
    cdef object _write
    cdef object _outgoing
    cdef readonly object tls_error

    def __cinit__(self, PullEngine engine not None, descriptor, owner, tls=None):
        cdef int socket = descriptor
        cdef bint is_closed
        cdef omq_tls functions = [step_tls, leave_interpreter]
        self._engine = engine
        self.owner = owner
        if tls is not None:
            self._records = TlsRecords(tls)
            self._write, self._outgoing = tls.write, tls.outgoing
        with cython.critical_section(engine):
            is_closed = engine._is_closed
            if not is_closed:
                self._connection = omq_pull_connection_new(
                    engine._engine, socket, NULL if tls is None else &functions, <void *>self
                )
                if self._connection is not NULL:
                    Py_INCREF(self)  # until the engine tells of its end
        if is_closed:
            raise _errors.StateError("the pull engine is closed")
        if self._connection is NULL:
            raise MemoryError("no memory for a connection")

    def __dealloc__(self):
        omq_pull_connection_free(self._connection)

    def close(self):
        omq_pull_connection_close(self._connection)

    cdef omq_tls_state _step(
        self, omq_pull_connection *connection, const omq_tls_records *received
    ) noexcept:
        """Do a step of TLS, on the engine's thread."""
        cdef const uint8_t *frames
        cdef size_t size
        cdef bint goes_on
        try:
            if received is not NULL:
                if not self._records.open(
                    received.bytes,
                    received.size,
                    received.count,
                    room_of_connection,
                    add_to_connection,
                    connection,
                ):
                    return OMQ_TLS_CLOSED
                if received.size <= MOST_TAKEN_BYTES:
                    goes_on = omq_pull_connection_take(connection)
                else:
                    with nogil:
                        goes_on = omq_pull_connection_take(connection)
                if not goes_on:
                    return OMQ_TLS_ENDED
            frames = omq_pull_connection_frames(connection, &size)
            if size > 0:
                self._encipher(<char *>frames, size)
            # Also after reading: an alert, or the answer to a change of keys.
            if self._outgoing.pending:
                self._send(connection, self._outgoing.read())
            return OMQ_TLS_OPEN
        except MemoryError:
            return OMQ_TLS_NO_MEMORY
        except BaseException as error:
            self.tls_error = error
            return OMQ_TLS_FAILED

    cdef int _encipher(self, char *frames, size_t size) except -1:
        cdef size_t done = 0
        while done < size:
            done += self._write(PyMemoryView_FromMemory(frames + done, size - done, PyBUF_READ))
        return 0

    cdef int _send(self, omq_pull_connection *connection, bytes sealed) except -1:
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(sealed)
        if not omq_pull_connection_send(connection, at, PyBytes_GET_SIZE(sealed)):
            raise MemoryError("no memory for a record of TLS")
        return 0


cdef uint8_t *room_of_connection(void *connection, size_t size) noexcept:
    return omq_pull_connection_room(<omq_pull_connection *>connection, size)


cdef void add_to_connection(void *connection, size_t size) noexcept:
    omq_pull_connection_add(<omq_pull_connection *>connection, size)


cdef omq_tls_state step_tls(
    void *owner, omq_pull_connection *connection, const omq_tls_records *received
) noexcept with gil:
    # Kept from the first step to `leave_interpreter`: to make one for each step costs more than
    # the step.
    if not (<PullConnection>owner)._engine._has_thread_state:
        (<PullConnection>owner)._engine._has_thread_state = True
        PyGILState_Ensure()
    # No reference: once the connection has ended, the last one may be dropped on another thread,
    # and not on this one, for which the end of the engine waits.
    return (<PullConnection>owner)._step(connection, received)


cdef void leave_interpreter() noexcept with gil:
    PyGILState_Release(<PyGILState_STATE>0)  # PyGILState_LOCKED


@cython.final
@cython.no_gc
cdef class SharedRoom:
    """Room that several queues share; see core/contract/."""

    cdef omq_shared_room *_room  # a holder of it; the queues are others

    def __cinit__(self, messages):
        self._room = omq_shared_room_new(messages)
        if self._room is NULL:
            raise MemoryError("no memory for the room of queues")

    def __dealloc__(self):
        if self._room is not NULL:
            omq_shared_room_release(self._room)

    @property
    def pending(self):
        return omq_shared_room_pending(self._room)


@cython.final
cdef class PullStream:
    """The pulls of one queue by the engine; see core/contract/."""

    cdef omq_pull_stream *_stream  # owned; freed in __dealloc__
    cdef PullConnection _connection
    cdef ProcessQueue _queue  # None: it fills the answer queue
    cdef AnswerQueue _answers  # None: it fills the process queue
    cdef RequestTemplate _template  # of the plan; the engine reads it to the end
    cdef readonly object owner
    cdef bint _is_active  # started, and its last event was not collected

    def __cinit__(
        self, PullConnection connection not None, queue not None, owner, plan
    ):
        cdef omq_stream_plan wanted
        cdef RequestTemplate template = plan.template
        cdef tuple tags = plan.tags
        cdef list texts = [plan.suggestion, *tags]
        cdef omq.omq_text *places = <omq.omq_text *>allocate(len(texts), sizeof(omq.omq_text))
        cdef Py_ssize_t i
        memset(&wanted, 0, sizeof(wanted))
        try:
            for i in range(len(texts)):
                places[i].bytes = <const uint8_t *>PyBytes_AS_STRING(texts[i])
                places[i].size = PyBytes_GET_SIZE(texts[i])
            wanted.suggestion = places[0]
            wanted.tags = places + 1
            wanted.tag_count = len(tags)
            if type(queue) is AnswerQueue:
                self._answers = queue
                wanted.answers = self._answers._queue
            else:
                self._queue = queue
                wanted.queue = self._queue._queue
            wanted.request = template._template
            wanted.check_crc = plan.check_crc
            wanted.is_filtered = plan.is_filtered
            wanted.queue_id = plan.queue_id
            wanted.offset = plan.offset
            wanted.timeout_ms = plan.timeout_ms
            wanted.most_past_end = plan.most_past_end
            wanted.is_single = plan.is_single
            if self._queue is not None:
                wanted.limits = limits_of(plan.limits)
            self._stream = omq_pull_stream_new(connection._connection, &wanted, <void *>self)
        finally:
            PyMem_Free(places)
        if self._stream is NULL:
            raise MemoryError("no memory for a stream of pulls")
        self._connection = connection
        self._template = template
        self.owner = owner
        if self._queue is not None:
            self._prepare(plan)

    cdef int _prepare(self, plan) except -1:
        """Tell the process queue what its batches are made with."""
        cdef ProcessQueue queue = self._queue
        cdef LaneMap lanes = plan.lanes
        cdef IdWindow window = plan.window
        cdef SharedRoom room = plan.limits.room
        cdef object new_batch = plan.new_batch
        cdef int64_t max_decompressed_bytes = plan.max_decompressed_bytes
        with cython.critical_section(queue):
            queue._new_batch = new_batch
            queue._max_decompressed_bytes = max_decompressed_bytes
            if lanes is not None:
                queue._lanes = lanes
                omq_process_queue_fill_lanes(queue._queue, lanes._map)
            if window is not None:
                queue._window = window
                omq_process_queue_fill_new_only(queue._queue, window._window)
            if room is not None:
                omq_process_queue_fill_within(queue._queue, room._room)

    def __dealloc__(self):
        omq_pull_stream_free(self._stream)

    def permit(self):
        omq_pull_stream_permit(self._stream)

    def forbid(self):
        omq_pull_stream_forbid(self._stream)

    def start(self):
        cdef PullEngine engine = self._connection._engine
        cdef bint is_closed
        with cython.critical_section(engine):
            is_closed = engine._is_closed
            if not is_closed:
                self._is_active = True
                Py_INCREF(self)  # until the engine tells of its end
                omq_pull_stream_start(self._stream)
        if is_closed:
            raise _errors.StateError("the pull engine is closed")

    def stop(self):
        with cython.critical_section(self._connection._engine):
            if self._is_active:
                omq_pull_stream_stop(self._stream)

    def limit(self, limits):
        cdef omq_fill_limits wanted = limits_of(limits)
        omq_pull_stream_limit(self._stream, &wanted)

    def take_counts(self):
        cdef omq_pull_counts counts = omq_pull_stream_take_counts(self._stream)
        cdef Py_ssize_t i
        buckets = tuple([counts.buckets[i] for i in range(OMQ_DURATION_BUCKETS)])
        return counts.pulls, counts.messages, counts.pull_ms, buckets

    @property
    def is_asking(self):
        return omq_pull_stream_is_asking(self._stream)

    @property
    def asked_ms(self):
        return omq_pull_stream_asked_ms(self._stream)


cdef omq_fill_limits limits_of(object limits) except *:
    cdef omq_fill_limits wanted
    wanted.fills_if_none_pending = limits.fills_if_none_pending
    wanted.counts_pending = limits.counts_pending
    wanted.messages = limits.messages
    wanted.bytes = limits.size_bytes
    wanted.span = limits.span
    return wanted
