@cython.final
cdef class ProcessQueue:
    """The buffered messages of one assigned message queue; see core/contract/."""

    cdef omq.omq_process_queue *_queue  # owned; freed in __dealloc__
    cdef readonly str name  # "topic@broker/queueId", for errors and repr
    # By slot: what put_batch got, or the list of one put; None in a slot that is not in use.
    # The GIL guards it, and without a GIL the critical section of this object: no Python code runs
    # between a native call and the change here that goes with it. Either may be given up wherever
    # Python code runs.
    cdef list _batches
    # Makes the batch of an answer that the pull engine has put, when its messages are first taken;
    # None before the engine fills this queue. Such a batch is in _batches from then on.
    cdef object _new_batch
    cdef int64_t _max_decompressed_bytes
    # A LaneMap that the engine fills, too, and an IdWindow whose copies it leaves out; C has pointers
    # to them.
    cdef object _lanes
    cdef object _window

    def __cinit__(self, str name not None=""):
        self.name = name
        self._batches = []
        self._queue = omq.omq_process_queue_new()
        if self._queue is NULL:
            raise MemoryError(f"{name}: no memory for a process queue")

    def __dealloc__(self):
        omq.omq_process_queue_free(self._queue)

    def __repr__(self):
        return f"ProcessQueue({self.name!r}, messages={self.message_count})"

    def put(self, messages, sizes=None):
        # Lists and tuples are read in place; see walked for what may change them meanwhile. Without
        # a GIL another thread may, at any time: a list is copied.
        cdef object pairs = messages if type(messages) in (list, tuple) else tuple(messages)
        cdef object lengths = sizes if type(sizes) in (list, tuple, NoneType) else tuple(sizes)
        if IS_FREE_THREADED:
            pairs = tuple(pairs)
            lengths = None if lengths is None else tuple(lengths)
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(pairs)
        cdef int64_t small[SMALL]
        cdef uint32_t small_sizes[SMALL]
        cdef int64_t *offsets = small
        cdef uint32_t *bytes_ = NULL if lengths is None else small_sizes
        cdef list batch
        if lengths is not None and PySequence_Fast_GET_SIZE(lengths) != count:
            raise ValueError(f"{self.name}: {count} messages, {len(lengths)} sizes")
        if count > SMALL:
            offsets = <int64_t *>allocate(count, sizeof(int64_t) + sizeof(uint32_t))
            bytes_ = NULL if lengths is None else <uint32_t *>(offsets + count)
        try:
            batch = split_pairs(pairs, count, offsets)
            if lengths is not None:
                read_sizes(lengths, count, bytes_)
            return self._put(batch, offsets, bytes_, count)
        finally:
            if offsets is not small:
                PyMem_Free(offsets)

    def put_batch(self, batch):
        if isinstance(batch, MessageIndex):
            return self._put_index(<MessageIndex>batch)
        cdef Py_buffer offsets
        cdef Py_buffer sizes
        get_column(batch.offsets, &offsets, b"ql", sizeof(int64_t), "offsets")
        try:
            get_column(batch.body_sizes, &sizes, b"IiLl", sizeof(uint32_t), "body_sizes")
            try:
                if offsets.shape[0] != sizes.shape[0]:
                    raise ValueError(
                        f"{self.name}: {offsets.shape[0]} offsets, {sizes.shape[0]} sizes"
                    )
                return self._put(
                    batch,
                    <const int64_t *>offsets.buf,
                    <const uint32_t *>sizes.buf,
                    offsets.shape[0],
                )
            finally:
                PyBuffer_Release(&sizes)
        finally:
            PyBuffer_Release(&offsets)

    @cython.critical_section
    cdef bint _put_index(self, MessageIndex index) except -1:
        cdef uint32_t slot
        cdef omq.bool dispatch
        cdef omq.omq_status status
        if not index._rows.is_run:
            return self._put_rows(index)
        self._have_place()
        # C keeps a pointer to the index's sizes; _batches holds the index as long as the slot.
        status = omq.omq_process_queue_put_run(
            self._queue, index._rows.first_offset, index._rows.body_sizes, index._rows.count,
            index._rows.size_bytes, &slot, &dispatch,
        )
        return self._keep(index, slot, status) and dispatch

    cdef bint _put_rows(self, MessageIndex index) except -1:
        cdef int64_t small[SMALL]
        cdef int64_t *offsets = small
        cdef size_t count = index._rows.count
        if count > SMALL:
            offsets = <int64_t *>allocate(count, sizeof(int64_t))
        index._read_offsets(offsets)
        try:
            return self._put(index, offsets, index._rows.body_sizes, count)
        finally:
            if offsets is not small:
                PyMem_Free(offsets)

    @cython.critical_section
    cdef bint _put(
        self, object batch, const int64_t *offsets, const uint32_t *sizes, size_t count
    ) except -1:
        cdef uint32_t slot
        cdef omq.bool dispatch
        self._have_place()
        cdef omq.omq_status status = omq.omq_process_queue_put_batch(
            self._queue, offsets, sizes, count, &slot, &dispatch
        )
        return self._keep(batch, slot, status) and dispatch

    cdef inline int _have_place(self) except -1:
        # Before the native call: append may fail, and then the batch would have no place. Slots are
        # used lowest first, so one free place at the end is enough for the next.
        cdef Py_ssize_t count = len(self._batches)
        if count == 0 or self._batches[count - 1] is not None:
            self._batches.append(None)
        return 0

    cdef inline bint _keep(self, object batch, uint32_t slot, omq.omq_status status) except -1:
        if slot != UINT32_MAX:  # also without memory: a prefix may be buffered
            while slot >= <size_t>len(self._batches):  # the pull engine has used others below it
                self._batches.append(None)
            self._batches[slot] = batch
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: put")
        return True

    def put_columns(self, offsets, tokens, sizes=None):
        cdef Py_buffer offset_view
        cdef Py_buffer token_view
        cdef Py_buffer size_view
        get_column(offsets, &offset_view, b"ql", sizeof(int64_t), "offsets")
        try:
            get_column(tokens, &token_view, b"QL", sizeof(uint64_t), "tokens")
            try:
                if sizes is None:
                    return self._put_columns(&offset_view, &token_view, NULL)
                get_column(sizes, &size_view, b"IiLl", sizeof(uint32_t), "sizes")
                try:
                    return self._put_columns(&offset_view, &token_view, &size_view)
                finally:
                    PyBuffer_Release(&size_view)
            finally:
                PyBuffer_Release(&token_view)
        finally:
            PyBuffer_Release(&offset_view)

    cdef bint _put_columns(
        self, Py_buffer *offset_view, Py_buffer *token_view, Py_buffer *size_view
    ) except -1:
        cdef Py_ssize_t count = offset_view.shape[0]
        cdef const int64_t *offsets = <const int64_t *>offset_view.buf
        cdef const uint64_t *tokens = <const uint64_t *>token_view.buf
        cdef const uint32_t *sizes = NULL
        cdef Py_ssize_t size_count = count
        cdef omq.omq_status status
        cdef omq.bool dispatch
        if size_view is not NULL:
            sizes = <const uint32_t *>size_view.buf
            size_count = size_view.shape[0]
        if token_view.shape[0] != count or size_count != count:
            raise ValueError(
                f"{self.name}: {count} offsets, {token_view.shape[0]} tokens, {size_count} sizes"
            )
        if count < GIL_RELEASE_MIN:
            status = omq.omq_process_queue_put_columns(
                self._queue, offsets, tokens, sizes, count, &dispatch
            )
        else:
            with nogil:
                status = omq.omq_process_queue_put_columns(
                    self._queue, offsets, tokens, sizes, count, &dispatch
                )
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: put_columns")
        return dispatch

    @cython.critical_section
    def take(self, n):
        cdef omq.omq_segment small[SMALL]
        cdef omq.omq_segment *segments = small
        cdef list taken
        cdef list batches
        cdef size_t count = self._take(n, small, &segments)
        cdef size_t messages = 0
        cdef size_t i
        cdef size_t at
        cdef object batch
        try:
            for i in range(count):
                messages += segments[i].count
            if count == 1 and type(self._batch_in(segments[0].slot)) is list:
                at = segments[0].first
                return (<list>self._batches[segments[0].slot])[at : at + messages]
            # Get all batches before asking one for messages: that runs Python code, during which
            # another thread may clear the queue, which drops its batches here.
            batches = (
                [self._batches[segments[i].slot] for i in range(count)]
                if self._new_batch is None
                else [batch for batch, _, _ in self._filled_segments(segments, count)]
            )
            taken = []
            for i in range(count):
                batch = batches[i]
                if type(batch) is list:
                    at = segments[i].first
                    taken.extend((<list>batch)[at : at + segments[i].count])
                else:
                    for at in range(segments[i].first, segments[i].first + segments[i].count):
                        taken.append(batch[at])
            return taken
        finally:
            if segments is not small:
                PyMem_Free(segments)

    @cython.critical_section
    def take_segments(self, n):
        cdef omq.omq_segment small[SMALL]
        cdef omq.omq_segment *segments = small
        cdef list taken
        cdef size_t count = self._take(n, small, &segments)
        cdef size_t i
        cdef object batch
        try:
            if self._new_batch is not None:
                return self._filled_segments(segments, count)
            if count == 1:  # nearly every take: it lies within one batch
                batch = self._batches[segments[0].slot]
                return [(batch, segments[0].first, segments[0].count)]
            taken = []
            for i in range(count):
                taken.append((
                    self._batches[segments[i].slot], segments[i].first, segments[i].count
                ))
            return taken
        finally:
            if segments is not small:
                PyMem_Free(segments)

    cdef MessageRun _run_of(self, const omq.omq_segment *segments, size_t count, object kind):
        """Return segments that were taken, at least one, as a run of this class."""
        cdef MessageRun run
        cdef list taken = None
        if self._new_batch is not None:
            taken = self._filled_segments(segments, count)
        elif count > 1:
            taken = [
                (self._batches[segments[i].slot], segments[i].first, segments[i].count)
                for i in range(count)
            ]
        if count > 1:
            return kind(taken)
        run = <MessageRun>bare_instance(<type>kind, ())
        run._index = <MessageIndex?>(
            self._batches[segments[0].slot] if taken is None else taken[0][0]
        )
        run._first = segments[0].first
        run._length = segments[0].count
        return run

    cdef list _filled_segments(self, const omq.omq_segment *segments, size_t count):
        """Return segments with their batches; those of the pull engine are made here."""
        cdef omq_answer *small[SMALL]
        cdef omq_answer **answers = small
        cdef list taken = [None] * count
        cdef size_t i
        cdef size_t held = 0
        cdef object batch
        if count > SMALL:
            answers = <omq_answer **>allocate(count, sizeof(omq_answer *))
        try:
            # All answers are held before a batch is made: that may run Python code, during which
            # another thread may clear the queue, and the engine use its slots for others.
            for i in range(count):
                answers[i] = NULL
                batch = self._batch_in(segments[i].slot)
                if batch is None:
                    answers[i] = omq_process_queue_answer(self._queue, segments[i].slot)
                taken[i] = batch
            for i in range(count):
                held = i + 1
                batch = taken[i]
                if batch is None:
                    batch = self._adopted(segments[i].slot, answers[i])
                taken[i] = (batch, segments[i].first, segments[i].count)
            return taken
        finally:
            for i in range(held, count):
                if answers[i] is not NULL:
                    omq_answer_release(answers[i])
            if answers is not small:
                PyMem_Free(answers)

    cdef object _batch_in(self, uint32_t slot):
        return self._batches[slot] if slot < <size_t>len(self._batches) else None

    cdef object _lane_batch(self, uint32_t number):
        """Return a new batch of the answer that tokens in lanes name."""
        cdef omq_answer *answer = omq_process_queue_lane_answer(self._queue, number)
        if answer is NULL:
            raise _errors.StateError(f"{self.name}: the batch of lane token {number} is gone")
        return self._made_of(answer)

    cdef MessageIndex _made_of(self, omq_answer *answer):
        """Return a new batch of an answer, whose hold is handed over."""
        cdef MessageIndex made
        try:
            made = self._new_batch()
        except BaseException:
            omq_answer_release(answer)
            raise
        made._adopt(answer, self._max_decompressed_bytes)
        return made

    cdef object _adopted(self, uint32_t slot, omq_answer *answer):
        """Return the batch of an answer, whose hold is handed over."""
        if answer is NULL:
            raise _errors.StateError(f"{self.name}: the batch in slot {slot} is gone")
        cdef MessageIndex made = self._made_of(answer)
        # Meanwhile another thread may have made one, or the slot may be another answer's.
        if omq_process_queue_has_answer(self._queue, slot, answer):
            while slot >= <size_t>len(self._batches):
                self._batches.append(None)
            if self._batches[slot] is not None:
                return self._batches[slot]
            self._batches[slot] = made
        return made

    cdef size_t _take(
        self, object n, omq.omq_segment *small, omq.omq_segment **segments
    ) except? 0:
        """Take up to n; the caller frees `segments` unless it is `small`."""
        return self._take_up_to(at_least_one(n, self.name, "take"), small, segments)

    cdef size_t _take_up_to(
        self, size_t limit, omq.omq_segment *small, omq.omq_segment **segments
    ) except? 0:
        cdef omq.omq_process_queue_state state
        cdef size_t count
        cdef omq.omq_status status
        if limit > SMALL:  # a caller that asks for "all" must not make us allocate for 2**63
            omq.omq_process_queue_read(self._queue, &state)
            limit = max(<size_t>1, min(limit, state.pending))
        if limit > SMALL:
            segments[0] = <omq.omq_segment *>allocate(limit, sizeof(omq.omq_segment))
        status = omq.omq_process_queue_take_segments(self._queue, segments[0], limit, &count)
        if status != omq.OMQ_OK:
            if segments[0] is not small:
                PyMem_Free(segments[0])
                segments[0] = small
            raise failure(status, f"{self.name}: take")
        return count

    def take_columns(self, n):
        cdef size_t limit = at_least_one(n, self.name, "take_columns")
        cdef omq.omq_process_queue_state state
        # At least 1 also of an empty queue: that take is what clears the dispatch flag.
        omq.omq_process_queue_read(self._queue, &state)
        limit = max(<size_t>1, min(limit, state.pending))
        cdef array offsets = clone(_INT64, limit, zero=False)
        cdef array tokens = clone(_UINT64, limit, zero=False)
        cdef size_t taken
        cdef omq.omq_status status
        cdef int64_t *offset_column = <int64_t *>offsets.data.as_longlongs
        cdef uint64_t *token_column = <uint64_t *>tokens.data.as_ulonglongs
        if limit < GIL_RELEASE_MIN:
            status = omq.omq_process_queue_take_columns(
                self._queue, offset_column, token_column, limit, &taken
            )
        else:
            with nogil:
                status = omq.omq_process_queue_take_columns(
                    self._queue, offset_column, token_column, limit, &taken
                )
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: take_columns")
        return memoryview(offsets)[:taken], memoryview(tokens)[:taken]

    @cython.critical_section
    def commit(self):
        cdef uint32_t slot
        cdef int64_t next_offset = omq.omq_process_queue_commit(self._queue, &slot)
        if slot != UINT32_MAX:
            self._drop(slot)
            self._forget()
        return next_offset

    cdef inline int _drop(self, uint32_t slot) except -1:
        if slot < <size_t>len(self._batches):  # else the pull engine put it, and nobody took it
            self._batches[slot] = None
        return 0

    cdef int _forget(self) except -1:
        """Drop the batches that have no message left; see collect in ordermq.h."""
        cdef uint32_t slot
        while omq.omq_process_queue_collect(self._queue, &slot):
            # One by one: a finalizer that this runs may put again, and be given a slot of these.
            self._drop(slot)
        return 0

    cdef size_t _make_again_from(self, int64_t offset, str operation) except? 0:
        cdef size_t moved
        cdef omq.omq_status status = omq.omq_process_queue_make_again_from(
            self._queue, offset, &moved
        )
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: {operation}")
        return moved

    def rollback(self):
        self._make_again_from(INT64_MIN, "rollback")

    def make_again_from(self, offset):
        return self._make_again_from(clamped(offset), "make_again_from")

    def make_again(self, offsets):
        cdef array wanted = copied_offsets(offsets)
        cdef size_t moved
        cdef omq.omq_status status = omq.omq_process_queue_make_again(
            self._queue, <int64_t *>wanted.data.as_longlongs, len(wanted), &moved
        )
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: make_again")
        return moved

    def remove(self, offsets):
        cdef array done = copied_offsets(offsets)
        return self._remove(<int64_t *>done.data.as_longlongs, len(done))

    @cython.critical_section
    cdef int64_t _remove(self, const int64_t *offsets, size_t count) except? -1:
        cdef int64_t watermark
        cdef omq.omq_status status = omq.omq_process_queue_remove(
            self._queue, offsets, count, &watermark
        )
        self._forget()  # also after an error: a prefix was removed
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: remove")
        return watermark

    @cython.critical_section
    def clear(self):
        omq.omq_process_queue_clear(self._queue)
        self._forget()

    @cython.critical_section
    def reset(self, next_offset):
        cdef omq.omq_status status = omq.OMQ_OUT_OF_RANGE
        if 0 <= next_offset <= INT64_MAX:
            status = omq.omq_process_queue_reset(self._queue, next_offset)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.name}: reset to {next_offset}")
        self._forget()

    def advance(self, next_pull_offset=None, queue_end=None):
        omq.omq_process_queue_advance(
            self._queue,
            -1 if next_pull_offset is None else clamped(next_pull_offset),
            -1 if queue_end is None else clamped(queue_end),
        )

    @property
    def next_pull_offset(self):
        return self._state().next_pull

    @property
    def queue_end(self):
        return self._state().queue_end

    def begin_dispatch(self):
        return omq.omq_process_queue_begin_dispatch(self._queue)

    def end_dispatch(self):
        omq.omq_process_queue_end_dispatch(self._queue)

    cdef omq.omq_process_queue_state _state(self):
        cdef omq.omq_process_queue_state state
        omq.omq_process_queue_read(self._queue, &state)
        return state

    @property
    def message_count(self):
        cdef omq.omq_process_queue_state state = self._state()
        return state.pending + state.consuming

    @property
    def size_bytes(self):
        return self._state().size_bytes

    @property
    def pending_count(self):
        return self._state().pending

    @property
    def consuming_count(self):
        return self._state().consuming

    @property
    def max_span(self):
        cdef omq.omq_process_queue_state state = self._state()
        return state.last_pending - state.first_pending

    @property
    def max_offset(self):
        return self._state().max_offset

    @property
    def first_pending(self):
        return self._state().first_pending

    @property
    def last_pending(self):
        return self._state().last_pending

    @property
    def first_consuming(self):
        return self._state().first_consuming

    @property
    def last_consuming(self):
        return self._state().last_consuming

    @property
    def is_dispatched(self):
        return self._state().is_dispatched

    @property
    def duplicates_ignored(self):
        return self._state().duplicates_ignored

    @property
    def next_uncommitted(self):
        return self._state().floor

    def __contains__(self, offset):
        return isinstance(offset, int) and omq.omq_process_queue_is_pending(
            self._queue, clamped(offset)
        )

    def _check(self):
        cdef const char *broken = omq.omq_process_queue_check(self._queue)
        if broken is not NULL:
            raise AssertionError(f"{self!r}: {broken.decode()}: {self._state()}")


