cdef extern from "send_run.h" nogil:
    ctypedef struct omq_plain_send:
        omq.omq_text topic
        omq.omq_text unique_id
        int32_t queue_id
        int32_t opaque
        int32_t flag
        uint32_t next
    ctypedef struct omq_send_part:
        uint32_t first
        uint32_t count
    ctypedef struct omq_send_run:
        omq_plain_send *sends
        omq_send_part *parts
        size_t count
        size_t part_count
        size_t size
    ctypedef struct omq_answer_text:
        omq.omq_text around[5]
        omq.omq_text store_host
    omq_send_run *omq_send_run_read(
        const uint8_t *bytes, size_t size, size_t most_frame, size_t most_body
    )
    void omq_send_run_free(omq_send_run *run)
    omq.omq_status omq_send_part_measure(
        const omq_send_run *run, size_t part, const omq.omq_record_head *head,
        size_t *record_bytes
    )
    void omq_send_part_write(
        const omq_send_run *run, size_t part, const omq.omq_record_head *head,
        uint8_t *records, uint32_t *positions, int64_t *tags
    )
    size_t omq_send_answers_most(const omq_send_run *run, const omq_answer_text *text)
    size_t omq_send_answers(
        const omq_send_run *run, const omq_answer_text *text, const int64_t *queue_offsets,
        const int64_t *physical_offsets, uint8_t *answers
    )


@cython.final
@cython.no_gc
cdef class SendRun:
    """Plain sends at the beginning of received bytes; see core/contract/."""

    cdef omq_send_run *_run  # owned; freed in __dealloc__
    cdef bytes _data  # its texts are there

    def __cinit__(self, bytes data not None, *, size_t max_frame_bytes, size_t max_body_bytes):
        self._data = data
        self._run = omq_send_run_read(
            <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
            max_frame_bytes, max_body_bytes,
        )
        if self._run is NULL:
            raise MemoryError("no memory for the sends that were received")

    def __dealloc__(self):
        omq_send_run_free(self._run)

    def __len__(self):
        return self._run.count

    @property
    def size(self):
        return self._run.size

    def queues(self):
        cdef size_t i
        cdef omq_plain_send *first
        cdef list found = []
        for i in range(self._run.part_count):
            first = &self._run.sends[self._run.parts[i].first]
            found.append((decoded(&first.topic), first.queue_id))
        return found

    def unique_ids(self, size_t part):
        self._check(part)
        cdef omq_send_part *wanted = &self._run.parts[part]
        cdef uint32_t place = wanted.first
        cdef uint32_t i
        cdef list found = PyList_New(wanted.count)
        for i in range(wanted.count):
            text = decoded(&self._run.sends[place].unique_id)
            Py_INCREF(text)
            PyList_SET_ITEM(found, i, text)
            place = self._run.sends[place].next
        return found

    def write(self, size_t part, RecordWriter writer not None, int64_t stored_ms):
        self._check(part)
        cdef RecordBlock block = RecordBlock.__new__(RecordBlock)
        cdef omq.omq_record_head head = writer._head
        cdef size_t size
        head.stored_ms, head.reconsume_times = stored_ms, 0
        if omq_send_part_measure(self._run, part, &head, &size) != omq.OMQ_OK:
            raise failure(_status.OUT_OF_RANGE, f"records of part {part} of received sends")
        block._allocate(self._run.parts[part].count, size)
        omq_send_part_write(
            self._run, part, &head, block._records, block._positions, block._tags
        )
        return block

    def requests(self):
        cdef size_t i
        return [
            (self._run.sends[i].opaque, self._run.sends[i].flag)
            for i in range(self._run.count)
        ]

    def answers(self, tuple around not None, bytes store_host not None, list offsets not None):
        cdef omq_answer_text text
        cdef size_t size
        cdef size_t i
        cdef int64_t *places
        cdef bytes found
        if len(around) != 5 or <size_t>len(offsets) != self._run.part_count:
            raise ValueError(
                f"answers: {len(around)} pieces of text, offsets of {len(offsets)} parts: "
                f"expected 5 and {self._run.part_count}"
            )
        for i in range(5):
            text.around[i] = text_of(<bytes?>around[i])
        text.store_host = text_of(store_host)
        places = <int64_t *>allocate(2 * self._run.part_count, sizeof(int64_t))
        try:
            for i in range(self._run.part_count):
                places[i], places[self._run.part_count + i] = offsets[i]
                if places[i] < 0 or places[self._run.part_count + i] < 0:
                    raise failure(_status.OUT_OF_RANGE, f"answers: offsets {offsets[i]}")
            found = PyBytes_FromStringAndSize(NULL, omq_send_answers_most(self._run, &text))
            size = omq_send_answers(
                self._run, &text, places, places + self._run.part_count,
                <uint8_t *>PyBytes_AS_STRING(found),
            )
        finally:
            PyMem_Free(places)
        return found[:size]

    cdef int _check(self, size_t part) except -1:
        if part >= self._run.part_count:
            raise failure(
                _status.OUT_OF_RANGE, f"part {part} of {self._run.part_count}"
            )
        return 0
