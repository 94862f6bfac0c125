@cython.final
cdef class LockTable:
    """Which member holds which queue, until when, in which epoch; see core/interface."""

    cdef omq.omq_lock_table *_table  # owned; freed in __dealloc__
    cdef readonly int64_t lease_ms
    # Names <-> the ids that C sees, one space for groups, queues and owners; guarded by the GIL.
    cdef dict _ids
    cdef dict _names
    cdef uint64_t _last_id

    def __cinit__(self, lease_ms=60_000, first_epoch=1):
        if not (0 <= lease_ms <= INT64_MAX and 1 <= first_epoch <= INT64_MAX):
            raise _status.failure(
                _status.OUT_OF_RANGE, f"lock table: lease_ms={lease_ms}, first_epoch={first_epoch}"
            )
        self.lease_ms = lease_ms
        self._ids = {}
        self._names = {}
        self._table = omq.omq_lock_table_new(lease_ms, first_epoch)
        if self._table is NULL:
            raise MemoryError("no memory for a lock table")

    def __dealloc__(self):
        omq.omq_lock_table_free(self._table)

    cdef uint64_t _intern(self, str name) except 0:
        known = self._ids.get(name)
        if known is not None:
            return known
        if name is None:
            raise TypeError("expected a name, got None")
        self._last_id += 1
        self._names[self._last_id] = name
        self._ids[name] = self._last_id
        return self._last_id

    cdef uint64_t _find(self, str name) except? 0:
        """The id of a name, or 0, which no name has."""
        known = self._ids.get(name)
        return 0 if known is None else known

    def try_lock(self, str group, str queue, str owner, int64_t now_ms):
        cdef uint64_t epoch
        cdef uint64_t queue_id = self._intern(queue)
        cdef omq.omq_status status = omq.omq_lock_table_try_lock(
            self._table, self._intern(group), &queue_id, 1, self._intern(owner), now_ms, &epoch
        )
        if status != omq.OMQ_OK:
            raise _status.failure(status, f"try_lock of {queue}")
        return epoch

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
                ids[i] = self._intern(names[i])
            status = omq.omq_lock_table_try_lock(
                self._table, self._intern(group), ids, count, self._intern(owner), now_ms, epochs
            )
            if status != omq.OMQ_OK:
                raise _status.failure(status, f"try_lock_batch of group {group}")
            return [epochs[i] for i in range(count)]
        finally:
            if ids is not small:
                PyMem_Free(ids)

    def unlock(self, str group, str queue, str owner, uint64_t epoch=0):
        cdef omq.bool unlocked
        cdef uint64_t queue_id = self._find(queue)
        omq.omq_lock_table_unlock(
            self._table, self._find(group), &queue_id, 1, self._find(owner), &epoch, &unlocked
        )
        return unlocked

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
                asked[i] = wanted[i]
            omq.omq_lock_table_unlock(
                self._table, self._find(group), ids, count, self._find(owner), asked, unlocked
            )
            return [unlocked[i] for i in range(count)]
        finally:
            PyMem_Free(ids)

    def holder(self, str group, str queue):
        cdef omq.omq_lock lock
        if omq.omq_lock_table_holder(self._table, self._find(group), self._find(queue), &lock):
            return (self._names[lock.owner], lock.epoch, lock.granted_ms)
        return None

    def is_current(self, str group, str queue, str owner, uint64_t epoch, int64_t now_ms):
        return omq.omq_lock_table_is_current(
            self._table, self._find(group), self._find(queue), self._find(owner), epoch, now_ms
        )

    def is_all_expired(self, str group, int64_t now_ms):
        return omq.omq_lock_table_is_all_expired(self._table, self._find(group), now_ms)

    def sweep(self, int64_t now_ms):
        cdef omq.omq_lock locks[SMALL]
        cdef size_t count = SMALL
        cdef size_t i
        cdef list swept = []
        while count == SMALL:
            count = omq.omq_lock_table_sweep(self._table, now_ms, locks, SMALL)
            for i in range(count):
                swept.append((*self._named(&locks[i])[:3], locks[i].epoch))
        self._forget_names()
        return swept

    cdef tuple _named(self, const omq.omq_lock *lock):
        return (
            self._names[lock.group],
            self._names[lock.queue],
            self._names[lock.owner],
            lock.epoch,
            lock.granted_ms,
        )

    cdef int _forget_names(self) except -1:
        """Forget the names without a lock: client ids never end in a long-lived broker."""
        cdef set used = set()
        for entry in self.snapshot():
            used.update(entry[:3])
        self._ids = {name: number for name, number in self._ids.items() if name in used}
        self._names = {number: name for name, number in self._ids.items()}
        return 0

    def snapshot(self):
        cdef size_t count = omq.omq_lock_table_count(self._table)
        cdef omq.omq_lock *locks = <omq.omq_lock *>allocate(count, sizeof(omq.omq_lock))
        cdef size_t i
        try:
            # The GIL keeps the count; only holders of it change the table.
            count = omq.omq_lock_table_snapshot(self._table, locks, count)
            return [self._named(&locks[i]) for i in range(count)]
        finally:
            PyMem_Free(locks)

    def restore(self, entries, next_epoch):
        cdef tuple rows = tuple(entries)
        cdef omq.omq_lock *locks = <omq.omq_lock *>allocate(len(rows), sizeof(omq.omq_lock))
        cdef Py_ssize_t i
        cdef omq.omq_status status
        try:
            for i in range(len(rows)):
                group, queue, owner, epoch, granted_ms = rows[i]
                locks[i].group = self._intern(group)
                locks[i].queue = self._intern(queue)
                locks[i].owner = self._intern(owner)
                locks[i].epoch = max(epoch, 0)  # 0 is refused
                locks[i].granted_ms = granted_ms
            status = omq.omq_lock_table_restore(
                self._table, locks, len(rows), max(next_epoch, 0)
            )
        finally:
            PyMem_Free(locks)
        if status != omq.OMQ_OK:
            raise _status.failure(status, f"restore of {len(rows)} locks")

    @property
    def next_epoch(self):
        return omq.omq_lock_table_next_epoch(self._table)

    def __len__(self):
        return omq.omq_lock_table_count(self._table)

    def _check(self):
        cdef const char *broken = omq.omq_lock_table_check(self._table)
        if broken is not NULL:
            raise AssertionError(f"{broken.decode()}: {len(self)} locks")
        named = set(self._names.values())
        assert {name for entry in self.snapshot() for name in entry[:3]} <= named, named
