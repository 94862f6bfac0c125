cdef extern from "Python.h":
    bint PyCoro_CheckExact(object value)
    # A PySendResult: PYGEN_ERROR is -1, PYGEN_RETURN 0 and PYGEN_NEXT 1.
    int PyIter_Send(object coroutine, object value, PyObject **result) except -1



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

    # In critical sections: threads of a listener's may set them while its call is settled. Contexts
    # show them without the underscore, and look at what is set.
    @property
    def _suspend_ms(self):
        with cython.critical_section(self):
            return self._suspend

    @_suspend_ms.setter
    def _suspend_ms(self, value):
        with cython.critical_section(self):
            self._suspend = value

    # Set by concurrent calls alone.
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


cdef class _ListenerAround:
    # A listener with something around each call. The loop calls it, and it calls another one,
    # without a tuple of arguments.
    cdef object _listener
    cdef _ListenerAround _inner  # the same, if it is one of these

    cdef int _set_listener(self, listener) except -1:
        self._listener = listener
        if isinstance(listener, _ListenerAround):
            self._inner = <_ListenerAround>listener
        return 0

    cdef inline object _call_listener(self, messages, CallContext context):
        if self._inner is not None:
            return self._inner._perform(messages, context)
        return self._listener(messages, context)

    cdef object _perform(self, messages, CallContext context):
        raise NotImplementedError

    def __call__(self, messages, CallContext context not None):
        return self._perform(messages, context)


@cython.final
cdef class ConsumePlan:
    """The rules of a dispatcher, read once for all of its runs; see core/contract/."""

    cdef object _run  # these two are classes, perhaps with a metaclass
    cdef object _context
    cdef Py_ssize_t _size
    cdef bint _is_shared
    cdef bint _is_ordered
    cdef bint _auto_commit
    cdef bint _commits_each
    cdef Py_ssize_t _most_batches
    cdef int64_t _quick_ms
    cdef int64_t _most_ms
    cdef Py_ssize_t _most_unreported
    cdef int64_t _hold_ns
    cdef object _clock_ms
    cdef clockid_t _clock_id
    cdef bint _is_system_time
    cdef bint _is_judged
    cdef object _success
    cdef object _other_success
    cdef object _on_start
    cdef EventLines _lines
    cdef int64_t _lane
    cdef object _line_head
    cdef object _on_started
    cdef object _on_succeeded
    cdef object _outcome_of
    cdef object _outcome_raised
    cdef object _awaiting
    cdef object _is_closed

    def __init__(self, rules):
        require_class(rules.run, MessageRun)
        require_class(rules.context, CallContext)
        self._run = rules.run
        self._context = rules.context
        self._size = at_least_one(rules.size, "ConsumePlan", "calls")
        self._is_shared = rules.is_shared
        self._is_ordered = rules.is_ordered
        self._auto_commit = rules.auto_commit
        self._commits_each = rules.commits_each
        self._most_batches = rules.most_batches
        self._quick_ms = rules.quick_ms
        self._most_ms = rules.most_ms
        self._most_unreported = rules.most_unreported
        self._hold_ns = rules.hold_ns
        self._clock_ms = rules.clock_ms
        self._is_system_time = rules.clock_id is not None
        self._clock_id = rules.clock_id if rules.clock_id is not None else 0
        self._is_judged = rules.is_judged
        self._success = rules.success
        self._other_success = rules.other_success
        self._on_start = rules.on_start
        if rules.records is not None:
            self._lines = rules.records.lines
            self._lane = rules.records.lane
            self._line_head = rules.records.line_head
            self._on_started = rules.records.started
            self._on_succeeded = rules.records.succeeded
        self._outcome_of = rules.outcome_of
        self._outcome_raised = rules.outcome_raised
        self._awaiting = rules.awaiting
        self._is_closed = rules.is_closed

    cdef inline int64_t _now(self) except? -1:
        return system_ms(self._clock_id) if self._is_system_time else self._clock_ms()


