cdef class Claim:
    """The messages that a worker has claimed, and under what; see core/contract/."""

    cdef readonly object messages
    cdef readonly object lease
    cdef readonly int64_t generation

    def __init__(self, messages, lease, int64_t generation):
        self.messages = messages
        self.lease = lease
        self.generation = generation


cdef int require_class(object kind, type base) except -1:
    """Raise TypeError unless `kind` derives from `base`: instances are made without its `__init__`."""
    if not (PyType_Check(kind) and issubclass(kind, base)):
        raise TypeError(f"{kind!r}: expected a class of {base.__name__}s")
    return 0


cdef enum:
    TOKEN_ROW_BITS = 32  # a token of the lanes: number of a batch << 32 | row
    FIRST_NUMBER = 0x80000000  # of batches that `accept` puts; those of the pull engine are below


cdef omq.omq_text SHARDING_KEY
SHARDING_KEY.bytes = <const uint8_t *>b"__SHARDINGKEY"
SHARDING_KEY.size = 13


cdef class AssignedQueue:
    """The state of one queue while a member holds it; see core/contract/."""

    cdef omq.omq_assigned_queue *_state  # owned; freed in __dealloc__
    cdef readonly ProcessQueue process_queue
    cdef readonly LaneMap lanes
    # The GIL guards these, and without one the critical section of this object: no Python code runs
    # between a native call and the change here that goes with it.
    cdef object _lease  # as the state has it; None once that was lost
    cdef object _calling
    cdef dict _batches  # in lanes: batches by the number that tokens name them by
    cdef uint32_t _next_number
    cdef object _claim_kind  # these two are classes, perhaps with a metaclass
    cdef object _run_kind
    cdef readonly dict attempts
    cdef readonly dict outages
    cdef readonly dict failed_ms
    cdef readonly dict lane_calls
    cdef public int64_t last_claim_ms
    cdef readonly unsigned long worker
    cdef public Py_ssize_t batches_per_claim
    cdef public Py_ssize_t internal_errors
    cdef public bint auto_commit

    def __cinit__(self):
        # For those that a subclass does not initialise: no call may meet a NULL.
        self.process_queue = ProcessQueue("")
        self._open(0, 0, 0, True)
        self._batches = {}
        self._next_number = FIRST_NUMBER
        self.attempts = {}
        self.outages = {}
        self.failed_ms = {}
        self.lane_calls = {}
        self.last_claim_ms = -1
        self.batches_per_claim = 1
        self.auto_commit = True

    def __init__(
        self, name, lease, start_offset, *, claim, run, lanes=None, counts_running=True
    ):
        require_class(claim, Claim)
        require_class(run, MessageRun)
        if self._lease is not None:
            raise _errors.StateError("an AssignedQueue is made once")
        self.process_queue.name = name
        self.lanes = lanes
        self._claim_kind = claim
        self._run_kind = run
        self._open(lease.epoch, lease.deadline_ms, clamped(start_offset), counts_running)
        self._lease = lease

    cdef int _open(
        self, int64_t epoch, int64_t deadline_ms, int64_t start, bint counts_running
    ) except -1:
        cdef omq.omq_lease lease
        lease.epoch = epoch
        lease.deadline_ms = deadline_ms
        if start < 0:
            raise failure(_status.OUT_OF_RANGE, f"{self.process_queue.name}: start at {start}")
        omq.omq_assigned_queue_free(self._state)
        self._state = omq.omq_assigned_queue_new(
            self.process_queue._queue,
            NULL if self.lanes is None else self.lanes._map,
            lease, start, counts_running,
        )
        if self._state is NULL:
            raise MemoryError(f"{self.process_queue.name}: no memory for its state")
        return 0

    def __dealloc__(self):
        omq.omq_assigned_queue_free(self._state)

    # State.

    cdef inline omq.omq_assigned_queue_state _read(self):
        cdef omq.omq_assigned_queue_state state
        omq.omq_assigned_queue_read(self._state, &state)
        return state

    @property
    def stage(self):
        return self._read().stage

    @property
    def lease(self):
        with cython.critical_section(self):
            return self._lease

    @property
    def generation(self):
        return self._read().generation

    @property
    def done_offset(self):
        return self._read().done

    @property
    def committed_offset(self):
        return self._read().committed

    @property
    def position(self):
        return self._read().position

    @property
    def running_count(self):
        return self._read().running

    @property
    def is_paused(self):
        return self._read().pauses != 0

    @property
    def begins_life(self):
        return self._read().life_start >= 0

    @property
    def should_end_claim(self):
        return omq.omq_assigned_queue_is_ending(self._state)

    @property
    def isolate_until(self):
        return self._read().isolate_until

    @isolate_until.setter
    def isolate_until(self, offset):
        omq.omq_assigned_queue_isolate(self._state, clamped(offset))

    @property
    def calling(self):
        with cython.critical_section(self):
            return self._calling

    @calling.setter
    def calling(self, run):
        self._set_calling(run)

    @cython.critical_section
    cdef int _set_calling(self, object run) except -1:
        self._calling = run
        return 0

    def oldest_filled_ms(self):
        cdef int64_t stored_ms
        if omq.omq_assigned_queue_oldest_stored_ms(self._state, &stored_ms):
            return stored_ms
        return None

    @property
    def first_read(self):
        return self._known_read(True)

    @property
    def last_read(self):
        return self._known_read(False)

    cdef object _known_read(self, bint is_first):
        cdef omq.omq_read_message known
        known = omq.omq_assigned_queue_known_read(self._state, is_first)
        if known.offset < 0:
            return None
        return known.offset, known.stored_ms, known.physical_offset, known.born_ms

    def follow(self, flags):
        raise NotImplementedError

    # Claims.

    def claim(self, limit, now_ms, *, kind=0):
        cdef size_t most = at_least_one(limit, self.process_queue.name, "claim")
        cdef omq.omq_claim made
        cdef Claim claim = self._claim(
            <omq.omq_claim_kind><int>kind, most, clamped(now_ms), &made
        )
        return (claim if claim is not None else <int>made.result), made.follow

    cdef Claim _claim(
        self, omq.omq_claim_kind kind, size_t limit, int64_t now_ms, omq.omq_claim *made
    ):
        """Claim up to `limit` messages, at least 1; None: *made says why not."""
        if self.lanes is not None:
            return self._claim_lanes(kind, limit, now_ms, made)
        with cython.critical_section(self, self.process_queue):
            return self._claim_run(kind, limit, now_ms, made)

    cdef Claim _claim_run(
        self, omq.omq_claim_kind kind, size_t limit, int64_t now_ms, omq.omq_claim *made
    ):
        cdef omq.omq_segment small[SMALL]
        cdef omq.omq_segment *segments = small
        cdef size_t count
        cdef omq.omq_process_queue_state state
        cdef omq.omq_status status
        if limit > SMALL:  # see ProcessQueue._take_up_to
            omq.omq_process_queue_read(self.process_queue._queue, &state)
            limit = max(<size_t>1, min(limit, state.pending))
        if limit > SMALL:
            segments = <omq.omq_segment *>allocate(limit, sizeof(omq.omq_segment))
        try:
            status = omq.omq_assigned_queue_claim(
                self._state, kind, now_ms, limit, segments, &count, made
            )
            if status != omq.OMQ_OK:
                raise failure(status, f"{self.process_queue.name}: claim")
            if made.result != omq.OMQ_CLAIMED:
                self._note(made.follow)
                return None
            return self._claimed(
                self.process_queue._run_of(segments, count, self._run_kind), now_ms, made
            )
        finally:
            if segments is not small:
                PyMem_Free(segments)

    cdef inline Claim _claimed(self, MessageRun run, int64_t now_ms, const omq.omq_claim *made):
        cdef Claim claim = <Claim>bare_instance(<type>self._claim_kind, ())
        claim.messages = run
        claim.lease = self._lease
        claim.generation = made.generation
        self.last_claim_ms = now_ms
        self.worker = PyThread_get_thread_ident()
        return claim

    @cython.critical_section
    cdef Claim _claim_lanes(
        self, omq.omq_claim_kind kind, size_t limit, int64_t now_ms, omq.omq_claim *made
    ):
        cdef int64_t small[2 * SMALL]
        cdef int64_t *offsets = small
        cdef uint64_t *tokens
        cdef size_t count
        cdef omq.omq_status status
        cdef Claim claim
        limit = min(limit, <size_t>self.lanes.max_in_flight)
        if limit > SMALL:
            offsets = <int64_t *>allocate(limit, 2 * sizeof(int64_t))
        tokens = <uint64_t *>(offsets + limit)
        try:
            status = omq.omq_assigned_queue_claim_lanes(
                self._state, kind, now_ms, limit, offsets, tokens, &count, made
            )
            if status != omq.OMQ_OK:
                raise failure(status, f"{self.process_queue.name}: claim")
            if made.result != omq.OMQ_CLAIMED:
                self._note(made.follow)
                return None
            if count > 1 and (self.attempts or self.outages):
                count = self._told_apart(offsets, tokens, count)
                if kind == omq.OMQ_CLAIM_SHARED:
                    made.follow |= omq.omq_assigned_queue_begin_run(self._state, True)
            claim = self._claimed(self._lane_run(tokens, count), now_ms, made)
            self.lane_calls[offsets[0]] = claim.messages, now_ms, self.worker
            return claim
        finally:
            if offsets is not small:
                PyMem_Free(offsets)

    cdef size_t _told_apart(self, int64_t *offsets, uint64_t *tokens, size_t count) except 0:
        """Keep what one call may have; return how many.

        Attempts are counted per message, so one that failed before gets a call of its own: in a
        mixed call its next failure could not be attributed to one of them, and the keys of the
        others would wait for it. An outage may be of one key alone, too.
        """
        cdef size_t i
        cdef size_t kept = 0
        cdef bint is_alone = self._has_failed(offsets[0])
        for i in range(count):
            if i == 0 or not (is_alone or self._has_failed(offsets[i])):
                offsets[kept] = offsets[i]
                tokens[kept] = tokens[i]
                kept += 1
            else:
                omq.omq_lane_map_failed(self.lanes._map, offsets[i])
        return kept

    cdef inline bint _has_failed(self, int64_t offset) except -1:
        return offset in self.attempts or offset in self.outages

    cdef MessageRun _lane_run(self, const uint64_t *tokens, size_t count):
        """Return the messages of tokens as a run; neighbours are one segment."""
        cdef list segments
        cdef size_t begin = 0
        cdef size_t i
        cdef MessageRun run
        if count == 1:
            run = <MessageRun>bare_instance(<type>self._run_kind, ())
            run._index = self._batch_of(tokens[0] >> TOKEN_ROW_BITS)
            run._first = <uint32_t>tokens[0]
            run._length = 1
            return run
        segments = []
        for i in range(1, count + 1):
            if i == count or tokens[i] != tokens[i - 1] + 1:
                segments.append((
                    self._batch_of(tokens[begin] >> TOKEN_ROW_BITS), <uint32_t>tokens[begin],
                    i - begin,
                ))
                begin = i
        return self._run_kind(segments)

    cdef MessageIndex _batch_of(self, uint64_t number):
        cdef object batch = self._batches.get(number)
        if batch is None:  # the pull engine has put it
            batch = self.process_queue._lane_batch(<uint32_t>number)
            self._batches[number] = batch
        return <MessageIndex?>batch

    def divert(self, key, most, now_ms):
        cdef omq.omq_claim made
        with cython.critical_section(self):
            omq.omq_assigned_queue_enter(self._state, clamped(now_ms), False, &made)
            if made.result != omq.OMQ_CLAIMED:
                return None, 0
            _, tokens = self.lanes.divert_columns(key, most)
            return self._diverted(tokens, &made)

    cdef object _diverted(self, object tokens, const omq.omq_claim *made):
        # By its buffer: the first typed memoryview of a module brings 12,000 lines of C along.
        cdef const Py_buffer *column = PyMemoryView_GET_BUFFER(tokens)
        cdef Py_ssize_t count = column.len // <Py_ssize_t>sizeof(uint64_t)
        if count == 0:
            return None, omq.omq_assigned_queue_leave(self._state)
        return self._claimed(
            self._lane_run(<const uint64_t *>column.buf, count), self.last_claim_ms, made
        ), 0

    @cython.critical_section
    def enter(self, messages, now_ms, *, alone):
        cdef omq.omq_claim made
        omq.omq_assigned_queue_enter(self._state, clamped(now_ms), alone, &made)
        if made.result != omq.OMQ_CLAIMED:
            return None
        if alone:
            self._calling = messages
        return self._claimed(messages, clamped(now_ms), &made)

    @cython.critical_section
    def leave(self):
        self._calling = None
        return omq.omq_assigned_queue_leave(self._state)

    def holds(self, claim, now_ms):
        cdef omq.omq_assigned_queue_state state
        cdef object lease
        with cython.critical_section(self):
            state = self._read()
            lease = self._lease
        return (
            (<Claim?>claim).generation == state.generation
            and lease is not None
            and clamped(now_ms) < lease.deadline_ms
        )

    # Settlements.

    def settle(self, claim, done, now_ms, *, held=0):
        return self._settle(<Claim?>claim, done, clamped(now_ms), held)

    cdef uint32_t _settle(
        self, Claim claim, Py_ssize_t done, int64_t now_ms, Py_ssize_t held
    ) except? 0:
        cdef MessageRun run = <MessageRun>claim.messages
        cdef omq.omq_settlement settlement
        cdef omq.omq_status status
        cdef uint32_t slot
        cdef uint32_t follow
        settlement.generation = claim.generation
        settlement.now_ms = now_ms
        settlement.again_from = run._offset_at(done) if done < run._length else INT64_MAX
        settlement.held_from = run._offset_at(done - held) if held > 0 else INT64_MAX
        settlement.held = held
        settlement.commits = done > held
        with cython.critical_section(self, self.process_queue):
            status = omq.omq_assigned_queue_settle(self._state, &settlement, &slot, &follow)
            self._settled(slot, follow)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.process_queue.name}: settle")
        if follow & omq.OMQ_COUNTS and (self.failed_ms or self.attempts):
            self._forget_failures(run.offsets()[:done])
        return follow

    cdef inline int _settled(self, uint32_t slot, uint32_t follow) except -1:
        if slot != UINT32_MAX:
            self.process_queue._drop(slot)
            self.process_queue._forget()
        return self._note(follow)

    cdef inline int _note(self, uint32_t follow) except -1:
        """Forget with a lease what was claimed and buffered under it."""
        if follow & omq.OMQ_LEASE_OVER:
            self._lease = None
            self._batches.clear()
            self.process_queue._forget()
        return 0

    cdef int _forget_failures(self, list finished) except -1:
        cdef int64_t done = self._read().done
        for offset in finished:
            self.failed_ms.pop(offset, None)
            self.outages.pop(offset, None)
        # The attempts of held messages are kept: a rollback delivers them again.
        for offset in [each for each in self.attempts if each < done]:
            del self.attempts[offset]
        return 0

    def roll_back(self, claim, before):
        cdef Claim claimed = <Claim?>claim
        cdef MessageRun run = <MessageRun>claimed.messages
        cdef int64_t end = run._offset_at(before) if before else -1
        cdef omq.omq_status status
        cdef uint32_t slot
        cdef uint32_t follow
        with cython.critical_section(self, self.process_queue):
            status = omq.omq_assigned_queue_roll_back(
                self._state, claimed.generation, end, &slot, &follow
            )
            self._settled(slot, follow)
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.process_queue.name}: roll_back")
        return follow

    def finish_offsets(self, claim, offsets, *, leaves=True):
        cdef array wanted = copied_offsets(offsets)
        return self._finish(
            (<Claim?>claim).generation, INT64_MIN, <int64_t *>wanted.data.as_longlongs,
            len(wanted), len(wanted), leaves,
        )

    def finish_lanes(self, claim, done, now_ms, *, leaves):
        return self._finish_run(<Claim?>claim, done, clamped(now_ms), leaves)

    cdef uint32_t _finish_run(
        self, Claim claim, Py_ssize_t done, int64_t now_ms, bint leaves
    ) except? 0:
        """Settle a claim of which the first `done` messages are finished, by their offsets."""
        cdef int64_t small[SMALL]
        cdef int64_t *offsets = small
        cdef MessageRun run = <MessageRun>claim.messages
        cdef Py_ssize_t count = run._length
        cdef Py_ssize_t i
        cdef size_t row
        cdef MessageIndex index
        cdef uint32_t follow
        if count > SMALL:
            offsets = <int64_t *>allocate(count, sizeof(int64_t))
        try:
            for i in range(count):
                index = run._locate(i, &row)
                offsets[i] = omq.omq_message_offset(index._bytes(), &index._rows, row)
            if self.lanes is not None and leaves:
                self.lane_calls.pop(offsets[0], None)
            return self._finish(claim.generation, now_ms, offsets, count, done, leaves)
        finally:
            if offsets is not small:
                PyMem_Free(offsets)

    cdef uint32_t _finish(
        self, int64_t generation, int64_t now_ms, const int64_t *offsets, Py_ssize_t count,
        Py_ssize_t done, bint leaves,
    ) except? 0:
        cdef omq.omq_status status
        cdef uint32_t follow
        cdef Py_ssize_t i
        with cython.critical_section(self, self.process_queue):
            status = omq.omq_assigned_queue_finish(
                self._state, generation, now_ms, offsets, count, done, leaves, &follow
            )
            self.process_queue._forget()
            self._note(follow)
            if self.lanes is not None:
                self._drop_batches()
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.process_queue.name}: finish")
        if follow & omq.OMQ_COUNTS and (self.attempts or self.outages):
            for i in range(done):
                self.attempts.pop(offsets[i], None)
                self.outages.pop(offsets[i], None)
                self.failed_ms.pop(offsets[i], None)
        return follow

    cdef int _drop_batches(self) except -1:
        """Drop the bytes of batches below the watermark; a slow key keeps its batch alive."""
        cdef omq.omq_lane_map_state state
        if self._batches:
            omq.omq_lane_map_read(self.lanes._map, &state)
            while self._batches:
                first = next(iter(self._batches))
                if (<MessageIndex>self._batches[first]).last_offset >= state.watermark:
                    break
                del self._batches[first]
        return 0

    def make_again(self, claim, offsets):
        cdef array wanted = copied_offsets(offsets)
        cdef uint32_t follow
        cdef omq.omq_status status = omq.omq_assigned_queue_requeue(
            self._state, (<Claim?>claim).generation, <int64_t *>wanted.data.as_longlongs,
            len(wanted), &follow,
        )
        if status != omq.OMQ_OK:
            raise failure(status, f"{self.process_queue.name}: make_again")
        return follow

    def abandon(self):
        cdef uint32_t follow
        with cython.critical_section(self, self.process_queue):
            follow = omq.omq_assigned_queue_abandon(self._state)
            self._note(follow)
        return follow

    def recount(self, running):
        return omq.omq_assigned_queue_recount(self._state, running)

    def end_run(self):
        return omq.omq_assigned_queue_end_run(self._state)

    def begin_run(self, *, only_startable=False):
        return omq.omq_assigned_queue_begin_run(self._state, only_startable)

    # Answers.

    def accept_batch(self, generation, batch, next_offset):
        cdef MessageIndex index = <MessageIndex?>batch
        cdef size_t count = index._rows.count
        cdef omq.omq_arrival arrival
        cdef omq.omq_key_column keys
        cdef int64_t *columns = NULL
        cdef uint32_t follow
        arrival.offsets = NULL
        arrival.first = index._rows.first_offset
        arrival.sizes = index._rows.body_sizes
        arrival.count = count
        arrival.bytes = index._rows.size_bytes
        arrival.tokens = NULL
        arrival.keys = NULL
        if count > 0:
            arrival.last = omq.omq_message_last(index._bytes(), &index._rows)
        try:
            if count > 0 and (self.lanes is not None or not index._rows.is_run):
                columns = <int64_t *>allocate(count, 3 * sizeof(int64_t))
                index._read_offsets(columns)
                arrival.offsets = columns
            if count > 0 and self.lanes is not None:
                self._read_keys(index, columns + count, &keys)
                arrival.tokens = <uint64_t *>(columns + count)
                arrival.keys = &keys
            with cython.critical_section(self, self.process_queue):
                follow = self._accept(index, clamped(generation), clamped(next_offset), &arrival)
            return follow
        finally:
            PyMem_Free(columns)

    cdef int _read_keys(
        self, MessageIndex index, int64_t *columns, omq.omq_key_column *keys
    ) except -1:
        """Write tokens, and where the sharding keys lie: no object is made for a message."""
        cdef size_t count = index._rows.count
        cdef uint64_t *tokens = <uint64_t *>columns
        cdef uint32_t *positions = <uint32_t *>(columns + count)
        cdef uint32_t *sizes = positions + count
        cdef size_t i
        omq.omq_message_find_property(
            index._bytes(), &index._rows, &SHARDING_KEY, positions, sizes
        )
        for i in range(count):
            tokens[i] = <uint64_t>self._next_number << TOKEN_ROW_BITS | i
            if sizes[i] == 0:
                sizes[i] = UINT32_MAX  # no key
        keys.bytes = index._bytes()
        keys.size = len(index.body)
        keys.positions = positions
        keys.sizes = sizes
        return 0

    cdef uint32_t _accept(
        self, MessageIndex index, int64_t generation, int64_t next_offset,
        omq.omq_arrival *arrival,
    ) except? 0:
        cdef uint32_t slot
        cdef uint32_t follow
        cdef omq.omq_status status
        if self.lanes is not None and arrival.count > 0:
            # Before the native call, which makes tokens that lead to it; also without memory.
            self._batches[self._next_number] = index
        self.process_queue._have_place()
        status = omq.omq_assigned_queue_accept(
            self._state, generation, next_offset, arrival, &slot, &follow
        )
        if self.lanes is not None and arrival.count > 0:
            if status == omq.OMQ_OK and not follow & omq.OMQ_COUNTS:
                del self._batches[self._next_number]
            self._next_number = FIRST_NUMBER | (self._next_number + 1)
        self.process_queue._keep(index, slot, status)
        return follow

    def skip(self, generation, next_offset):
        omq.omq_assigned_queue_skip(self._state, clamped(generation), clamped(next_offset))

    def wait_for_room(self, below):
        return omq.omq_assigned_queue_wait_for_room(self._state, max(clamped(below), 0))

    # Leases and offsets.

    @cython.critical_section
    def renew_lease(self, generation, lease):
        cdef omq.omq_lease wanted
        wanted.epoch = lease.epoch
        wanted.deadline_ms = lease.deadline_ms
        if not omq.omq_assigned_queue_renew(self._state, clamped(generation), wanted):
            return False
        if self._lease is not None and wanted.deadline_ms > <int64_t>self._lease.deadline_ms:
            self._lease = lease
        return True

    def lose(self, generation=None):
        cdef int64_t wanted = -1 if generation is None else clamped(generation)
        cdef uint32_t follow
        if generation is not None and wanted < 0:
            return 0
        with cython.critical_section(self, self.process_queue):
            follow = omq.omq_assigned_queue_lose(self._state, wanted)
            self._note(follow)
        return follow

    def regain(self, lease, start_offset):
        cdef omq.omq_lease wanted
        wanted.epoch = lease.epoch
        wanted.deadline_ms = lease.deadline_ms
        with cython.critical_section(self, self.process_queue):
            if not omq.omq_assigned_queue_regain(self._state, wanted, clamped(start_offset)):
                return False
            self._lease = lease
            self._restarted()
        return True

    @cython.critical_section
    def rest(self, lease, epoch):
        cdef omq.omq_lease wanted
        wanted.epoch = lease.epoch
        wanted.deadline_ms = lease.deadline_ms
        if not omq.omq_assigned_queue_rest(self._state, wanted, epoch):
            return False
        self._lease = lease
        return True

    def reposition(self, generation, offset):
        with cython.critical_section(self, self.process_queue):
            if not omq.omq_assigned_queue_reposition(
                self._state, clamped(generation), clamped(offset)
            ):
                return False
            self._restarted()
        return True

    cdef int _restarted(self) except -1:
        # Another member may have had the queue in between, so attempts start again, as after any
        # take-over. No call runs: nothing of the old generation is counted any more.
        self._batches.clear()
        self.attempts.clear()
        self.outages.clear()
        self.failed_ms.clear()
        self.process_queue._forget()
        return 0

    def uncommitted(self, now_ms):
        cdef int64_t offset
        with cython.critical_section(self):
            if omq.omq_assigned_queue_uncommitted(self._state, clamped(now_ms), &offset):
                return offset, self._lease
        return None

    def committed(self, offset, lease):
        omq.omq_assigned_queue_committed(self._state, clamped(offset), lease.epoch)

    def set_done_offset(self, generation, offset):
        omq.omq_assigned_queue_set_done(self._state, clamped(generation), clamped(offset))

    def begin_life(self, offset):
        return omq.omq_assigned_queue_begin_life(self._state, clamped(offset))

    # Pauses, revocation.

    def pause_for(self, reasons, *, ends_run=False):
        omq.omq_assigned_queue_pause(self._state, reasons, ends_run)

    def resume_from(self, reasons):
        return omq.omq_assigned_queue_resume(self._state, reasons)

    def end_claim(self):
        omq.omq_assigned_queue_end_claim(self._state)

    def revoke(self):
        return omq.omq_assigned_queue_revoke(self._state)

    def discard(self):
        with cython.critical_section(self, self.process_queue):
            omq.omq_assigned_queue_discard(self._state)
            self._note(omq.OMQ_LEASE_OVER)

    def _check(self):
        cdef const char *broken = omq.omq_assigned_queue_check(self._state)
        if broken is not NULL:
            raise AssertionError(f"{self.process_queue.name}: {broken.decode()}: {self._read()}")
