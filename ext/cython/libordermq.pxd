# ordermq.h between its <declarations> marks, in Cython's words;
# tests/architecture/test_declarations.py keeps the two equal.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "stdbool.h" nogil:
    ctypedef bint bool


cdef extern from "ordermq.h" nogil:
    ctypedef enum omq_status:
        OMQ_OK
        OMQ_NO_MEMORY
        OMQ_OUT_OF_RANGE
        OMQ_WRONG_SHAPE
        OMQ_DUPLICATE
        OMQ_MALFORMED
        OMQ_UNKNOWN_ID

    ctypedef struct omq_offset_map
    ctypedef struct omq_entry:
        int64_t offset
        uint64_t token
    omq_offset_map *omq_offset_map_new()
    void omq_offset_map_free(omq_offset_map *map)
    omq_status omq_offset_map_put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new)
    bool omq_offset_map_get(const omq_offset_map *map, int64_t offset, uint64_t *token)
    bool omq_offset_map_remove(omq_offset_map *map, int64_t offset)
    size_t omq_offset_map_pop_first(omq_offset_map *map, omq_entry *entries, size_t limit)
    bool omq_offset_map_first(const omq_offset_map *map, omq_entry *entry)
    bool omq_offset_map_last(const omq_offset_map *map, omq_entry *entry)
    bool omq_offset_map_floor(const omq_offset_map *map, int64_t offset, omq_entry *entry)
    bool omq_offset_map_ceiling(const omq_offset_map *map, int64_t offset, omq_entry *entry)
    omq_status omq_offset_map_put_columns(omq_offset_map *map, const int64_t *offsets,
                                          const uint64_t *tokens, size_t count, size_t *added)
    size_t omq_offset_map_remove_columns(omq_offset_map *map, const int64_t *offsets, size_t count)
    size_t omq_offset_map_read(const omq_offset_map *map, int64_t start, int64_t *offsets,
                               uint64_t *tokens, size_t capacity)
    size_t omq_offset_map_count(const omq_offset_map *map)
    void omq_offset_map_clear(omq_offset_map *map)
    const char *omq_offset_map_check(const omq_offset_map *map)

    ctypedef struct omq_process_queue
    ctypedef struct omq_segment:
        uint32_t slot
        uint32_t first
        uint32_t count
    ctypedef struct omq_process_queue_state:
        size_t pending
        size_t consuming
        uint64_t size_bytes
        int64_t first_pending
        int64_t last_pending
        int64_t first_consuming
        int64_t last_consuming
        int64_t max_offset
        int64_t floor
        uint64_t duplicates_ignored
        bool is_dispatched
    omq_process_queue *omq_process_queue_new()
    void omq_process_queue_free(omq_process_queue *queue)
    omq_status omq_process_queue_put_columns(omq_process_queue *queue, const int64_t *offsets,
                                             const uint64_t *tokens, const uint32_t *sizes,
                                             size_t count, bool *dispatch)
    omq_status omq_process_queue_put_batch(omq_process_queue *queue, const int64_t *offsets,
                                           const uint32_t *sizes, size_t count, uint32_t *slot,
                                           bool *dispatch)
    omq_status omq_process_queue_put_run(omq_process_queue *queue, int64_t first,
                                         const uint32_t *sizes, size_t count, uint64_t bytes,
                                         uint32_t *slot, bool *dispatch)
    omq_status omq_process_queue_take_columns(omq_process_queue *queue, int64_t *offsets,
                                              uint64_t *tokens, size_t limit, size_t *taken)
    omq_status omq_process_queue_take_segments(omq_process_queue *queue, omq_segment *segments,
                                               size_t limit, size_t *count)
    int64_t omq_process_queue_commit(omq_process_queue *queue, uint32_t *slot)
    omq_status omq_process_queue_make_again_from(omq_process_queue *queue, int64_t start,
                                                 size_t *moved)
    omq_status omq_process_queue_make_again(omq_process_queue *queue, const int64_t *offsets,
                                            size_t count, size_t *moved)
    omq_status omq_process_queue_remove(omq_process_queue *queue, const int64_t *offsets,
                                        size_t count, int64_t *watermark)
    void omq_process_queue_clear(omq_process_queue *queue)
    omq_status omq_process_queue_reset(omq_process_queue *queue, int64_t floor)
    bool omq_process_queue_begin_dispatch(omq_process_queue *queue)
    void omq_process_queue_end_dispatch(omq_process_queue *queue)
    bool omq_process_queue_collect(omq_process_queue *queue, uint32_t *slot)
    bool omq_process_queue_is_pending(omq_process_queue *queue, int64_t offset)
    void omq_process_queue_read(omq_process_queue *queue, omq_process_queue_state *state)
    const char *omq_process_queue_check(omq_process_queue *queue)

    ctypedef struct omq_lane_map
    ctypedef struct omq_key:
        const uint8_t *bytes
        size_t size
    ctypedef struct omq_key_column:
        const uint8_t *bytes
        size_t size
        const uint32_t *positions
        const uint32_t *sizes
    ctypedef enum omq_flight:
        OMQ_FLIGHT_NONE
        OMQ_FLIGHT_OWN
        OMQ_FLIGHT_OLD
    ctypedef struct omq_lane_map_state:
        size_t messages
        size_t in_flight
        size_t old_flights
        size_t ready
        size_t keys
        size_t parked
        int64_t watermark
        int64_t next_offset
        uint64_t duplicates_ignored
        bool is_full
    omq_lane_map *omq_lane_map_new(uint32_t max_in_flight, int64_t max_ahead, bool has_barriers,
                                   uint64_t seed)
    void omq_lane_map_free(omq_lane_map *map)
    omq_status omq_lane_map_add(omq_lane_map *map, const int64_t *offsets, const omq_key *keys,
                                size_t count, size_t *ignored, size_t *added)
    omq_status omq_lane_map_add_columns(omq_lane_map *map, const int64_t *offsets,
                                        const uint64_t *tokens, const omq_key_column *keys,
                                        size_t count, size_t *ignored, size_t *added)
    omq_status omq_lane_map_take(omq_lane_map *map, int64_t *offsets, uint64_t *tokens, size_t limit,
                                 size_t *taken)
    omq_status omq_lane_map_divert(omq_lane_map *map, const omq_key *key, int64_t *offsets,
                                   uint64_t *tokens, size_t limit, size_t *taken)
    omq_flight omq_lane_map_done(omq_lane_map *map, int64_t offset)
    omq_status omq_lane_map_done_columns(omq_lane_map *map, const int64_t *offsets, size_t count,
                                         size_t *ended)
    omq_flight omq_lane_map_failed(omq_lane_map *map, int64_t offset)
    omq_status omq_lane_map_park(omq_lane_map *map, const omq_key *key, bool *changed)
    bool omq_lane_map_unpark(omq_lane_map *map, const omq_key *key)
    bool omq_lane_map_is_parked(omq_lane_map *map, const omq_key *key)
    omq_status omq_lane_map_reset(omq_lane_map *map, int64_t next_offset)
    void omq_lane_map_read(omq_lane_map *map, omq_lane_map_state *state)
    const char *omq_lane_map_check(omq_lane_map *map)

    ctypedef struct omq_lock_table
    ctypedef struct omq_lock:
        uint64_t group
        uint64_t queue
        uint64_t owner
        uint64_t epoch
        int64_t granted_ms
    omq_lock_table *omq_lock_table_new(int64_t lease_ms, uint64_t first_epoch)
    void omq_lock_table_free(omq_lock_table *table)
    omq_status omq_lock_table_add_id(omq_lock_table *table, uint64_t *id)
    omq_status omq_lock_table_pin(omq_lock_table *table, uint64_t id)
    omq_status omq_lock_table_unpin(omq_lock_table *table, uint64_t id)
    size_t omq_lock_table_known(omq_lock_table *table, const uint64_t *ids, size_t count)
    size_t omq_lock_table_forget(omq_lock_table *table, uint64_t *ids, size_t capacity)
    omq_status omq_lock_table_try_lock(omq_lock_table *table, uint64_t group,
                                       const uint64_t *queues, size_t count, uint64_t owner,
                                       int64_t now_ms, uint64_t *epochs)
    void omq_lock_table_unlock(omq_lock_table *table, uint64_t group, const uint64_t *queues,
                               size_t count, uint64_t owner, const uint64_t *epochs,
                               bool *unlocked)
    bool omq_lock_table_holder(omq_lock_table *table, uint64_t group, uint64_t queue,
                               omq_lock *lock)
    bool omq_lock_table_is_current(omq_lock_table *table, uint64_t group, uint64_t queue,
                                   uint64_t owner, uint64_t epoch, int64_t now_ms)
    bool omq_lock_table_is_all_expired(omq_lock_table *table, uint64_t group, int64_t now_ms)
    size_t omq_lock_table_sweep(omq_lock_table *table, int64_t now_ms, omq_lock *locks,
                                size_t capacity)
    size_t omq_lock_table_snapshot(omq_lock_table *table, omq_lock *locks, size_t capacity)
    omq_status omq_lock_table_restore(omq_lock_table *table, const omq_lock *locks, size_t count,
                                      uint64_t next_epoch)
    size_t omq_lock_table_count(omq_lock_table *table)
    uint64_t omq_lock_table_next_epoch(omq_lock_table *table)
    const char *omq_lock_table_check(omq_lock_table *table)

    ctypedef enum omq_fault:
        OMQ_FAULT_TRAILING
        OMQ_FAULT_RECORD_SIZE
        OMQ_FAULT_TRUNCATED
        OMQ_FAULT_MAGIC
        OMQ_FAULT_FIXED_PART
        OMQ_FAULT_QUEUE_OFFSET
        OMQ_FAULT_BODY_SIZE
        OMQ_FAULT_TOPIC_SIZE
        OMQ_FAULT_PROPERTY_SIZE
        OMQ_FAULT_RECORD_END
        OMQ_FAULT_CRC
        OMQ_FAULT_INNER_SIZE
        OMQ_FAULT_INNER_BODY
        OMQ_FAULT_INNER_PROPERTIES
        OMQ_FAULT_INNER_COMPRESSED
        OMQ_FAULT_INNER_DELAYED
    ctypedef struct omq_message_fault:
        omq_fault fault
        size_t record
        size_t position
    ctypedef struct omq_text:
        const uint8_t *bytes
        size_t size
    ctypedef struct omq_message_rows:
        uint32_t *positions
        uint32_t *body_sizes
        uint32_t *outers
        uint32_t *numbers
        size_t count
        uint64_t size_bytes
        int64_t first_offset
        bool is_run
    size_t omq_message_count(const uint8_t *body, size_t size, bool *has_inner)
    omq_status omq_message_index(const uint8_t *body, size_t size, const omq_text *tags,
                                 size_t tag_count, bool check_crc, omq_message_rows *rows,
                                 int64_t *last_offset, omq_message_fault *fault)
    ctypedef struct omq_message_parts:
        uint32_t body_at
        uint32_t body_size
        uint32_t property_at
        uint32_t property_size
        bool is_compressed
    ctypedef struct omq_message:
        int64_t queue_offset
        int64_t physical_offset
        int64_t born_ms
        int64_t stored_ms
        int64_t prepared_offset
        int32_t queue_id
        int32_t flag
        int32_t sys_flag
        int32_t reconsume_times
        uint32_t born_host_at
        uint32_t born_host_size
        uint32_t store_host_at
        uint32_t store_host_size
    void omq_message_locate(const uint8_t *body, const omq_message_rows *rows, size_t row,
                            omq_message_parts *parts)
    void omq_message_read(const uint8_t *body, const omq_message_rows *rows, size_t row,
                          omq_message *message)
    int64_t omq_message_offset(const uint8_t *body, const omq_message_rows *rows, size_t row)
    ctypedef enum omq_column:
        OMQ_COLUMN_OFFSETS
        OMQ_COLUMN_PHYSICAL_OFFSETS
        OMQ_COLUMN_BORN_TIMESTAMPS
        OMQ_COLUMN_STORE_TIMESTAMPS
        OMQ_COLUMN_POSITIONS
        OMQ_COLUMN_BODY_POSITIONS
        OMQ_COLUMN_BODY_SIZES
        OMQ_COLUMN_PROPERTY_POSITIONS
        OMQ_COLUMN_PROPERTY_SIZES
        OMQ_COLUMN_TAG_HASHES
        OMQ_COLUMN_QUEUE_IDS
        OMQ_COLUMN_FLAGS
        OMQ_COLUMN_SYS_FLAGS
        OMQ_COLUMN_RECONSUME_TIMES
        OMQ_COLUMN_END
    void omq_message_read_columns(const uint8_t *body, const omq_message_rows *rows,
                                  void *const *columns)
    void omq_message_find_property(const uint8_t *body, const omq_message_rows *rows,
                                   const omq_text *name, uint32_t *positions, uint32_t *sizes)
    ctypedef struct omq_property:
        omq_text name
        omq_text value
    bool omq_property_next(const uint8_t *text, size_t size, size_t *at, omq_property *property)
    size_t omq_message_count_properties(const uint8_t *body, const omq_message_rows *rows)
    size_t omq_message_list_properties(const uint8_t *body, const omq_message_rows *rows,
                                       int32_t *starts, uint32_t *name_positions,
                                       uint32_t *name_sizes, uint32_t *value_sizes)
    omq_status omq_gather_measure(size_t body_size, const uint32_t *positions,
                                  const uint32_t *sizes, size_t count, int32_t *starts)
    size_t omq_gather_copy(const uint8_t *body, const uint32_t *positions, const int32_t *starts,
                           size_t count, bool is_text, uint8_t *bytes)
    bool omq_property_find(const uint8_t *text, size_t size, const omq_text *name,
                           omq_text *value)
    bool omq_is_utf8(const uint8_t *text, size_t size)
    int32_t omq_java_hash(const omq_text *text)
    ctypedef struct omq_record_head:
        omq_text topic
        omq_text born_host
        omq_text store_host
        int64_t born_ms
        int64_t stored_ms
        int32_t queue_id
        int32_t sys_flag
        int32_t reconsume_times
    ctypedef struct omq_outgoing:
        omq_text body
        omq_text properties
        int32_t flag
    size_t omq_record_size(const omq_record_head *head, size_t body_size, size_t property_size)
    void omq_record_write(const omq_record_head *head, const omq_outgoing *message,
                          uint8_t *record)
    omq_status omq_batch_measure(const omq_record_head *head, const uint8_t *batch, size_t size,
                                 size_t *count, size_t *record_bytes, omq_message_fault *fault)
    void omq_batch_write(const omq_record_head *head, const uint8_t *batch, size_t count,
                         uint8_t *records, uint32_t *positions, int64_t *tags)
    void omq_records_stamp(uint8_t *records, const uint32_t *positions, size_t count,
                           int64_t queue_offset, int64_t physical_offset)
    int32_t omq_tag_hash(const omq_text *properties)
    omq_status omq_batch_size(const omq_outgoing *messages, size_t count, size_t *size)
    void omq_batch_encode(const omq_outgoing *messages, size_t count, uint8_t *batch)
    ctypedef struct omq_texts:
        const int32_t *positions
        const uint8_t *bytes
        size_t size
    ctypedef struct omq_property_column:
        omq_text name
        omq_texts texts
        const int64_t *numbers
    ctypedef struct omq_row_messages:
        omq_texts bodies
        size_t count
        omq_text fixed
        const omq_property_column *columns
        size_t column_count
        const uint8_t *unique
    omq_status omq_ordered_rows(const int64_t *offsets, const int32_t *queue_ids,
                                const omq_texts *names, size_t name_count, size_t first, size_t end,
                                size_t *found)
    omq_status omq_rows_measure(const omq_row_messages *messages, const uint32_t *rows,
                                size_t row_count, size_t most_bytes, size_t *fitting, size_t *size)
    void omq_rows_encode(const omq_row_messages *messages, const uint32_t *rows, size_t row_count,
                         uint8_t *batch)
    ctypedef enum omq_header_fault:
        OMQ_HEADER_OK
        OMQ_HEADER_END
        OMQ_HEADER_REMARK
        OMQ_HEADER_FIELDS
        OMQ_HEADER_NAME
        OMQ_HEADER_VALUE
        OMQ_HEADER_TEXT
    ctypedef struct omq_header:
        int32_t opaque
        int32_t flag
        int16_t code
        int16_t version
        uint8_t language
        omq_text remark
        omq_text fields
    omq_header_fault omq_header_read(const uint8_t *bytes, size_t size, omq_header *header,
                                     size_t *position)
    bool omq_header_next_field(const omq_header *header, size_t *at, omq_property *field)
