# What ext/core/pull_answer.h, ext/core/shared_room.h, ext/core/queue_filling.h,
# ext/engine/answer_queue.h, ext/engine/answer_columns.h, ext/engine/durations.h and ext/engine/pull_engine.h declare.
cdef extern from "pull_answer.h" nogil:
    ctypedef struct omq_answer:
        const uint8_t *body
        size_t size
        omq.omq_message_rows rows
        int64_t last_offset
    void omq_answer_release(omq_answer *answer)


cdef extern from "shared_room.h" nogil:
    ctypedef struct omq_shared_room:
        pass
    omq_shared_room *omq_shared_room_new(size_t messages)
    void omq_shared_room_release(omq_shared_room *room)
    size_t omq_shared_room_pending(omq_shared_room *room)


cdef extern from "queue_filling.h" nogil:
    ctypedef struct omq_fill_limits:
        omq.bool fills_if_none_pending
        omq.bool counts_pending
        size_t messages
        uint64_t bytes
        int64_t span
    omq_answer *omq_process_queue_answer(omq.omq_process_queue *queue, uint32_t slot)
    void omq_process_queue_fill_new_only(
        omq.omq_process_queue *queue, omq.omq_id_window *window
    )
    void omq_process_queue_fill_lanes(omq.omq_process_queue *queue, omq.omq_lane_map *map)
    void omq_process_queue_fill_within(omq.omq_process_queue *queue, omq_shared_room *room)
    omq_answer *omq_process_queue_lane_answer(omq.omq_process_queue *queue, uint32_t number)
    omq.bool omq_process_queue_has_answer(
        omq.omq_process_queue *queue, uint32_t slot, const omq_answer *answer
    )


cdef extern from "answer_queue.h" nogil:
    omq.omq_status omq_answer_new(
        const uint8_t *body, size_t size, const omq.omq_text *tags, size_t tag_count,
        omq.bool check_crc, const omq.omq_pulled *pulled, omq_answer **answer
    )
    ctypedef struct omq_answer_queue:
        pass
    ctypedef struct omq_answer_rows:
        omq_answer *answer
        size_t first_row
        size_t end_row
    ctypedef enum omq_taken:
        OMQ_TAKEN_SOME
        OMQ_TAKEN_ALL
        OMQ_TAKEN_NONE
    ctypedef enum omq_fill_next:
        OMQ_FILL_REFUSED
    ctypedef struct omq_room_waiter:
        void (*notify)(void *context) noexcept
        void *context
    omq_answer_queue *omq_answer_queue_new(
        int64_t start, int64_t end, uint64_t most_bytes, omq.bool is_whole
    )
    void omq_answer_queue_free(omq_answer_queue *queue)
    omq_fill_next omq_answer_queue_fill(
        omq_answer_queue *queue, omq_answer *answer, int64_t first, int64_t next,
        omq_room_waiter waiter
    )
    void omq_answer_queue_skip(omq_answer_queue *queue, int64_t next)
    int64_t omq_answer_queue_next(omq_answer_queue *queue)
    void omq_answer_queue_end(omq_answer_queue *queue)
    omq_taken omq_answer_queue_take(
        omq_answer_queue *queue, size_t most, int64_t wait_ms, omq_answer_rows *rows
    )
    uint64_t omq_answer_queue_lost(omq_answer_queue *queue, int64_t *first)


cdef extern from "answer_columns.h" nogil:
    enum:
        OMQ_BUFFER_END
    ctypedef struct omq_buffer_span:
        size_t at
        size_t size
    ctypedef struct omq_left_out:
        const omq.omq_text *names
        size_t count
        omq.omq_text prefix
    ctypedef struct omq_answer_columns:
        size_t rows
        size_t entries
        size_t bytes
        omq.bool has_compressed
        omq_buffer_span spans[OMQ_BUFFER_END]
    size_t omq_answer_columns_most(const omq_answer_rows *parts, size_t count, uint32_t wanted)
    omq.bool omq_answer_columns_write(
        const omq_answer_rows *parts, size_t count, uint32_t wanted,
        const omq_left_out *left_out, uint8_t *memory, omq_answer_columns *columns, size_t *part,
        size_t *row
    )


cdef extern from "durations.h" nogil:
    enum:
        OMQ_DURATION_BUCKETS
    unsigned omq_duration_bucket(int64_t ns)


