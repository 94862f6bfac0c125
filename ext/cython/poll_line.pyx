cdef class PolledRun(MessageRun):
    """Messages of one queue in a poller's hands; see core/contract/."""

    cdef readonly object assigned
    cdef readonly object claim
    cdef readonly object settle
    cdef readonly int64_t next_offset
    cdef readonly unsigned long thread

    def __init__(self, segments, next_offset, assigned=None, claim=None, settle=None):
        MessageRun.__init__(self, segments)
        self.next_offset = next_offset
        self.assigned = assigned
        self.claim = claim
        self.settle = settle
        self.thread = PyThread_get_thread_ident()


@cython.final
cdef class _Finished:
    # Batches of a queue that were finished, and the messages in them.
    cdef Py_ssize_t batches
    cdef Py_ssize_t messages


@cython.final
cdef class PollLine:
    """The line of queues that wait for pollers; see core/contract/."""

    cdef object _ready
    cdef dict _out
    cdef bint _is_ordered
    cdef object _settle
    cdef readonly list follows
    cdef Py_ssize_t _polled
    cdef dict _finished

    def __init__(self, ready, dict out not None, *, is_ordered, settle):
        self._ready = ready
        self._out = out
        self._is_ordered = is_ordered
        self._settle = settle
        self.follows = []
        self._finished = {}

    @cython.critical_section
    def take(self, kind, poller, limit, now_ms):
        cdef size_t most = at_least_one(limit, "PollLine", "take")
        cdef int64_t now = clamped(now_ms)
        cdef AssignedQueue assigned
        cdef Claim claim
        cdef omq.omq_claim made
        cdef omq.omq_claim_kind wanted = (
            omq.OMQ_CLAIM_ALONE if self._is_ordered else omq.OMQ_CLAIM_SHARED
        )
        require_class(kind, PolledRun)
        self._end(poller, now)
        while self._ready:
            assigned = self._ready.popleft()
            claim = assigned._claim(wanted, most, now, &made)
            self._note(assigned, made.follow & ~<uint32_t>omq.OMQ_DISPATCH)
            # A queue in the line may have been paused, moved or lost since; it has left the line.
            if claim is not None:
                if made.follow & omq.OMQ_DISPATCH:
                    self._ready.append(assigned)
                return self._handed_out(kind, poller, assigned, claim)
        return None

    cdef PolledRun _handed_out(
        self, object kind, object poller, AssignedQueue assigned, Claim claim
    ):
        cdef MessageRun run = <MessageRun>claim.messages
        cdef PolledRun batch = <PolledRun>bare_instance(<type>kind, ())
        cdef omq.omq_assigned_queue_state state = assigned._read()
        batch._index = run._index
        batch._first = run._first
        batch._length = run._length
        batch._segments = run._segments
        batch.assigned = assigned
        batch.claim = claim
        batch.settle = self._settle
        batch.thread = PyThread_get_thread_ident()
        if state.generation == claim.generation:
            batch.next_offset = state.position
        else:  # a seek came between
            batch.next_offset = <int64_t>run._offset_at(run._length - 1) + 1
        self._out[poller] = batch
        self._polled += run._length
        return batch

    @cython.critical_section
    def end(self, poller, now_ms):
        self._end(poller, clamped(now_ms))

    cdef int _end(self, object poller, int64_t now_ms) except -1:
        cdef object found = self._out.pop(poller, None)
        cdef PolledRun batch
        cdef AssignedQueue assigned
        cdef _Finished finished
        cdef uint32_t follow
        if found is None:
            return 0
        batch = <PolledRun?>found
        assigned = batch.assigned
        if not self._is_ordered:
            follow = assigned._finish_run(<Claim>batch.claim, batch._length, INT64_MIN, False)
        else:
            follow = assigned._settle(<Claim>batch.claim, batch._length, now_ms, 0)
            if follow & omq.OMQ_COUNTS:
                finished = self._finished.get(assigned)
                if finished is None:
                    finished = self._finished[assigned] = _Finished()
                finished.batches += 1
                finished.messages += batch._length
                follow |= omq.omq_assigned_queue_end_run(assigned._state)
                if follow & omq.OMQ_DISPATCH:
                    self._ready.append(assigned)
        return self._note(
            assigned, follow & ~<uint32_t>(omq.OMQ_COUNTS | omq.OMQ_DISPATCH)
        )

    cdef inline int _note(self, AssignedQueue assigned, uint32_t follow) except -1:
        if follow:
            self.follows.append((assigned, follow))
        return 0

    @cython.critical_section
    def take_counts(self):
        cdef Py_ssize_t polled = self._polled
        cdef dict finished = self._finished
        self._polled = 0
        self._finished = {}
        return polled, [
            (assigned, (<_Finished>each).batches, (<_Finished>each).messages)
            for assigned, each in finished.items()
        ]