cdef inline object walked(object sequence, Py_ssize_t count, Py_ssize_t i):
    """Return member i of a list or tuple; fail if code run by reading another has changed it."""
    if PySequence_Fast_GET_SIZE(sequence) != count:
        raise RuntimeError("the messages or sizes of a put changed while it read them")
    return <object>PySequence_Fast_GET_ITEM(sequence, i)


cdef list split_pairs(object pairs, Py_ssize_t count, int64_t *offsets):
    """Return the messages of (offset, message) pairs, and write their offsets."""
    cdef list batch = PyList_New(count)
    cdef Py_ssize_t i
    cdef object pair, offset, message
    for i in range(split_plain_pairs(pairs, count, offsets, batch), count):
        pair = walked(pairs, count, i)
        offset, message = pair
        offsets[i] = clamped(offset)
        Py_INCREF(message)
        PyList_SET_ITEM(batch, i, message)
    return batch


cdef Py_ssize_t split_plain_pairs(
    object pairs, Py_ssize_t count, int64_t *offsets, list batch
) noexcept:
    """Split pairs up to the first that is not a tuple of a plain int and a message.

    Nothing here runs Python code, so the sequence cannot change meanwhile and need not be checked.
    """
    cdef PyObject **members = PySequence_Fast_ITEMS(pairs)
    cdef PyObject *message
    cdef Py_ssize_t i
    for i in range(count):
        if not PyTuple_CheckExact(<object>members[i]) or PyTuple_GET_SIZE(<object>members[i]) != 2:
            return i
        if not omq_is_plain_int(<object>PyTuple_GET_ITEM(<object>members[i], 0), offsets + i):
            return i
        message = <PyObject *>PyTuple_GET_ITEM(<object>members[i], 1)
        Py_INCREF(<object>message)
        PyList_SET_ITEM(batch, i, <object>message)
    return count


cdef int read_sizes(object lengths, Py_ssize_t count, uint32_t *sizes) except -1:
    """Write body sizes; UINT32_MAX, which the core refuses, for one out of range."""
    cdef PyObject **members = PySequence_Fast_ITEMS(lengths)
    cdef int64_t plain
    cdef Py_ssize_t i
    for i in range(count):
        if not omq_is_plain_int(<object>members[i], &plain):
            break
        sizes[i] = <uint32_t>plain if plain <= INT32_MAX else UINT32_MAX
    else:
        return 0
    for i in range(i, count):
        sizes[i] = size_of(walked(lengths, count, i))
    return 0


cdef inline uint32_t size_of(object size) except? 0:
    """Return a body size; UINT32_MAX, which the core refuses, if it is out of range."""
    cdef int64_t value = clamped(size)
    return <uint32_t>value if 0 <= value <= INT32_MAX else UINT32_MAX