cdef extern from "pull_engine.h" nogil:
    ctypedef struct omq_pull_engine:
        pass
    ctypedef struct omq_pull_connection:
        pass
    ctypedef struct omq_pull_stream:
        pass
    ctypedef enum omq_connection_end:
        OMQ_CONNECTION_CLOSED
    ctypedef enum omq_stream_end:
        OMQ_STREAM_GOES_ON
    ctypedef struct omq_stream_plan:
        omq.omq_process_queue *queue
        omq_answer_queue *answers
        const omq.omq_request_template *request
        omq.omq_text suggestion
        const omq.omq_text *tags
        size_t tag_count
        omq.bool check_crc
        omq.bool is_filtered
        int32_t queue_id
        int64_t offset
        int64_t timeout_ms
        int64_t most_past_end
        omq.bool is_single
        omq_fill_limits limits
    ctypedef struct omq_pull_counts:
        uint64_t pulls
        uint64_t messages
        uint64_t pull_ms
        uint64_t buckets[OMQ_DURATION_BUCKETS]
    ctypedef struct omq_pull_event:
        omq_pull_connection *connection
        omq_connection_end connection_end
        int error
        void *owner
        omq_stream_end end
        omq.bool is_dispatched
        int64_t offset
        uint8_t *bytes
        size_t size
    omq_pull_engine *omq_pull_engine_new(
        int wake_read, int wake_write, int tell_write, int clock_id, size_t max_frame_bytes
    )
    void omq_pull_engine_close(omq_pull_engine *engine)
    void omq_pull_engine_free(omq_pull_engine *engine)
    void omq_pull_engine_rest(omq_pull_engine *engine)
    void omq_pull_engine_resume(omq_pull_engine *engine)
    ctypedef struct omq_tls_records:
        const uint8_t *bytes
        size_t size
        size_t count
    ctypedef enum omq_tls_state:
        OMQ_TLS_OPEN
        OMQ_TLS_CLOSED
        OMQ_TLS_FAILED
        OMQ_TLS_NO_MEMORY
        OMQ_TLS_ENDED
    ctypedef struct omq_tls:
        omq_tls_state (*step)(
            void *owner, omq_pull_connection *connection, const omq_tls_records *received
        ) noexcept nogil
        void (*leave)() noexcept nogil
    uint8_t *omq_pull_connection_room(omq_pull_connection *connection, size_t size)
    void omq_pull_connection_add(omq_pull_connection *connection, size_t size)
    omq.bool omq_pull_connection_take(omq_pull_connection *connection)
    const uint8_t *omq_pull_connection_frames(omq_pull_connection *connection, size_t *size)
    omq.bool omq_pull_connection_send(
        omq_pull_connection *connection, const uint8_t *bytes, size_t size
    )
    omq_pull_connection *omq_pull_connection_new(
        omq_pull_engine *engine, int socket, const omq_tls *tls, void *owner
    )
    void omq_pull_connection_close(omq_pull_connection *connection)
    void omq_pull_connection_free(omq_pull_connection *connection)
    omq_pull_stream *omq_pull_stream_new(
        omq_pull_connection *connection, const omq_stream_plan *plan, void *owner
    )
    void omq_pull_stream_permit(omq_pull_stream *stream)
    void omq_pull_stream_start(omq_pull_stream *stream)
    void omq_pull_stream_forbid(omq_pull_stream *stream)
    void omq_pull_stream_stop(omq_pull_stream *stream)
    void omq_pull_stream_free(omq_pull_stream *stream)
    void omq_pull_stream_limit(omq_pull_stream *stream, const omq_fill_limits *limits)
    omq_pull_counts omq_pull_stream_take_counts(omq_pull_stream *stream)
    omq.bool omq_pull_stream_is_asking(const omq_pull_stream *stream)
    int64_t omq_pull_stream_asked_ms(const omq_pull_stream *stream)
    omq.bool omq_pull_engine_next(omq_pull_engine *engine, omq_pull_event *event)
    void *omq_pull_engine_take_ready(omq_pull_engine *engine)
    omq.bool omq_pull_engine_wait_ready(omq_pull_engine *engine)
    void omq_pull_engine_interrupt(omq_pull_engine *engine)
