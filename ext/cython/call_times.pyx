@cython.final
cdef class TimedListener(_ListenerAround):
    """A listener whose calls are timed; see core/contract/."""

    cdef object _success
    cdef object _other_success
    cdef dict _by_topic
    cdef object _on_other

    def __init__(self, listener, success, other_success, dict by_topic not None, on_other):
        self._set_listener(listener)
        self._success = success
        self._other_success = other_success
        self._by_topic = by_topic
        self._on_other = on_other

    cdef object _perform(self, messages, CallContext context):
        cdef int64_t begun_ns = monotonic_ns()
        cdef int64_t spent_ns
        cdef object times
        try:
            value = self._call_listener(messages, context)
        except BaseException as error:
            self._on_other(messages, context, None, error, monotonic_ns() - begun_ns)
            raise
        spent_ns = monotonic_ns() - begun_ns
        if (
            (value is self._success or value is self._other_success)
            and not context.attempt
            and context._ack is None
        ):
            times = self._by_topic.get(context._assigned.queue.topic)
            if type(times) is DurationCounts:
                (<DurationCounts>times)._add(spent_ns, 1)
                return value
            if times is not None:
                times.add(spent_ns)
                return value
        return self._on_other(messages, context, value, None, spent_ns)
