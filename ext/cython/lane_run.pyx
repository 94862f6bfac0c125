cdef extern from "Python.h":
    bint PyCoro_CheckExact(object value)
    # A PySendResult: PYGEN_ERROR is -1, PYGEN_RETURN 0 and PYGEN_NEXT 1.
    int PyIter_Send(object coroutine, object value, PyObject **result) except -1


cdef enum:
    MOST_UNREPORTED = 64  # calls within a millisecond


@cython.final
cdef class LanePlan:
    """Values that all runs of a key-ordered dispatcher share; see core/contract/."""

    cdef CallPlan _calls
    cdef object _over
    cdef object _submit
    cdef object _is_closed
    cdef object _outcome_raised
    cdef object _awaiting
    cdef int64_t _most_ms
    cdef int64_t _hold_ns

    def __init__(
        self,
        *,
        CallPlan calls not None,
        over,
        submit,
        int64_t most_ms,
        int64_t hold_ns,
        is_closed,
        outcome_raised,
        awaiting,
    ):
        self._calls = calls
        self._over = over
        self._submit = submit
        self._most_ms = most_ms
        self._hold_ns = hold_ns
        self._is_closed = is_closed
        self._outcome_raised = outcome_raised
        self._awaiting = awaiting


@cython.final
cdef class LaneRun:
    """Calls for the keys of one queue, claimed and settled one after the other; see
    core/contract/."""

    cdef LanePlan _plan
    cdef readonly AssignedQueue assigned
    cdef object _goes_on
    cdef object _submit
    cdef Claim _claim  # None between two calls, and once the dispatcher settles it
    cdef bint _is_called  # a call was made, and is not settled
    cdef Py_ssize_t _unreported  # calls that the pool was not told of
    cdef int64_t _reported_ms
    cdef int64_t _started_ms
    cdef int64_t _now_ms
    cdef readonly int64_t begun_ms
    cdef readonly object end
    # Guarded by the GIL, and without one by the critical section of this object.
    cdef Py_ssize_t _calls
    cdef Py_ssize_t _messages
    cdef int64_t _spent_ms

    def __init__(
        self, LanePlan plan not None, AssignedQueue assigned not None, goes_on, submit
    ):
        self._plan = plan
        self.assigned = assigned
        self._goes_on = goes_on
        self._submit = submit
        self._started_ms = self._reported_ms = self._now_ms = plan._calls._now_ms()

    @property
    def claim(self):
        return self._claim

    def let_go(self):
        self._claim = None

    @cython.critical_section
    def take_counts(self):
        counts = self._calls, self._messages, self._spent_ms
        self._calls = self._messages = self._spent_ms = 0
        return counts

    @cython.critical_section
    cdef int _count(self, Py_ssize_t messages) except -1:
        self._calls += 1
        self._messages += messages
        self._spent_ms += self._now_ms - self.begun_ms
        return 0

    cdef bint _end_call(self) except -1:
        """Settle the call that has just succeeded, if it is not settled; False: claim no more."""
        if self.end is not None:
            return False
        if not self._is_called:
            return True
        self._is_called = False
        self._now_ms = self._plan._calls._now_ms()
        if self._claim is not None:
            self._settle()
        self._unreported += 1
        # Not after each call: while keys are ready the queue itself waits in the pool, which would
        # end the run, and a run costs more than many quick calls.
        if self._now_ms == self._reported_ms and self._unreported < MOST_UNREPORTED:
            return True
        self._reported_ms = self._now_ms
        if not self._reported():
            self.end = self._plan._submit
        elif self._now_ms - self._started_ms > self._plan._most_ms:
            self.end = self._plan._submit
        return self.end is None

    cdef bint _reported(self) except -1:
        """Report calls to the pool; False: the run ends."""
        cdef Py_ssize_t calls = self._unreported
        self._unreported = 0
        return self._goes_on(calls)

    cdef CallContext _begin_call(self):
        """Claim the messages of a call; None: there are none, and the run ends."""
        cdef LanePlan plan = self._plan
        cdef CallPlan calls = plan._calls
        cdef AssignedQueue assigned = self.assigned
        cdef CallContext context
        cdef MessageRun run
        cdef object attempts
        cdef omq.omq_claim made
        cdef Claim claim = assigned._claim(
            omq.OMQ_CLAIM_SHARED, calls._size, self._now_ms, &made
        )
        if claim is None:
            self.end = plan._over
            if made.follow:
                assigned.follow(made.follow)
            return None
        self._claim = claim
        self._is_called = True
        # Before the call: the next worker serves another key while this one runs.
        if made.follow & omq.OMQ_DISPATCH:
            self._submit(assigned)
        run = <MessageRun>self._claim.messages
        attempts = assigned.attempts
        context = <CallContext>bare_instance(<type>calls._context, ())
        context._assigned = assigned
        context.claim = claim
        context.messages = run
        context.attempt = attempts.get(run._offset_at(0), 0) if attempts else 0
        context._begin()
        self.begun_ms = self._now_ms
        if calls._on_start is not None:
            calls._on_start(context)
        return context

    cdef int _settle(self) except -1:
        """Settle a call of which everything is done."""
        cdef AssignedQueue assigned = self.assigned
        cdef Claim claim = self._claim
        cdef Py_ssize_t done = (<MessageRun>claim.messages)._length
        cdef uint32_t follow
        self._count(done)
        assigned.internal_errors = 0
        follow = assigned._finish_run(claim, done, self._now_ms, True)
        self._claim = None
        if follow & ~<uint32_t>omq.OMQ_COUNTS:
            assigned.follow(follow)
        return 0

    cdef inline bint _is_plain(self, object value):
        """Return True for a result that needs no judging."""
        cdef CallPlan calls = self._plan._calls
        return (value is calls._success or value is calls._other_success) and not calls._is_judged

    def perform(self, listener, runtime, awaited):
        cdef CallContext context
        while self._end_call():
            context = self._begin_call()
            if context is None:
                break
            try:
                value = listener(context.messages, context)
            # BaseException: a listener's sys.exit() must fail its batch, not end the worker.
            except BaseException as error:
                return context, (None, error)
            if not self._is_plain(value):
                return context, self._plan._calls._outcome_of(value, awaited)
        return None

    def perform_async(self, listener, runtime):
        cdef _LaneCalls calls = _LaneCalls.__new__(_LaneCalls)
        calls._run = self
        calls._listener = listener
        return calls


