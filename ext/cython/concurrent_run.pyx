@cython.final
cdef class ConcurrentPlan:
    """Values that all runs of a concurrent dispatcher share; see core/contract/."""

    cdef CallPlan _calls
    cdef object _claim  # a class, perhaps with a metaclass
    cdef object _running_call
    cdef object _active
    cdef object _draining
    cdef object _is_closed
    cdef int64_t _most_ms
    cdef Py_ssize_t _most_messages

    def __init__(
        self,
        *,
        CallPlan calls not None,
        claim,
        running_call,
        active,
        draining,
        is_closed,
        int64_t most_ms,
        Py_ssize_t most_messages,
    ):
        require_class(claim, Claim)
        self._calls = calls
        self._claim = claim
        self._running_call = running_call
        self._active = active
        self._draining = draining
        self._is_closed = is_closed
        self._most_ms = most_ms
        self._most_messages = most_messages


@cython.final
cdef class ConcurrentRun:
    """Batches of one queue, each claimed, called and settled by itself; see core/contract/."""

    cdef ConcurrentPlan _plan
    cdef QueueFields _assigned
    cdef ProcessQueue _queue
    cdef object _lock  # of the queue
    cdef object _submit
    # The call in progress. Whoever sets it to None settles the call: this worker, or the watch for
    # slow listeners, each in a critical section of this object. So are the counts below.
    cdef CallContext _context
    cdef Claim _claim
    cdef int64_t _since_ms
    cdef object _thread
    cdef object _lease  # of the last claim, and its deadline
    cdef int64_t _deadline_ms
    cdef int64_t _now_ms
    cdef int64_t _end_ms
    cdef Py_ssize_t _left  # messages that may still be claimed
    cdef bint _has_begun
    cdef bint _is_reset  # the count of internal errors in a row
    cdef readonly Py_ssize_t calls
    cdef Py_ssize_t _batches
    cdef Py_ssize_t _messages
    cdef int64_t _spent_ms

    def __init__(self, ConcurrentPlan plan not None, QueueFields assigned not None, submit):
        self._plan = plan
        self._assigned = assigned
        self._queue = <ProcessQueue?>assigned.process_queue
        self._lock = assigned._lock
        self._submit = submit
        self._thread = PyThread_get_thread_ident()
        self._now_ms = plan._calls._now_ms()
        self._end_ms = self._now_ms + plan._most_ms
        self._left = plan._most_messages

    @property
    def assigned(self):
        return self._assigned

    @property
    def call(self):
        cdef object messages
        cdef int64_t since_ms
        with cython.critical_section(self):
            if self._context is None:
                return None
            messages = self._claim.messages
            since_ms = self._since_ms
        return self._plan._running_call(self._assigned, messages, since_ms, self._thread)

    @cython.critical_section
    def take(self, messages):
        if self._context is None or self._claim.messages is not messages:
            return None
        return self._taken()

    def let_go(self):
        self._take()

    @cython.critical_section
    def take_counts(self):
        counts = self._batches, self._messages, self._spent_ms
        self._batches = self._messages = self._spent_ms = 0
        return counts

    cdef inline CallContext _taken(self):
        cdef CallContext context = self._context
        self._context = None
        return context

    @cython.critical_section
    cdef CallContext _take(self):
        return self._taken()

    @cython.critical_section
    cdef CallContext _current(self):
        return self._context

    cdef CallContext _begin(self):
        """Claim the first batch, which answers the dispatch flag; None: there is none."""
        cdef QueueFields assigned = self._assigned
        cdef object claim = None
        cdef MessageRun run
        cdef bint has_more = False
        self._has_begun = True
        self._lock.acquire()
        try:
            if self._may_claim():
                run = self._queue._take_run(self._plan._calls._size, self._plan._calls._run)
                if run is None:
                    return None  # the take has cleared the dispatch flag
                claim = self._claimed(run, assigned._running)
                # As `has_more` does it: the pull engine may put in between.
                omq.omq_process_queue_end_dispatch(self._queue._queue)
                has_more = omq.omq_process_queue_begin_dispatch(self._queue._queue)
        finally:
            self._lock.release()
        if claim is None:  # whatever is not just a claim; nothing has changed yet
            claim = assigned.begin_batch(self._plan._calls._size, self._now_ms)
            if not isinstance(claim, self._plan._claim):
                return None
            has_more = assigned.has_more()
        elif not has_more:
            assigned._on_idle()
        # Before the call: the next worker claims the next batch while this one runs.
        if has_more:
            self._submit(assigned)
        return self._registered(<Claim>claim)

    cdef CallContext _go_on(self):
        """Settle the call that has just succeeded, and claim the next batch; None: the run ends.

        A further claim leaves the dispatch flag alone: while it is set, a request waits in the
        pool, and whoever serves that finds what is left, or nothing.
        """
        cdef QueueFields assigned = self._assigned
        cdef Claim claim = self._claim
        cdef Claim following = None
        cdef MessageRun run = None
        cdef Py_ssize_t count = (<MessageRun>claim.messages)._length
        cdef Py_ssize_t running
        cdef bint is_drained
        cdef bint has_room = False
        if self._take() is None:
            return None  # its messages are sent back; the result comes too late
        self._now_ms = self._plan._calls._now_ms()
        self._count(count)
        if not self._is_reset:
            self._is_reset = True
            assigned.internal_errors = 0
        self._lock.acquire()
        try:
            if claim.generation == assigned._generation:
                self._remove(<MessageRun>claim.messages, count)
            running = max(assigned._running - 1, 0)
            if self._left > 0 and self._now_ms < self._end_ms and self._has_pending():
                if self._may_claim():
                    run = self._queue._take_run(self._plan._calls._size, self._plan._calls._run)
            if run is None:
                assigned._running = running
            else:
                following = self._claimed(run, running)
            is_drained = assigned._state_field is self._plan._draining and running == 0
            if assigned._room_below and self._queue.message_count < assigned._room_below:
                assigned._room_below = 0
                has_room = True
        finally:
            self._lock.release()
        if is_drained or has_room:
            assigned._notify(False, is_drained, has_room)
        if following is None:
            assigned._on_idle()
            return None
        return self._registered(following)

    @cython.critical_section
    cdef int _count(self, Py_ssize_t messages) except -1:
        self._batches += 1
        self._messages += messages
        self._spent_ms += self._now_ms - self._since_ms
        return 0

    # Under the lock of the queue.

    cdef bint _may_claim(self) except -1:
        """Return False where more than a claim follows, or nothing may be claimed."""
        cdef QueueFields assigned = self._assigned
        cdef object lease = assigned._lease_field
        if assigned._state_field is not self._plan._active or lease is None or assigned._paused:
            return False
        if lease is not self._lease:
            self._lease = lease
            self._deadline_ms = lease.deadline_ms
        return self._now_ms < self._deadline_ms

    cdef inline bint _has_pending(self) noexcept:
        cdef omq.omq_process_queue_state state
        omq.omq_process_queue_read(self._queue._queue, &state)
        return state.pending > 0

    cdef Claim _claimed(self, MessageRun run, Py_ssize_t running):
        cdef QueueFields assigned = self._assigned
        cdef Claim claim = <Claim>bare_instance(<type>self._plan._claim, ())
        claim.messages = run
        claim.lease = self._lease
        claim.generation = assigned._generation
        assigned._running = running + 1
        assigned.should_end_claim = False
        assigned.last_claim_ms = self._now_ms
        assigned.worker = self._thread
        return claim

    cdef int _remove(self, MessageRun run, Py_ssize_t count) except -1:
        cdef int64_t small[SMALL]
        cdef int64_t *offsets = small
        cdef int64_t done
        cdef size_t row
        cdef Py_ssize_t i
        cdef MessageIndex index
        if count > SMALL:
            offsets = <int64_t *>allocate(count, sizeof(int64_t))
        try:
            for i in range(count):
                index = run._locate(i, &row)
                offsets[i] = omq.omq_message_offset(index._bytes(), &index._rows, row)
            done = self._queue._remove(offsets, count)
        finally:
            if offsets is not small:
                PyMem_Free(offsets)
        # With nothing left, what the filter left out behind the last message is done, too.
        done = omq.omq_process_queue_done_after(self._queue._queue, done)
        if done > self._assigned._done_offset:
            self._assigned._done_offset = done
        return 0

    # Without the lock.

    cdef CallContext _registered(self, Claim claim):
        """Make the context of a claim's call, from now on the call in progress."""
        cdef CallPlan calls = self._plan._calls
        cdef MessageRun run = <MessageRun>claim.messages
        cdef object attempts = self._assigned.attempts
        cdef CallContext context = <CallContext>bare_instance(<type>calls._context, ())
        context._assigned = self._assigned
        context.claim = claim
        context.messages = run
        context.attempt = attempts.get(run._offset_at(0), 0) if attempts else 0
        context._begin()
        if calls._on_start is not None:
            calls._on_start(context)
        self.calls += 1
        self._left -= run._length
        with cython.critical_section(self):
            self._since_ms = self._now_ms
            self._claim = claim
            self._context = context
        return context

    def perform(self, listener, runtime, awaited):
        cdef CallPlan calls = self._plan._calls
        cdef CallContext context = self._begin()
        while context is not None:
            try:
                value = listener(context.messages, context)
            # BaseException: a listener's sys.exit() must fail its batch, not end the worker.
            except BaseException as error:
                return context, (None, error)
            if (
                (value is not calls._success and value is not calls._other_success)
                or calls._is_judged
                or context._ack is not None
            ):
                return context, calls._outcome_of(value, awaited)
            context = self._go_on()
        return None

    def perform_async(self, listener, runtime):
        return self._plan._calls._call_async(self, listener)

    # The contexts of an `async def` listener, whose calls are awaited in Python. Asking for the
    # next one says that the call before has succeeded.

    def __iter__(self):
        return self

    def __next__(self):
        cdef CallContext context
        if not self._has_begun:
            context = self._begin()
        else:
            context = self._current()
            # What the listener has limited the dispatcher judges; behind a close nothing counts.
            if (context is not None and context._ack is not None) or self._plan._is_closed():
                raise StopIteration
            context = self._go_on()
        if context is None:
            raise StopIteration
        return context
