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
    cdef object _claim  # these two are classes, perhaps with a metaclass
    cdef object _running_call
    cdef object _active
    cdef object _draining
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
        claim,
        running_call,
        active,
        draining,
        over,
        submit,
        int64_t most_ms,
        int64_t hold_ns,
        is_closed,
        outcome_raised,
        awaiting,
    ):
        require_class(claim, Claim)
        if calls._size > SMALL:
            raise ValueError(f"calls of {calls._size} messages: expected at most {SMALL}")
        self._calls = calls
        self._claim = claim
        self._running_call = running_call
        self._active = active
        self._draining = draining
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
    cdef readonly QueueFields assigned
    cdef LaneMap _lanes
    cdef ProcessQueue _queue
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
        self, LanePlan plan not None, QueueFields assigned not None, goes_on, submit
    ):
        self._plan = plan
        self.assigned = assigned
        self._lanes = <LaneMap?>assigned.lanes
        self._queue = <ProcessQueue?>assigned.process_queue
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
        cdef QueueFields assigned = self.assigned
        cdef CallContext context
        cdef MessageRun run
        cdef bint is_empty = False
        cdef bint may_another = False
        cdef object attempts
        cdef object claim = self._claimed(&is_empty, &may_another)
        if is_empty:
            self.end = plan._over
            return None
        if claim is None:  # whatever is not just a claim; nothing has changed yet
            claim = assigned.begin_batch(calls._size, self._now_ms)
            if not isinstance(claim, plan._claim):
                self.end = plan._over
                return None
            may_another = assigned.request_another()
        self._claim = <Claim>claim
        self._is_called = True
        # Before the call: the next worker serves another key while this one runs.
        if may_another:
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

    cdef object _claimed(self, bint *is_empty, bint *may_another):
        """KeyOrderedQueue.begin_batch and request_another, if nothing but a claim comes of it;
        None: ask them."""
        cdef QueueFields assigned = self.assigned
        cdef LanePlan plan = self._plan
        cdef omq.omq_lane_map_state state
        cdef omq.omq_status status
        cdef int64_t offsets[SMALL]
        cdef uint64_t tokens[SMALL]
        cdef size_t taken
        cdef Claim claim
        cdef object lease
        cdef object lock = assigned._lock
        lock.acquire()
        try:
            lease = assigned._lease_field
            if (
                assigned._state_field is not plan._active
                or lease is None
                or assigned._paused
                or self._now_ms >= <int64_t>lease.deadline_ms
                # One that has failed before may have to be told apart from the others.
                or (plan._calls._size > 1 and assigned.attempts)
            ):
                return None
            status = omq.omq_lane_map_take(
                self._lanes._map, offsets, tokens, plan._calls._size, &taken
            )
            if status != omq.OMQ_OK:
                raise failure(status, f"{self._lanes.name}: take")
            if taken == 0:
                is_empty[0] = True
                return None
            assigned._running += 1
            assigned.last_claim_ms = self._now_ms
            claim = <Claim>bare_instance(<type>plan._claim, ())
            claim.messages = self._run_of(tokens, taken)
            claim.lease = lease
            claim.generation = assigned._generation
            assigned._calls[offsets[0]] = plan._running_call(
                assigned, claim.messages, self._now_ms, PyThread_get_thread_ident()
            )
            omq.omq_lane_map_read(self._lanes._map, &state)
            may_another[0] = (
                state.ready > 0
                and state.in_flight < self._lanes.max_in_flight
                and omq.omq_process_queue_begin_dispatch(self._queue._queue)
            )
            return claim
        finally:
            lock.release()

    cdef MessageRun _run_of(self, const uint64_t *tokens, size_t count):
        """Return the messages of tokens: batch number << 32 | row."""
        cdef object batch
        cdef object kind = self._plan._calls._run
        cdef MessageRun run
        if count > 1:
            return kind(list(self.assigned._segments([tokens[i] for i in range(count)])))
        run = <MessageRun>bare_instance(<type>kind, ())
        batch = (<dict>self.assigned._batches).get(tokens[0] >> 32)
        if batch is None:  # the pull engine has put it
            batch = self.assigned._batch_of(tokens[0] >> 32)
        run._index = <MessageIndex?>batch
        run._first = <uint32_t>tokens[0]
        run._length = 1
        return run

    cdef int _settle(self) except -1:
        """Settle a call of which everything is done."""
        cdef QueueFields assigned = self.assigned
        cdef Claim claim = self._claim
        cdef Py_ssize_t done = (<MessageRun>claim.messages)._length
        self._count(done)
        assigned.internal_errors = 0
        if not self._finished(claim):
            assigned.end_batch(claim, done, self._now_ms)
        self._claim = None
        return 0

    cdef bint _finished(self, Claim claim) except -1:
        """KeyOrderedQueue.end_batch of a claim that is done; False: ask that, nothing changed."""
        cdef QueueFields assigned = self.assigned
        cdef MessageRun run = <MessageRun>claim.messages
        cdef Py_ssize_t count = run._length
        cdef Py_ssize_t i
        cdef size_t row
        cdef size_t ended
        cdef int64_t offsets[SMALL]
        cdef int64_t done
        cdef MessageIndex index
        cdef omq.omq_lane_map_state state
        cdef omq.omq_status status
        cdef object lease
        cdef object failed
        cdef object first
        cdef dict calls = assigned._calls
        cdef dict batches
        cdef bint is_drained
        cdef bint has_room = False
        cdef object lock = assigned._lock
        for i in range(count):
            index = run._locate(i, &row)
            offsets[i] = omq.omq_message_offset(index._bytes(), &index._rows, row)
        lock.acquire()
        try:
            lease = assigned._lease_field
            if (
                claim.generation != assigned._generation
                or lease is None
                or self._now_ms >= <int64_t>lease.deadline_ms
            ):
                return False
            failed = assigned._failed_ms
            if failed:
                for i in range(count):
                    if offsets[i] in failed:
                        return False
            status = omq.omq_lane_map_done_columns(self._lanes._map, offsets, count, &ended)
            if status != omq.OMQ_OK:
                raise failure(status, f"{self._lanes.name}: done_columns")
            self._queue._remove(offsets, count)
            omq.omq_lane_map_read(self._lanes._map, &state)
            done = omq.omq_process_queue_done_after(self._queue._queue, state.watermark)
            if done > assigned._done_offset:
                assigned._done_offset = done
            # Drop the bytes of batches that lie below the watermark.
            batches = assigned._batches
            while batches:
                first = next(iter(batches))
                if (<MessageIndex?>batches[first]).last_offset >= state.watermark:
                    break
                del batches[first]
            calls.pop(offsets[0], None)
            assigned._running = max(assigned._running - 1, 0)
            is_drained = assigned._state_field is self._plan._draining and not assigned._running
            if assigned._room_below and self._queue.message_count < assigned._room_below:
                assigned._room_below = 0
                has_room = True
        finally:
            lock.release()
        if is_drained or has_room:
            assigned._notify(False, is_drained, has_room)
        if not calls:
            assigned._on_idle()
        return True

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
