cdef class CallContext:
    """The values of one listener call; see core/contract/."""

    cdef public object _assigned
    cdef public object claim
    cdef public object messages
    cdef public object attempt
    cdef object _suspend
    cdef object _ack
    cdef object _delay

    def __init__(self, assigned, claim, messages, attempt):
        self._assigned = assigned
        self.claim = claim
        self.messages = messages
        self.attempt = attempt
        self._begin()

    cdef inline int _begin(self) except -1:
        self._suspend = -1
        self._delay = 0
        return 0

    # In critical sections: threads of a listener's may set them while its call is settled.
    @property
    def suspend_ms(self):
        with cython.critical_section(self):
            return self._suspend

    @suspend_ms.setter
    def suspend_ms(self, value):
        with cython.critical_section(self):
            self._suspend = value

    # Of concurrent calls, whose context shows them without the underscore.
    @property
    def _ack_index(self):
        with cython.critical_section(self):
            return self._ack

    @_ack_index.setter
    def _ack_index(self, value):
        with cython.critical_section(self):
            self._ack = value

    @property
    def _delay_level(self):
        with cython.critical_section(self):
            return self._delay

    @_delay_level.setter
    def _delay_level(self, value):
        with cython.critical_section(self):
            self._delay = value


@cython.final
cdef class CallPlan:
    """Values that the calls of all claims of a dispatcher share; see core/contract/."""

    cdef object _run  # these two are classes, perhaps with a metaclass
    cdef object _context
    cdef Py_ssize_t _size
    cdef object _clock_ms
    cdef clockid_t _clock_id
    cdef bint _is_system_time
    cdef bint _is_judged
    cdef object _success
    cdef object _other_success
    cdef object _on_start
    cdef object _outcome_of
    cdef object _call_async

    def __init__(
        self,
        *,
        run,
        context,
        Py_ssize_t size,
        clock_ms,
        clock_id,
        bint is_judged,
        success,
        other_success,
        on_start,
        outcome_of,
        call_async,
    ):
        require_class(run, MessageRun)
        require_class(context, CallContext)
        if size < 1:
            raise ValueError(f"calls of {size} messages: expected 1 or more")
        self._run = run
        self._context = context
        self._size = size
        self._clock_ms = clock_ms
        self._is_system_time = clock_id is not None
        self._clock_id = clock_id if clock_id is not None else 0
        self._is_judged = is_judged
        self._success = success
        self._other_success = other_success
        self._on_start = on_start
        self._outcome_of = outcome_of
        self._call_async = call_async

    cdef inline int64_t _now_ms(self) except? -1:
        cdef timespec now
        if not self._is_system_time:
            return self._clock_ms()
        clock_gettime(self._clock_id, &now)
        return <int64_t>now.tv_sec * 1000 + <int64_t>now.tv_nsec // 1000000