@cython.final
cdef class ConsumeRun:
    """Claims, calls and settlements of one queue, one after the other; see core/contract/."""

    cdef ConsumePlan _plan
    cdef readonly AssignedQueue assigned
    cdef object _report_calls
    cdef object _submit
    # The call in progress. Whoever sets the context to None settles the call: the worker, or the
    # watch for slow listeners, each in a critical section of this object. So are the counts below.
    cdef CallContext _context
    cdef MessageRun _batch  # of the call made last; None once that was looked at
    cdef Claim _claim
    cdef unsigned long _thread
    cdef Py_ssize_t _calls
    cdef Py_ssize_t _messages
    cdef int64_t _spent_ms
    # What follows is the worker's alone.
    cdef _Parts _parts  # further batches of the claim; None: there are none
    cdef MessageRun _following  # the next one of them, if it begins
    cdef object _lease  # the one that was seen last, and its deadline
    cdef int64_t _deadline_ms
    cdef object _line_lease  # the one that the head of lines was made for
    cdef bytes _line_head
    cdef bint _has_succeeded  # the call in progress, simply
    cdef int64_t _before_ms  # no further batch of the claim begins at this time
    cdef Py_ssize_t _last_size  # messages of the call that was done last
    cdef omq.omq_claim_kind _kind  # of the next claim
    cdef Py_ssize_t _unreported  # calls that the pool was not told of
    cdef int64_t _reported_ms
    cdef int64_t _started_ms
    cdef int64_t _now_ms
    cdef readonly int64_t claimed_ms
    cdef readonly Py_ssize_t done_calls
    cdef readonly Py_ssize_t done_messages
    cdef readonly bint is_running
    cdef readonly bint has_ended
    cdef readonly bint submits
    cdef readonly bint wants_commit
    cdef public bint commits

    def __init__(
        self, ConsumePlan plan not None, AssignedQueue assigned not None, report_calls, submit
    ):
        self._plan = plan
        self.assigned = assigned
        self._report_calls = report_calls
        self._submit = submit

    @property
    def claim(self):
        with cython.critical_section(self):
            return self._claim

    @property
    def call(self):
        with cython.critical_section(self):
            if self._context is None or self._batch is None:
                return None
            return self._batch, self.claimed_ms, self._thread

    def begin(self):
        self.rest()
        self.is_running = True
        self._thread = PyThread_get_thread_ident()
        self._started_ms = self._reported_ms = self._now_ms = self._plan._now()
        self._kind = omq.OMQ_CLAIM_SHARED if self._plan._is_shared else omq.OMQ_CLAIM_ALONE
        self._unreported = 0
        self.has_ended = self.submits = self.wants_commit = False

    @cython.critical_section
    def rest(self):
        self.is_running = False
        # They hold messages, which shall not live until the queue's next run.
        self._context = None
        self._batch = None
        self._claim = None
        self._parts = self._following = None
        self._has_succeeded = False
        self.done_calls = self.done_messages = 0

    @cython.critical_section
    def take(self, messages):
        if self._context is None or self._batch is not messages:
            return None
        return self._taken()

    cdef inline CallContext _taken(self):
        cdef CallContext context = self._context
        self._context = None
        self._claim = None
        return context

    @cython.critical_section
    def take_counts(self):
        counts = self._calls, self._messages, self._spent_ms
        self._calls = self._messages = self._spent_ms = 0
        return counts

    cdef bint _advance(self) except -1:
        """Settle what has simply succeeded; False: no call follows now."""
        cdef MessageRun batch
        if self.has_ended:
            return False
        if self._batch is not None:
            batch = self._batch
            self._now_ms = self._plan._now()
            self._following = self._end_call()
            if self._has_succeeded:
                self._has_succeeded = False
                self._record_success(batch)
            if self._following is None and not self._settle():
                return False
        elif self.wants_commit:
            self._now_ms = self._plan._now()  # the lease is looked at behind the commit
        if self._following is not None:
            return True
        self.wants_commit = False
        return not self._unreported or self._may_claim()

    cdef CallContext _begin(self):
        """Begin the next call, of a new claim if need be; None: there is none, and the run ends."""
        cdef MessageRun batch = self._following
        self._following = None
        return self._begin_claim() if batch is None else self._begin_call(batch)

    @cython.critical_section
    cdef MessageRun _end_call(self):
        """Count the call in progress as done; return the next batch of its claim, if it has one."""
        cdef Py_ssize_t size = self._batch._length
        cdef MessageRun following
        self._batch = None
        self._unreported += 1
        if self._context is None:  # taken
            return None
        self.done_calls += 1
        self.done_messages += size
        self._last_size = size
        if self._parts is None:
            return None
        following = next(self._parts, None)
        if (
            following is None
            or omq.omq_assigned_queue_is_ending(self.assigned._state)
            or self._now_ms >= self._before_ms
        ):
            self._parts = None
            return None
        return following

    @cython.critical_section
    cdef Claim _counted(self):
        """Take the claim whose calls are done, and count them; None: it is taken."""
        cdef Claim claim = self._claim
        if self._context is None:
            return None
        self._taken()
        self._calls += self.done_calls
        self._messages += self.done_messages
        self._spent_ms += self._now_ms - self.claimed_ms
        return claim

    cdef bint _settle(self) except -1:
        """Settle the claim whose calls are done; False: nothing is claimed now."""
        cdef ConsumePlan plan = self._plan
        cdef AssignedQueue assigned = self.assigned
        cdef Py_ssize_t done = self.done_messages
        cdef Py_ssize_t held = 0
        cdef uint32_t follow
        cdef Claim claim = self._counted()
        if claim is None:
            return True  # who has taken it settles it
        assigned.internal_errors = 0
        if plan._is_shared:
            follow = assigned._finish_run(
                claim, done, self._now_ms if plan._is_ordered else INT64_MIN, True
            )
        else:
            if not assigned.auto_commit and not self.commits:
                held = self._last_size
            # Doubled up to the maximum in eight claims; one slow claim starts over.
            if self._now_ms - self.claimed_ms > plan._quick_ms:
                assigned.batches_per_claim = 1
            else:
                assigned.batches_per_claim = min(2 * assigned.batches_per_claim, plan._most_batches)
            follow = assigned._settle(claim, done, self._now_ms, held)
        if follow & ~<uint32_t>omq.OMQ_COUNTS:
            assigned.follow(follow & ~<uint32_t>omq.OMQ_COUNTS)
        if not follow & omq.OMQ_COUNTS and not plan._is_shared:
            self._end()  # the queue has cleared its dispatch flag
            return False
        if plan._commits_each and follow & omq.OMQ_COUNTS and done > held:
            self.wants_commit = True
            return False
        return True

    cdef bint _may_claim(self) except -1:
        """Report calls to the pool where it is time; False: the run ends early."""
        cdef ConsumePlan plan = self._plan
        cdef AssignedQueue assigned = self.assigned
        cdef uint32_t follow
        if self._now_ms == self._reported_ms and self._unreported < plan._most_unreported:
            return True
        self._reported_ms = self._now_ms
        if self._report() and self._now_ms - self._started_ms < plan._most_ms:
            return True
        # Submitting a run to find out that there is no more costs as much as a pull.
        if plan._is_shared:
            follow = omq.omq_assigned_queue_begin_run(assigned._state, False)
        else:
            follow = omq.omq_assigned_queue_end_run(assigned._state)
        self.submits = follow & omq.OMQ_DISPATCH
        if follow & omq.OMQ_IDLE:
            assigned.follow(follow)
        self._end()
        return False

    cdef bint _report(self) except -1:
        cdef Py_ssize_t calls = self._unreported
        self._unreported = 0
        return self._report_calls(calls)

    cdef int _end(self) except -1:
        self.has_ended = True
        if self._unreported:
            self._report()
        return 0

    cdef CallContext _begin_claim(self):
        """Claim messages and begin their first call; None: there are none, and the run ends."""
        cdef ConsumePlan plan = self._plan
        cdef AssignedQueue assigned = self.assigned
        cdef omq.omq_claim made
        cdef uint32_t follow
        cdef Claim claim = assigned._claim(
            self._kind, plan._size * assigned.batches_per_claim, self._now_ms, &made
        )
        if not plan._is_ordered:
            self._kind = omq.OMQ_CLAIM_FURTHER
        with cython.critical_section(self):
            self._claim = claim
            self.claimed_ms = self._now_ms
        follow = made.follow & ~<uint32_t>omq.OMQ_DISPATCH
        if follow:
            assigned.follow(follow)
        if claim is None:  # the queue has cleared its dispatch flag together with the refusal
            self._end()
            return None
        self.commits = False
        self.done_calls = self.done_messages = 0
        # Before the call: the next worker claims what is next while this one runs.
        if made.follow & omq.OMQ_DISPATCH:
            self._submit(assigned)
        if not plan._is_shared:
            return self._begin_alone(claim)
        return self._begin_call(<MessageRun>claim.messages)

    cdef CallContext _begin_alone(self, Claim claim):
        """Begin the first call of a claim of several."""
        cdef ConsumePlan plan = self._plan
        if claim.lease is not self._lease:
            self._lease = claim.lease
            self._deadline_ms = claim.lease.deadline_ms
        self.assigned.auto_commit = plan._auto_commit  # a listener may change it, for one call
        # Not after the lease either: each batch must start under a valid one.
        self._before_ms = min(self._now_ms + plan._quick_ms + 1, self._deadline_ms)
        self._parts = (<MessageRun>claim.messages).cut(plan._run, plan._size)
        return self._begin_call(next(self._parts))

    cdef CallContext _begin_call(self, MessageRun batch):
        cdef ConsumePlan plan = self._plan
        cdef AssignedQueue assigned = self.assigned
        cdef object attempts = assigned.attempts
        cdef CallContext context = <CallContext>bare_instance(<type>plan._context, ())
        context._assigned = assigned
        context.claim = self._claim
        context.messages = batch
        context.attempt = attempts.get(batch._offset_at(0), 0) if attempts else 0
        context._begin()
        if not plan._is_shared:
            assigned._set_calling(batch)
        if plan._on_start is not None:
            plan._on_start(context)
        if plan._on_started is not None:
            self._record_start(context, batch)
        with cython.critical_section(self):
            self._batch = batch
            self._context = context
        return context

    cdef int _record_start(self, CallContext context, MessageRun batch) except -1:
        cdef ConsumePlan plan = self._plan
        if plan._lines is None or not plan._lines._add_start(
            self._head_of(context, self._claim.lease), batch, context.attempt, plan._lane
        ):
            plan._on_started(context)
        return 0

    cdef int _record_success(self, MessageRun batch) except -1:
        """Record the end of a call that nobody judges, unless it was taken."""
        cdef ConsumePlan plan = self._plan
        cdef CallContext context
        cdef Claim claim
        cdef bint holds = not plan._is_shared and not self.assigned.auto_commit
        with cython.critical_section(self):
            context, claim = self._context, self._claim
        if context is None or claim is None:
            return 0  # who has taken it records it
        if plan._lines is None or not plan._lines._add_end(
            self._head_of(context, claim.lease), batch, b"HOLD" if holds else b"DONE"
        ):
            plan._on_succeeded(context)
        return 0

    cdef bytes _head_of(self, CallContext context, object lease):
        if lease is not self._line_lease:
            self._line_head = self._plan._line_head(context)
            self._line_lease = lease
        return self._line_head

    cdef inline bint _is_plain(self, CallContext context, object value):
        """Return True for a result that needs no judging."""
        cdef ConsumePlan plan = self._plan
        cdef bint is_plain = (
            (value is plan._success or value is plan._other_success)
            and not plan._is_judged
            and context._ack is None
        )
        self._has_succeeded = is_plain and plan._on_succeeded is not None
        return is_plain

    def perform(self, listener, runtime, awaited):
        cdef CallContext context
        cdef _ListenerAround around = None
        if isinstance(listener, _ListenerAround):
            around = <_ListenerAround>listener
        while self._advance():
            context = self._begin()
            if context is None:
                break
            try:
                if around is not None:
                    value = around._perform(context.messages, context)
                else:
                    value = listener(context.messages, context)
            # BaseException: a listener's sys.exit() must fail its batch, not end the worker.
            except BaseException as error:
                return context, (None, error)
            if not self._is_plain(context, value):
                return context, self._plan._outcome_of(value, awaited)
        return None

    def perform_async(self, listener, runtime):
        cdef _AwaitedCalls calls = _AwaitedCalls.__new__(_AwaitedCalls)
        calls._run = self
        calls._listener = listener
        return calls