@cython.final
cdef class _LaneCalls:
    # What `perform_async` returns: an awaitable that is its own iterator, so that a call that
    # waits passes no frame but its listener's. It does what `_call_async` of consume_loop.py does,
    # and what its caller does between two calls.
    cdef LaneRun _run
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
        except KeyboardInterrupt:
            raise  # of the program: its loop may be the one this runs on
        except BaseException as raised:
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
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
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
        cdef LaneRun run = self._run
        cdef LanePlan plan = run._plan
        cdef int64_t since_ns = monotonic_ns()
        cdef PyObject *result = NULL
        cdef object error = None
        while True:
            if is_returned:
                if plan._is_closed():
                    return self._end(None)  # cancelled: it stays unfinished
                if not run._is_plain(value):
                    return self._end((value, None))
            if not run._end_call():
                return self._end(None)
            # A listener that never waits would keep the loop for as long as messages come.
            if is_returned and monotonic_ns() - since_ns > plan._hold_ns:
                return None
            self._context = run._begin_call()
            if self._context is None:
                return self._end(None)
            is_returned = True
            try:
                value = self._listener(self._context.messages, self._context)
                if value is None or value is plan._calls._success:
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
            except KeyboardInterrupt:
                self._set_awaited(None)
                raise
            except BaseException as raised:
                error = raised
            return self._returned(None, error)


cdef inline object stolen(PyObject *result):
    """Return a new reference as an object that owns it."""
    cdef object value = <object>result
    Py_DECREF(value)
    return value


cdef inline int64_t monotonic_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + <int64_t>now.tv_nsec
