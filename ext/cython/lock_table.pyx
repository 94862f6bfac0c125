@cython.final
cdef class LockTable:
    """Holders of queues, each until when and in which epoch; see core/contract/."""

    cdef omq.omq_lock_table *_table  # owned; freed in __dealloc__
    cdef readonly int64_t lease_ms
    # Names and the ids that C gives out, one space for groups, queues and owners. The GIL guards
    # them, and `_readers`: the calls under way that hold ids while Python code may run. Without a
    # GIL the critical section of this object does; both are given up only where Python code runs.
    cdef dict _ids
    cdef list _names  # by the id's low half
    cdef int _readers

    def __cinit__(self, lease_ms=60_000, first_epoch=1):
        if not (0 <= lease_ms <= INT64_MAX and 1 <= first_epoch <= INT64_MAX):
            raise failure(
                _status.OUT_OF_RANGE, f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}"
            )
        self.lease_ms = lease_ms
        self._ids = {}
        self._names = []
        self._table = omq.omq_lock_table_new(lease_ms, first_epoch)
        if self._table is NULL:
            raise MemoryError("no memory for a lock table")

    def __dealloc__(self):
        omq.omq_lock_table_free(self._table)

    cdef uint64_t _id_of(self, object name) except 0:
        known = self._ids.get(name)
        if known is not None:
            return known
        return self._add(name)

    cdef uint64_t _add(self, object name) except 0:
        cdef uint64_t added
        cdef omq.omq_status status
        if name is None:
            raise TypeError("expected a name, got None")
        status = omq.omq_lock_table_add_id(self._table, &added)
        if status != omq.OMQ_OK:
            raise failure(status, f"id of {name!r}")
        while len(self._names) <= <Py_ssize_t>(added & UINT32_MAX):
            self._names.append(None)
        # If its hash or equality is Python code, another thread may have named it meanwhile. Then
        # this id stays without a pin or a lock, and the next sweep forgets it.
        cdef uint64_t kept = self._ids.setdefault(name, added)
        if kept == added:
            self._names[<Py_ssize_t>(added & UINT32_MAX)] = name
        return kept

    cdef uint64_t _find(self, object name) except? 0:
        """Return the id of a name, or 0, which no name has and C never knows."""
        known = self._ids.get(name)
        return 0 if known is None else known

    cdef object _name(self, uint64_t number):
        return self._names[<Py_ssize_t>(number & UINT32_MAX)]

    @cython.critical_section
    def intern(self, name):
        cdef uint64_t number = self._id_of(name)
        cdef omq.omq_status status = omq.omq_lock_table_pin(self._table, number)
        if status != omq.OMQ_OK:
            raise failure(status, f"intern of {name!r}")
        return number

    @cython.critical_section
    def release(self, uint64_t number):
        cdef omq.omq_status status = omq.omq_lock_table_unpin(self._table, number)
        if status != omq.OMQ_OK:
            raise failure(status, f"release of id {number}")

    @cython.critical_section
    def name_of(self, uint64_t number):
        if omq.omq_lock_table_known(self._table, &number, 1) == 0:
            raise failure(omq.OMQ_UNKNOWN_ID, f"name_of id {number}")
        return self._name(number)

    @cython.critical_section
    def try_lock(self, str group, queue, str owner, int64_t now_ms):
        cdef uint64_t epoch
        cdef uint64_t queue_id = self._id_of(queue)
        cdef omq.omq_status status = omq.omq_lock_table_try_lock(
            self._table, self._id_of(group), &queue_id, 1, self._id_of(owner), now_ms, &epoch
        )
        if status != omq.OMQ_OK:
            raise failure(status, f"try_lock of {queue}")
        return epoch

    @cython.critical_section
    def try_lock_batch(self, str group, queues, str owner, int64_t now_ms):
        cdef tuple names = tuple(queues)
        cdef size_t count = len(names)
        cdef uint64_t small[2 * SMALL]
        cdef uint64_t *ids = small
        cdef size_t i
        cdef omq.omq_status status
        if count > SMALL:
            ids = <uint64_t *>allocate(2 * count, sizeof(uint64_t))
        cdef uint64_t *epochs = ids + count
        try:
            for i in range(count):
                ids[i] = self._id_of(names[i])
            status = omq.omq_lock_table_try_lock(
                self._table, self._id_of(group), ids, count, self._id_of(owner), now_ms, epochs
            )
            if status != omq.OMQ_OK:
                raise failure(status, f"try_lock_batch of group {group}")
            return [epochs[i] for i in range(count)]
        finally:
            if ids is not small:
                PyMem_Free(ids)

    @cython.critical_section
    def try_lock_ids(self, uint64_t group, queues, uint64_t owner, int64_t now_ms):
        cdef Py_buffer view
        cdef array epochs
        cdef omq.omq_status status
        get_column(queues, &view, b"QL", sizeof(uint64_t), "queues")
        try:
            epochs = clone(_UINT64, view.shape[0], zero=False)
            status = omq.omq_lock_table_try_lock(
                self._table, group, <const uint64_t *>view.buf, view.shape[0], owner, now_ms,
                <uint64_t *>epochs.data.as_voidptr,
            )
        finally:
            PyBuffer_Release(&view)
        if status != omq.OMQ_OK:
            raise failure(status, f"try_lock_ids of group id {group}")
        return memoryview(epochs)

    @cython.critical_section
    def unlock(self, str group, queue, str owner, epoch=0):
        cdef omq.bool unlocked
        cdef uint64_t asked = epoch_of(epoch)
        cdef uint64_t queue_id = self._find(queue)
        omq.omq_lock_table_unlock(
            self._table, self._find(group), &queue_id, 1, self._find(owner), &asked, &unlocked
        )
        return unlocked

    @cython.critical_section
    def unlock_batch(self, str group, queues, str owner, epochs=None):
        cdef tuple names = tuple(queues)
        cdef tuple wanted = (0,) * len(names) if epochs is None else tuple(epochs)
        if len(wanted) != len(names):
            raise ValueError(f"unlock_batch: {len(names)} queues, {len(wanted)} epochs")
        cdef size_t count = len(names)
        cdef uint64_t *ids = <uint64_t *>allocate(
            count, 2 * sizeof(uint64_t) + sizeof(omq.bool)
        )
        cdef uint64_t *asked = ids + count
        cdef omq.bool *unlocked = <omq.bool *>(asked + count)
        cdef size_t i
        try:
            for i in range(count):
                ids[i] = self._find(names[i])
                asked[i] = epoch_of(wanted[i])
            omq.omq_lock_table_unlock(
                self._table, self._find(group), ids, count, self._find(owner), asked, unlocked
            )
            return [unlocked[i] for i in range(count)]
        finally:
            PyMem_Free(ids)

    @cython.critical_section
    def unlock_ids(self, uint64_t group, queues, uint64_t owner, epochs=None):
        cdef Py_buffer view
        cdef Py_buffer asked
        get_column(queues, &view, b"QL", sizeof(uint64_t), "queues")
        try:
            if epochs is None:
                return self._unlock_ids(group, &view, owner, NULL)
            get_column(epochs, &asked, b"QL", sizeof(uint64_t), "epochs")
            try:
                return self._unlock_ids(group, &view, owner, &asked)
            finally:
                PyBuffer_Release(&asked)
        finally:
            PyBuffer_Release(&view)

    cdef object _unlock_ids(
        self, uint64_t group, Py_buffer *queues, uint64_t owner, Py_buffer *epochs
    ):
        cdef const uint64_t *ids = <const uint64_t *>queues.buf
        cdef const uint64_t *asked = NULL
        cdef size_t count = queues.shape[0]
        cdef uint64_t[2] others = [group, owner]
        cdef array unlocked = clone(_BYTES, count, zero=False)
        if epochs is not NULL and epochs.shape[0] != queues.shape[0]:
            raise ValueError(f"unlock_ids: {count} queues, {epochs.shape[0]} epochs")
        if epochs is not NULL:
            asked = <const uint64_t *>epochs.buf
        if (
            omq.omq_lock_table_known(self._table, ids, count) < count
            or omq.omq_lock_table_known(self._table, others, 2) < 2
        ):
            raise failure(omq.OMQ_UNKNOWN_ID, f"unlock_ids of group id {group}")
        omq.omq_lock_table_unlock(
            self._table, group, ids, count, owner, asked, <omq.bool *>unlocked.data.as_voidptr
        )
        return memoryview(unlocked)

    @cython.critical_section
    def holder(self, str group, queue):
        cdef omq.omq_lock lock
        if omq.omq_lock_table_holder(self._table, self._find(group), self._find(queue), &lock):
            return (self._name(lock.owner), lock.epoch, lock.granted_ms)
        return None

    @cython.critical_section
    def is_current(self, str group, queue, str owner, epoch, int64_t now_ms):
        return omq.omq_lock_table_is_current(
            self._table, self._find(group), self._find(queue), self._find(owner), epoch_of(epoch),
            now_ms,
        )

    @cython.critical_section
    def is_all_expired(self, str group, int64_t now_ms):
        return omq.omq_lock_table_is_all_expired(self._table, self._find(group), now_ms)

    @cython.critical_section
    def sweep(self, int64_t now_ms):
        cdef size_t count = omq.omq_lock_table_count(self._table)
        cdef omq.omq_lock *locks = <omq.omq_lock *>allocate(count, sizeof(omq.omq_lock))
        cdef size_t i
        cdef list swept
        self._readers += 1
        try:
            # The count read above still bounds it: no Python code ran, so no other call was let in.
            count = omq.omq_lock_table_sweep(self._table, now_ms, locks, count)
            swept = [(*self._named(&locks[i])[:3], locks[i].epoch) for i in range(count)]
        finally:
            self._readers -= 1
            PyMem_Free(locks)
        self._forget_names()
        return swept

    cdef tuple _named(self, const omq.omq_lock *lock):
        return (
            self._name(lock.group),
            self._name(lock.queue),
            self._name(lock.owner),
            lock.epoch,
            lock.granted_ms,
        )

    cdef int _forget_names(self) except -1:
        """Forget names that nothing uses: a long-lived broker sees new client ids for ever."""
        cdef uint64_t ids[SMALL]
        cdef size_t count = SMALL
        cdef size_t i
        # A call that makes tuples of names may run the garbage collector, and with it another
        # thread's sweep. Names that such a call still needs are left for the next sweep.
        while count == SMALL and self._readers == 0:
            count = omq.omq_lock_table_forget(self._table, ids, SMALL)
            for i in range(count):
                name = self._name(ids[i])
                self._names[<Py_ssize_t>(ids[i] & UINT32_MAX)] = None
                if name is not None:
                    del self._ids[name]
        return 0

    @cython.critical_section
    def snapshot(self):
        cdef size_t count = omq.omq_lock_table_count(self._table)
        cdef omq.omq_lock *locks = <omq.omq_lock *>allocate(count, sizeof(omq.omq_lock))
        cdef size_t i
        self._readers += 1
        try:
            count = omq.omq_lock_table_snapshot(self._table, locks, count)
            return [self._named(&locks[i]) for i in range(count)]
        finally:
            self._readers -= 1
            PyMem_Free(locks)

    @cython.critical_section
    def restore(self, entries, next_epoch):
        cdef tuple rows = tuple(entries)
        cdef omq.omq_lock *locks = <omq.omq_lock *>allocate(len(rows), sizeof(omq.omq_lock))
        cdef Py_ssize_t i
        cdef omq.omq_status status
        self._readers += 1
        try:
            for i in range(len(rows)):
                group, queue, owner, epoch, granted_ms = rows[i]
                locks[i].group = self._id_of(group)
                locks[i].queue = self._id_of(queue)
                locks[i].owner = self._id_of(owner)
                locks[i].epoch = epoch_of(epoch)  # refused if it is none
                locks[i].granted_ms = clamped(granted_ms)
            status = omq.omq_lock_table_restore(
                self._table, locks, len(rows), min(max(next_epoch, 0), UINT64_MAX)
            )
        finally:
            self._readers -= 1
            PyMem_Free(locks)
        if status != omq.OMQ_OK:
            raise failure(status, f"restore of {len(rows)} locks")

    @property
    def next_epoch(self):
        return omq.omq_lock_table_next_epoch(self._table)

    def __len__(self):
        return omq.omq_lock_table_count(self._table)

    @cython.critical_section
    def _check(self):
        cdef const char *broken = omq.omq_lock_table_check(self._table)
        if broken is not NULL:
            raise AssertionError(f"{broken.decode()}: {len(self)} locks")
        cdef uint64_t number
        for name, known in self._ids.items():
            number = known
            assert omq.omq_lock_table_known(self._table, &number, 1) == 1, name
            assert self._name(number) == name, name
        assert len(self._ids) == sum(name is not None for name in self._names), self._names