@cython.final
cdef class _AwaitedCalls:
    # What `perform_async` returns: an awaitable that is its own iterator, so that a call that
    # waits passes no frame but its listener's.
    cdef ConsumeRun _run
    cdef object _listener
    cdef CallContext _context  # of the call under way
    cdef object _awaited  # the coroutine that a call waits in, else None

    # Under this name stacks of tasks look for it, from other threads.
    @property
    def cr_await(self):
        with cython.critical_section(self):
            return self._awaited

    @cython.critical_section
    cdef int _set_awaited(self, object coroutine) except -1:
        self._awaited = coroutine
        return 0

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        cdef PyObject *result = NULL
        cdef object value = None
        if self._awaited is None:  # the first step, or behind a hold
            return self._go_on(None, False)
        error = None
        try:
            if PyIter_Send(self._awaited, None, &result) == 1:
                return stolen(result)
            value = stolen(result)
        except BaseException as raised:
            if is_of_the_program(raised):
                raise
            error = raised
        return self._returned(value, error)

    def throw(self, kind, value=None, traceback=None):
        error = None
        if self._awaited is None:  # at a hold, between two calls
            raise value if value is not None else kind
        try:
            if value is None and traceback is None:
                return self._awaited.throw(kind)
            return self._awaited.throw(kind, value, traceback)
        except StopIteration as returned:
            value = returned.value
        except BaseException as raised:
            if is_of_the_program(raised):
                raise
            error = raised
        return self._returned(value, error)

    def close(self):
        if self._awaited is not None:
            self._awaited.close()

    cdef object _returned(self, object value, object error):
        """Go on behind a call that has waited."""
        self._set_awaited(None)
        if error is not None:
            return self._end(self._run._plan._outcome_raised(error))
        return self._go_on(value, True)

    cdef object _end(self, object outcome):
        """End, with the outcome of the call under way; None: there is nothing to judge."""
        raise StopIteration(None if outcome is None else (self._context, outcome))

    cdef object _go_on(self, object value, bint is_returned):
        """Make calls until one waits; return what it waits for.

        Args:
            is_returned: `value` is what the call under way returned.
        """
        cdef ConsumeRun run = self._run
        cdef ConsumePlan plan = run._plan
        cdef int64_t since_ns = monotonic_ns()
        cdef PyObject *result = NULL
        cdef object error = None
        while True:
            if is_returned:
                if plan._is_closed():
                    return self._end(None)  # cancelled: it stays unfinished
                if not run._is_plain(self._context, value):
                    return self._end((value, None))
            if not run._advance():
                return self._end(None)
            # A listener that never waits would keep the loop for as long as messages come.
            if is_returned and monotonic_ns() - since_ns > plan._hold_ns:
                return None
            self._context = run._begin()
            if self._context is None:
                return self._end(None)
            is_returned = True
            try:
                value = self._listener(self._context.messages, self._context)
                if value is None or value is plan._success:
                    continue
                if not PyCoro_CheckExact(value):
                    value = plan._awaiting(value)
                    if not PyCoro_CheckExact(value):
                        continue
                self._set_awaited(value)
                if PyIter_Send(value, None, &result) == 1:
                    return stolen(result)
                value = stolen(result)
                self._set_awaited(None)
                continue
            except BaseException as raised:
                if is_of_the_program(raised):
                    self._set_awaited(None)
                    raise
                error = raised
            return self._returned(None, error)


cdef bint is_of_the_program(object error) except -1:
    """Return whether an exception ends the program: Ctrl-C on a loop of the main thread.

    On another thread nobody's Ctrl-C is raised, so the listener has raised it itself.
    """
    return isinstance(error, KeyboardInterrupt) and _current_thread() is _main_thread()


cdef inline object stolen(PyObject *result):
    """Return a new reference as an object that owns it."""
    cdef object value = <object>result
    Py_DECREF(value)
    return value


cdef inline int64_t system_ms(clockid_t clock) noexcept:
    cdef timespec now
    clock_gettime(clock, &now)
    return <int64_t>now.tv_sec * 1000 + <int64_t>now.tv_nsec // 1000000


cdef inline int64_t monotonic_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + <int64_t>now.tv_nsec
