@cython.final
cdef class DurationCounts:
    """A histogram of durations; see core/contract/."""

    # Guarded by the GIL, and without one by the critical section of this object.
    cdef uint64_t _buckets[OMQ_DURATION_BUCKETS]
    cdef int64_t _spent_ns

    @cython.critical_section
    cdef int _add(self, int64_t ns, Py_ssize_t count) except -1:
        self._buckets[omq_duration_bucket(ns)] += <uint64_t>count
        self._spent_ns += ns * count
        return 0

    def add(self, int64_t ns, Py_ssize_t count=1):
        self._add(ns, count)

    @cython.critical_section
    def add_many(self, buckets, int64_t spent_ns):
        cdef Py_ssize_t i
        cdef uint64_t count
        if len(buckets) != OMQ_DURATION_BUCKETS:
            raise ValueError(f"{len(buckets)} buckets: expected {OMQ_DURATION_BUCKETS}")
        for i in range(OMQ_DURATION_BUCKETS):
            count = buckets[i]
            self._buckets[i] += count
        self._spent_ns += spent_ns

    @cython.critical_section
    def read(self):
        cdef Py_ssize_t i
        return tuple([self._buckets[i] for i in range(OMQ_DURATION_BUCKETS)]), self._spent_ns


@cython.final
cdef class SendTimer:
    """Times sends to one topic; see core/contract/."""

    cdef tuple _stored
    cdef object _on_failed

    def __init__(self, tuple stored not None, on_failed):
        self._stored = stored
        self._on_failed = on_failed

    def count(self, int64_t spent_ns, Py_ssize_t count, error):
        self._count(spent_ns, count, error)

    cdef int _count(self, int64_t spent_ns, Py_ssize_t count, error) except -1:
        cdef object counts
        if error is not None:
            self._on_failed(error, count, spent_ns)
            return 0
        for counts in self._stored:
            (<DurationCounts?>counts)._add(spent_ns, count)
        return 0