@cython.final
cdef class BatchCalls:
    """Calls the listener for the batches of one claim; see core/contract/."""

    cdef CallPlan _plan
    cdef AssignedQueue _assigned
    cdef object _claim
    cdef _Parts _parts  # None once the claim has ended early
    cdef object _attempts
    cdef int64_t _before_ms
    cdef Py_ssize_t _called  # messages of the last batch handed out, until it counts as done
    cdef readonly Py_ssize_t batches
    cdef readonly Py_ssize_t messages

    def __init__(
        self, CallPlan plan not None, AssignedQueue assigned not None, claim, int64_t until_ms
    ):
        self._begin(plan, assigned, claim, until_ms, claim.lease.deadline_ms)

    cdef int _begin(
        self,
        CallPlan plan,
        AssignedQueue assigned,
        object claim,
        int64_t until_ms,
        int64_t deadline_ms,
    ) except -1:
        cdef MessageRun run = claim.messages
        self._plan = plan
        self._assigned = assigned
        self._claim = claim
        self._parts = run.cut(plan._run, plan._size)
        self._attempts = assigned.attempts
        # Not after the lease either: each batch must start under a valid one.
        self._before_ms = min(until_ms + 1, deadline_ms)
        return 0

    cdef CallContext _next(self):
        """Return the context of the next batch; None: there is none, or none may begin."""
        cdef MessageRun run
        cdef CallContext context
        if self._called:
            self.messages += self._called
            self.batches += 1
            self._called = 0
        if self._parts is None:
            return None
        run = next(self._parts, None)
        if run is None:
            return None
        if self.batches and (
            omq.omq_assigned_queue_is_ending(self._assigned._state) or self._plan._now_ms() >= self._before_ms
        ):
            self._parts = None
            return None
        context = <CallContext>bare_instance(<type>self._plan._context, ())
        context._assigned = self._assigned
        context.claim = self._claim
        context.messages = run
        context.attempt = self._attempts.get(run.first_offset, 0) if self._attempts else 0
        context._begin()
        self._assigned._set_calling(run)
        if self._plan._on_start is not None:
            self._plan._on_start(context)
        self._called = run._length
        return context

    def __iter__(self):
        return self

    def __next__(self):
        cdef CallContext context = self._next()
        if context is None:
            raise StopIteration
        return context

    def perform(self, listener, runtime, awaited):
        cdef CallPlan plan = self._plan
        cdef CallContext context
        while True:
            context = self._next()
            if context is None:
                return None
            try:
                value = listener(context.messages, context)
            # BaseException: a listener's sys.exit() must fail its batch, not end the worker.
            except BaseException as error:
                return context, (None, error)
            if (
                value is not plan._success and value is not plan._other_success
            ) or plan._is_judged:
                return context, plan._outcome_of(value, awaited)

    def perform_async(self, listener, runtime):
        return self._plan._call_async(self, listener)


@cython.final
cdef class RunPlan:
    """Values that all runs of a dispatcher share; see core/contract/."""

    cdef CallPlan _calls
    cdef object _over
    cdef object _submit
    cdef object _perform_async
    cdef int64_t _most_ms
    cdef int64_t _quick_ms
    cdef Py_ssize_t _most_batches

    def __init__(
        self,
        *,
        CallPlan calls not None,
        over,
        submit,
        int64_t most_ms,
        int64_t quick_ms,
        Py_ssize_t most_batches,
        perform_async,
    ):
        self._calls = calls
        self._over = over
        self._submit = submit
        self._most_ms = most_ms
        self._quick_ms = quick_ms
        self._most_batches = most_batches
        self._perform_async = perform_async


