@cython.final
cdef class ConcurrentPlan:
    """Values that all runs of a concurrent dispatcher share; see core/contract/."""

    cdef CallPlan _calls
    cdef object _running_call
    cdef object _is_closed
    cdef int64_t _most_ms
    cdef Py_ssize_t _most_messages

    def __init__(
        self,
        *,
        CallPlan calls not None,
        running_call,
        is_closed,
        int64_t most_ms,
        Py_ssize_t most_messages,
    ):
        self._calls = calls
        self._running_call = running_call
        self._is_closed = is_closed
        self._most_ms = most_ms
        self._most_messages = most_messages


@cython.final
cdef class ConcurrentRun:
    """Batches of one queue, each claimed, called and settled by itself; see core/contract/."""

    cdef ConcurrentPlan _plan
    cdef AssignedQueue _assigned
    cdef object _submit
    # The call in progress. Whoever sets it to None settles the call: this worker, or the watch for
    # slow listeners, each in a critical section of this object. So are the counts below.
    cdef CallContext _context
    cdef Claim _claim
    cdef int64_t _since_ms
    cdef object _thread
    cdef int64_t _now_ms
    cdef int64_t _end_ms
    cdef Py_ssize_t _left  # messages that may still be claimed
    cdef bint _has_begun
    cdef bint _is_reset  # the count of internal errors in a row
    cdef readonly Py_ssize_t calls
    cdef Py_ssize_t _batches
    cdef Py_ssize_t _messages
    cdef int64_t _spent_ms

    def __init__(self, ConcurrentPlan plan not None, AssignedQueue assigned not None, submit):
        self._plan = plan
        self._assigned = assigned
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
        self._has_begun = True
        return self._claimed(omq.OMQ_CLAIM_SHARED)

    cdef CallContext _go_on(self):
        """Settle the call that has just succeeded, and claim the next batch; None: the run ends.

        A further claim leaves the dispatch flag alone: while it is set, a request waits in the
        pool, and whoever serves that finds what is left, or nothing.
        """
        cdef AssignedQueue assigned = self._assigned
        cdef Claim claim = self._claim
        cdef Py_ssize_t count = (<MessageRun>claim.messages)._length
        cdef uint32_t follow
        if self._take() is None:
            return None  # its messages are sent back; the result comes too late
        self._now_ms = self._plan._calls._now_ms()
        self._count(count)
        if not self._is_reset:
            self._is_reset = True
            assigned.internal_errors = 0
        follow = assigned._finish_run(claim, count, INT64_MIN, True)
        if follow & ~<uint32_t>omq.OMQ_COUNTS:
            assigned.follow(follow)
        if follow & omq.OMQ_IDLE or self._left <= 0 or self._now_ms >= self._end_ms:
            return None
        return self._claimed(omq.OMQ_CLAIM_FURTHER)

    @cython.critical_section
    cdef int _count(self, Py_ssize_t messages) except -1:
        self._batches += 1
        self._messages += messages
        self._spent_ms += self._now_ms - self._since_ms
        return 0

    cdef CallContext _claimed(self, omq.omq_claim_kind kind):
        """Claim a batch and make the context of its call; None: there is none."""
        cdef AssignedQueue assigned = self._assigned
        cdef omq.omq_claim made
        cdef Claim claim = assigned._claim(kind, self._plan._calls._size, self._now_ms, &made)
        if made.follow & ~<uint32_t>omq.OMQ_DISPATCH:
            assigned.follow(made.follow & ~<uint32_t>omq.OMQ_DISPATCH)
        # Before the call: the next worker claims the next batch while this one runs.
        if made.follow & omq.OMQ_DISPATCH:
            self._submit(assigned)
        return None if claim is None else self._registered(claim)

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
