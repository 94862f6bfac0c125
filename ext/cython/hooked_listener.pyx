cdef class HookedCall:
    """One listener call, as hooks see it; see core/contract/."""

    cdef public object group
    cdef public object message_queue
    cdef public object messages
    cdef public object attempt
    cdef public object namespace
    cdef public Py_ssize_t done
    cdef public int64_t spent_ms
    cdef object _result
    cdef object _exception
    cdef object _outcome
    cdef dict _notes  # made when somebody looks

    # In critical sections: threads of a hook's may look at them while the call ends.
    @property
    def result(self):
        with cython.critical_section(self):
            return self._result

    @result.setter
    def result(self, value):
        with cython.critical_section(self):
            self._result = value

    @property
    def exception(self):
        with cython.critical_section(self):
            return self._exception

    @exception.setter
    def exception(self, value):
        with cython.critical_section(self):
            self._exception = value

    @property
    def outcome(self):
        with cython.critical_section(self):
            return self._outcome

    @outcome.setter
    def outcome(self, value):
        with cython.critical_section(self):
            self._outcome = value

    @property
    def notes(self):
        with cython.critical_section(self):
            if self._notes is None:
                self._notes = {}
            return self._notes

    @notes.setter
    def notes(self, value):
        with cython.critical_section(self):
            self._notes = value

    @cython.critical_section
    cdef int _succeed(self, value, outcome, Py_ssize_t done, int64_t spent_ms) except -1:
        self._result = value
        self._outcome = outcome
        self.done = done
        self.spent_ms = spent_ms
        return 0


@cython.final
cdef class HookedListener(_ListenerAround):
    """A listener with hooks around each call; see core/contract/."""

    cdef object _call_class
    cdef object _group
    cdef object _namespace
    cdef tuple _befores
    cdef tuple _afters
    cdef object _success
    cdef object _other_success
    cdef object _succeeded
    cdef object _timed_out
    cdef int64_t _timeout_ms
    cdef object _clock_ms
    cdef bint _is_system_time
    cdef clockid_t _clock_id
    cdef object _on_odd
    cdef object _on_other

    def __init__(self, listener, rules):
        require_class(rules.call, HookedCall)
        self._set_listener(listener)
        self._call_class = rules.call
        self._group = rules.group
        self._namespace = rules.namespace
        self._befores = rules.befores
        self._afters = rules.afters
        self._success = rules.success
        self._other_success = rules.other_success
        self._succeeded = rules.succeeded
        self._timed_out = rules.timed_out
        self._timeout_ms = rules.timeout_ms
        self._clock_ms = rules.clock_ms
        self._is_system_time = rules.clock_id is not None
        self._clock_id = rules.clock_id if rules.clock_id is not None else 0
        self._on_odd = rules.on_odd
        self._on_other = rules.on_other

    cdef inline int64_t _now(self) except? -1:
        return system_ms(self._clock_id) if self._is_system_time else self._clock_ms()

    cdef int _tell(self, tuple steps, HookedCall call) except -1:
        for step in steps:
            try:
                returned = step(call)
                if returned is not None:
                    self._on_odd(step, call, returned, None)
            # Also sys.exit(): a hook watches the call and does not decide it.
            except BaseException as error:
                self._on_odd(step, call, None, error)
        return 0

    cdef object _perform(self, messages, CallContext context):
        cdef HookedCall call = <HookedCall>bare_instance(<type>self._call_class, ())
        cdef int64_t begun_ms
        cdef int64_t spent_ms
        call.group = self._group
        call.namespace = self._namespace
        call.message_queue = context._assigned.source
        call.messages = messages
        call.attempt = context.attempt
        self._tell(self._befores, call)
        begun_ms = self._now()  # behind the hooks: their time is not the listener's
        try:
            value = self._call_listener(messages, context)
        except BaseException as error:
            self._on_other(call, context, None, error, self._now() - begun_ms)
            raise
        spent_ms = self._now() - begun_ms
        if (value is self._success or value is self._other_success) and context._ack is None:
            call._succeed(
                value,
                self._succeeded if spent_ms < self._timeout_ms else self._timed_out,
                len(messages),
                spent_ms,
            )
            self._tell(self._afters, call)
            return value
        return self._on_other(call, context, value, None, spent_ms)