@cython.final
cdef class OrderlyRun:
    """Claims of one queue, called and settled one after the other; see core/contract/."""

    cdef RunPlan _plan
    cdef readonly AssignedQueue assigned
    cdef object _goes_on
    cdef Claim _claim  # None between two claims
    cdef BatchCalls _calls
    cdef object _lease  # the one that was seen last, and its deadline
    cdef int64_t _deadline_ms
    cdef int64_t _started_ms
    cdef int64_t _begun_ms  # of the claim
    cdef readonly int64_t now_ms
    cdef readonly object end
    cdef readonly bint is_running
    cdef public bint commits
    cdef public bint is_open
    # Guarded by the GIL, and without one by the critical section of this object.
    cdef Py_ssize_t _batches
    cdef Py_ssize_t _messages
    cdef int64_t _spent_ms

    def __init__(self, RunPlan plan not None, AssignedQueue assigned not None, goes_on):
        self._plan = plan
        self.assigned = assigned
        self._goes_on = goes_on

    @property
    def calls(self):
        return self._calls

    def begin(self):
        self._started_ms = self.now_ms = self._plan._calls._now_ms()
        self.is_running = True
        self.is_open = False
        self.end = None

    def rest(self):
        self.is_running = False
        # They hold messages, which shall not live until the queue's next run.
        self._claim = None
        self._calls = None

    @cython.critical_section
    def take_counts(self):
        counts = self._batches, self._messages, self._spent_ms
        self._batches = self._messages = self._spent_ms = 0
        return counts

    @cython.critical_section
    cdef int _count(self, Py_ssize_t batches, Py_ssize_t messages, int64_t spent_ms) except -1:
        self._batches += batches
        self._messages += messages
        self._spent_ms += spent_ms
        return 0

    def count_failed(self, Py_ssize_t done):
        self._count(
            self._calls.batches + 1,
            self._calls.messages + done,
            self._plan._calls._now_ms() - self._begun_ms,
        )

    def advance(self):
        return self._advance()

    cdef bint _advance(self) except -1:
        """Settle the claim whose calls are done, and claim again; False: the run ends here."""
        cdef uint32_t follow
        if self.is_open or self.end is not None:
            return self.is_open
        if self._claim is not None:
            if not self._settle():
                self.end = self._plan._over
                return False
            if not self._goes_on(self._calls.batches):
                # Submitting a run to find out that there is no more costs as much as a pull.
                follow = omq.omq_assigned_queue_end_run(self.assigned._state)
                if follow & omq.OMQ_IDLE:
                    self.assigned.follow(follow)
                self.end = self._plan._submit if follow & omq.OMQ_DISPATCH else self._plan._over
                return False
        if self.now_ms - self._started_ms > self._plan._most_ms:
            self.end = self._plan._submit
            return False
        if not self._begin():
            self.end = self._plan._over
            return False
        return True

    cdef bint _begin(self) except -1:
        cdef AssignedQueue assigned = self.assigned
        cdef CallPlan calls = self._plan._calls
        cdef omq.omq_claim made
        cdef Claim claim = assigned._claim(
            omq.OMQ_CLAIM_ALONE, calls._size * assigned.batches_per_claim, self.now_ms, &made
        )
        if claim is None:  # the queue cleared its dispatch flag together with the refusal
            if made.follow:
                assigned.follow(made.follow)
            return False
        if claim.lease is not self._lease:
            self._lease = claim.lease
            self._deadline_ms = claim.lease.deadline_ms
        self._claim = claim
        self._begun_ms = self.now_ms
        self.commits = False
        assigned.auto_commit = True  # a listener may change it, for one call
        self._calls = BatchCalls.__new__(BatchCalls)
        self._calls._begin(
            calls, assigned, claim, self.now_ms + self._plan._quick_ms, self._deadline_ms
        )
        self.is_open = True
        return True

    cdef bint _settle(self) except -1:
        cdef AssignedQueue assigned = self.assigned
        cdef RunPlan plan = self._plan
        cdef Claim claim = self._claim
        cdef BatchCalls calls = self._calls
        cdef int64_t spent_ms
        cdef Py_ssize_t held = 0
        cdef uint32_t follow
        assigned.internal_errors = 0
        self.now_ms = plan._calls._now_ms()
        spent_ms = self.now_ms - self._begun_ms
        self._count(calls.batches, calls.messages, spent_ms)
        # Doubled up to the maximum in eight claims; one slow claim starts over.
        if spent_ms > plan._quick_ms:
            assigned.batches_per_claim = 1
        else:
            assigned.batches_per_claim = min(
                2 * assigned.batches_per_claim, plan._most_batches
            )
        self._claim = None
        if not assigned.auto_commit and not self.commits and assigned._calling is not None:
            held = len(assigned._calling)
        follow = assigned._settle(claim, calls.messages, self.now_ms, held)
        if follow & ~<uint32_t>omq.OMQ_COUNTS:
            assigned.follow(follow)
        return follow & omq.OMQ_COUNTS

    def perform(self, listener, runtime, awaited):
        cdef object called
        while self._advance():
            called = self._calls.perform(listener, runtime, awaited)
            self.is_open = called is not None
            if self.is_open:
                return called
        return None

    def perform_async(self, listener, runtime):
        return self._plan._perform_async(self, listener, runtime)
