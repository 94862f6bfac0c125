/* The process queue of ordermq.h: two offset trees, pending and consuming, under one mutex. */
#include <stdlib.h>

#include "check.h"
#include "process_queue.h"

/* Every static function below, and every omq_locked_ one, is called under the mutex. */

static inline int64_t first_offset(const omq_offset_tree *map) {
    return map->count > 0 ? omq_offset_tree_first_item(map).offset : -1;
}

static inline int64_t last_offset(const omq_offset_tree *map) {
    if (map->count == 0) {
        return -1;
    }
    omq_item last = omq_offset_tree_last_item(map);
    return last.offset + omq_run_length(map, last.extent) - 1;
}

static inline omq_status need_shape(const omq_process_queue *queue, omq_shape shape) {
    bool fits = queue->shape == OMQ_SHAPE_NONE || queue->shape == shape;
    return fits ? OMQ_OK : OMQ_WRONG_SHAPE;
}

/* ---- life, dispatch flag, state ---- */

omq_process_queue *omq_process_queue_new(void) {
    omq_process_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return NULL;
    }
    queue->max_offset = -1; /* below offset 0, so the first put takes the fast path of put_run */
    omq_locked_forget_read(queue);
    omq_batch_slots_open(&queue->slots);
    if (omq_mutex_init(&queue->mutex) == 0) {
        if (omq_offset_tree_open(&queue->pending) == OMQ_OK) {
            if (omq_offset_tree_open(&queue->consuming) == OMQ_OK) {
                return queue;
            }
            omq_offset_tree_close(&queue->pending);
        }
        omq_mutex_destroy(&queue->mutex);
    }
    free(queue);
    return NULL;
}

void omq_process_queue_free(omq_process_queue *queue) {
    if (queue != NULL) {
        omq_room_share_leave(&queue->share);
        omq_offset_tree_close(&queue->pending);
        omq_offset_tree_close(&queue->consuming);
        omq_mutex_destroy(&queue->mutex);
        omq_batch_slots_close(&queue->slots);
        omq_filled_lanes_close(&queue->lanes);
        free(queue);
    }
}

static void notify_waiter(omq_process_queue *queue) {
    omq_room_waiter waiter = queue->waiter;
    if (waiter.notify != NULL) {
        queue->waiter.notify = NULL;
        waiter.notify(waiter.context);
    }
}

static inline size_t limited_count(const omq_process_queue *queue, bool counts_pending) {
    return counts_pending ? queue->pending.count : omq_locked_count(queue);
}

void omq_process_queue_unlock(omq_process_queue *queue) {
    if (queue->waiter.notify != NULL &&
        limited_count(queue, queue->counts_pending) < queue->room_below) {
        notify_waiter(queue);
    }
    if (queue->share.room != NULL) {
        omq_room_share_count(&queue->share, queue->pending.count);
    }
    omq_mutex_unlock(&queue->mutex);
}

void omq_locked_forbid(omq_process_queue *queue) {
    queue->permit = 0;
    notify_waiter(queue); /* it finds its permit void */
}

/* The floor stays: what was committed must not come back when a pull repeats it. */
void omq_locked_clear(omq_process_queue *queue) {
    omq_batch_slots_release_all(&queue->slots);
    omq_filled_lanes_release(&queue->lanes, INT64_MAX);
    omq_offset_tree_clear(&queue->pending);
    omq_offset_tree_clear(&queue->consuming);
    queue->size_bytes = 0;
    queue->max_offset = -1;
    omq_locked_forbid(queue); /* answers on their way belong to what was cleared */
}

void omq_process_queue_clear(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    omq_locked_clear(queue);
    omq_process_queue_unlock(queue);
}

void omq_locked_reset(omq_process_queue *queue, int64_t floor) {
    omq_locked_clear(queue);
    queue->floor = floor;
}

omq_status omq_process_queue_reset(omq_process_queue *queue, int64_t floor) {
    if (floor < 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_locked_reset(queue, floor);
    omq_process_queue_unlock(queue);
    return OMQ_OK;
}

bool omq_process_queue_collect(omq_process_queue *queue, uint32_t *slot) {
    /* Almost every call finds nothing, so look without the mutex. Relaxed order is enough: a
     * thread sees the slots that it emptied itself, and may leave those of others to them. */
    if (atomic_load_explicit(&queue->slots.to_collect, memory_order_relaxed) == 0) {
        return false;
    }
    omq_mutex_lock(&queue->mutex);
    bool is_found = omq_batch_slots_collect(&queue->slots, slot);
    omq_process_queue_unlock(queue);
    return is_found;
}

bool omq_process_queue_begin_dispatch(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    bool begins = omq_locked_begin_dispatch(queue);
    omq_process_queue_unlock(queue);
    return begins;
}

void omq_process_queue_end_dispatch(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    queue->is_dispatched = false;
    omq_process_queue_unlock(queue);
}

bool omq_process_queue_is_pending(omq_process_queue *queue, int64_t offset) {
    omq_item item;
    omq_mutex_lock(&queue->mutex);
    bool is_found = omq_offset_tree_find(&queue->pending, offset, &item);
    omq_process_queue_unlock(queue);
    return is_found;
}

void omq_process_queue_read(omq_process_queue *queue, omq_process_queue_state *state) {
    omq_mutex_lock(&queue->mutex);
    *state = (omq_process_queue_state){
        .pending = queue->pending.count,
        .consuming = queue->consuming.count,
        .size_bytes = queue->size_bytes,
        .first_pending = first_offset(&queue->pending),
        .last_pending = last_offset(&queue->pending),
        .first_consuming = first_offset(&queue->consuming),
        .last_consuming = last_offset(&queue->consuming),
        .max_offset = queue->max_offset,
        .floor = queue->floor,
        .next_pull = queue->next_pull,
        .queue_end = queue->queue_end,
        .duplicates_ignored = queue->duplicates_ignored,
        .is_dispatched = queue->is_dispatched,
    };
    omq_process_queue_unlock(queue);
}

/* ---- put ---- */

typedef struct {
    const int64_t *offsets; /* NULL: first + index */
    int64_t first;
    const uint64_t *tokens; /* NULL: first_token + index, a batch */
    uint64_t first_token;
    const uint32_t *sizes; /* NULL: zeros */
    size_t count;
    uint64_t bytes; /* sum of the sizes */
} omq_columns;

static int64_t offset_at(const omq_columns *columns, size_t at) {
    return columns->offsets == NULL ? columns->first + (int64_t)at : columns->offsets[at];
}

typedef struct {
    size_t messages;
    uint64_t bytes;
} omq_added;

/* Check everything before anything is stored, so that a bad column changes nothing. Both loops
 * are free of branches, for the compiler to vectorise. */
static bool read_columns(omq_columns *columns) {
    uint64_t offsets = 0; /* sign bit: some offset is negative, or INT64_MAX */
    uint32_t sizes = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < columns->count; i++) {
        uint64_t offset = (uint64_t)columns->offsets[i];
        offsets |= offset | (offset + 1);
    }
    for (size_t i = 0; columns->sizes != NULL && i < columns->count; i++) {
        sizes |= columns->sizes[i];
        bytes += columns->sizes[i];
    }
    columns->bytes = bytes;
    return offsets >> 63 == 0 && sizes >> 31 == 0; /* a body's size is a Java int */
}

/* Count the offsets from `at` on that follow each other without a gap. Only tag filters and
 * compaction leave gaps, so try the whole rest first, without a branch per offset. */
static size_t contiguous(const omq_columns *columns, size_t at) {
    size_t left = columns->count - at;
    if (columns->offsets == NULL) {
        return left;
    }
    const int64_t *offsets = columns->offsets + at;
    uint64_t differs = 0; /* wraps where offsets jump; compared for equality only */
    for (size_t i = 1; i < left; i++) {
        differs |= (uint64_t)offsets[i] - (uint64_t)offsets[0] - i;
    }
    if (differs == 0) {
        return left;
    }
    size_t count = 1;
    while (offsets[count] == offsets[count - 1] + 1) {
        count++; /* ends: some offset differs */
    }
    return count;
}

/* Append the offsets from `at` on as far as they ascend. They are above everything ever buffered,
 * so none can be a duplicate and no tree is searched. */
static omq_status put_run(omq_process_queue *queue, const omq_columns *columns, size_t at,
                          omq_added *added) {
    const int64_t *offsets = columns->offsets;
    const uint32_t *sizes = columns->sizes == NULL ? NULL : columns->sizes + at;
    omq_status status;
    size_t count;
    if (columns->tokens == NULL) {
        count = contiguous(columns, at);
        omq_item run = {offset_at(columns, at), columns->first_token + at, (uint32_t)count};
        status = omq_offset_tree_append(&queue->pending, &run);
        count = status == OMQ_OK ? count : 0;
    } else {
        size_t end = at + 1;
        while (end < columns->count && offsets[end] > offsets[end - 1]) {
            end++;
        }
        status = omq_offset_tree_append_columns(&queue->pending, offsets + at, columns->tokens + at,
                                                sizes, end - at, &count);
    }
    if (count > 0) {
        queue->max_offset = offset_at(columns, at + count - 1);
        added->messages += count;
        added->bytes += count == columns->count ? columns->bytes : omq_sum_sizes(sizes, count);
    }
    return status;
}

/* Put one offset that may be a duplicate: a pull was repeated, or offsets do not ascend. */
static omq_status put_one(omq_process_queue *queue, const omq_columns *columns, size_t at,
                          omq_added *added) {
    omq_item item = {offset_at(columns, at), columns->first_token + at, 1};
    omq_item held;
    uint32_t size = columns->sizes == NULL ? 0 : columns->sizes[at];
    /* Below the floor it was committed: a pull that was under way at the commit repeats it. */
    bool is_new = item.offset >= queue->floor &&
                  !omq_offset_tree_find(&queue->pending, item.offset, &held) &&
                  !omq_offset_tree_find(&queue->consuming, item.offset, &held);
    if (!is_new) {
        queue->duplicates_ignored++;
        return OMQ_OK;
    }
    if (columns->tokens != NULL) {
        item.token = columns->tokens[at];
        item.extent = size;
    }
    if (omq_offset_tree_insert(&queue->pending, &item) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    if (item.offset > queue->max_offset) {
        queue->max_offset = item.offset;
    }
    added->messages++;
    added->bytes += size;
    return OMQ_OK;
}

static omq_status put_all(omq_process_queue *queue, const omq_columns *columns,
                          omq_added *added) {
    omq_status status = OMQ_OK;
    *added = (omq_added){0, 0};
    for (size_t i = 0; status == OMQ_OK && i < columns->count;) {
        int64_t offset = offset_at(columns, i);
        if (offset > queue->max_offset && offset >= queue->floor) {
            size_t before = added->messages;
            status = put_run(queue, columns, i, added);
            i += added->messages - before;
        } else {
            status = put_one(queue, columns, i, added);
            i++;
        }
    }
    queue->size_bytes += added->bytes; /* without memory a prefix stays, and counts */
    return status;
}

static void choose_shape(omq_process_queue *queue, omq_shape shape) {
    queue->shape = shape;
    queue->pending.has_runs = shape == OMQ_SHAPE_BATCHES;
    queue->consuming.has_runs = shape == OMQ_SHAPE_BATCHES;
}

omq_status omq_process_queue_put_columns(omq_process_queue *queue, const int64_t *offsets,
                                         const uint64_t *tokens, const uint32_t *sizes,
                                         size_t count, bool *dispatch) {
    omq_columns columns = {.offsets = offsets, .tokens = tokens, .sizes = sizes, .count = count};
    *dispatch = false;
    if (!read_columns(&columns)) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = need_shape(queue, OMQ_SHAPE_COLUMNS);
    if (status == OMQ_OK) {
        omq_added added;
        choose_shape(queue, OMQ_SHAPE_COLUMNS);
        status = put_all(queue, &columns, &added);
        /* On an error the caller does not read `dispatch`, so the flag must stay clear: a set
         * flag without a consume request would stop the queue for good. */
        *dispatch = status == OMQ_OK && omq_locked_begin_dispatch(queue);
    }
    omq_process_queue_unlock(queue);
    return status;
}

static omq_status fill_slot(omq_process_queue *queue, omq_columns *columns, uint32_t *slot) {
    uint32_t chosen;
    omq_added added;
    omq_status status = omq_batch_slots_choose(&queue->slots, columns->sizes, columns->count,
                                               columns->offsets != NULL, &chosen);
    if (status != OMQ_OK) {
        return status;
    }
    choose_shape(queue, OMQ_SHAPE_BATCHES);
    /* Tokens of a batch ascend with its offsets, which is what makes it one run. */
    columns->first_token = (uint64_t)chosen << 32;
    status = put_all(queue, columns, &added);
    if (added.messages > 0) {
        omq_batch_slots_fill(&queue->slots, chosen, (uint32_t)added.messages, added.bytes);
        *slot = chosen;
    } else {
        omq_batch_slots_drop(&queue->slots, chosen);
    }
    return status;
}

omq_status omq_locked_put(omq_process_queue *queue, const omq_arrival *arrival, uint32_t *slot) {
    omq_columns columns = {.offsets = arrival->offsets,
                           .first = arrival->first,
                           .sizes = arrival->sizes,
                           .count = arrival->count,
                           .bytes = arrival->bytes};
    omq_status status = need_shape(queue, OMQ_SHAPE_BATCHES);
    return status == OMQ_OK ? fill_slot(queue, &columns, slot) : status;
}

bool omq_arrival_measure(omq_arrival *arrival) {
    if (arrival->count >= UINT32_MAX) {
        return false;
    }
    if (arrival->offsets != NULL) {
        omq_columns all = {
            .offsets = arrival->offsets, .sizes = arrival->sizes, .count = arrival->count};
        bool is_good = read_columns(&all);
        arrival->bytes = all.bytes;
        return is_good;
    }
    return arrival->first >= 0 && arrival->first < INT64_MAX - (int64_t)arrival->count;
}

static omq_status put_batch(omq_process_queue *queue, omq_arrival *arrival, uint32_t *slot,
                            bool *dispatch) {
    *slot = OMQ_NO_SLOT;
    *dispatch = false;
    if (!omq_arrival_measure(arrival)) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = omq_locked_put(queue, arrival, slot);
    *dispatch = status == OMQ_OK && omq_locked_begin_dispatch(queue);
    omq_process_queue_unlock(queue);
    return status;
}

omq_status omq_process_queue_put_batch(omq_process_queue *queue, const int64_t *offsets,
                                       const uint32_t *sizes, size_t count, uint32_t *slot,
                                       bool *dispatch) {
    omq_arrival arrival = {.offsets = offsets, .sizes = sizes, .count = count};
    return put_batch(queue, &arrival, slot, dispatch);
}

omq_status omq_process_queue_put_run(omq_process_queue *queue, int64_t first,
                                     const uint32_t *sizes, size_t count, uint64_t bytes,
                                     uint32_t *slot, bool *dispatch) {
    omq_arrival arrival = {.first = first, .sizes = sizes, .count = count, .bytes = bytes};
    return put_batch(queue, &arrival, slot, dispatch);
}

/* ---- filled by a thread of its own ---- */

void omq_process_queue_advance(omq_process_queue *queue, int64_t next_pull, int64_t queue_end) {
    omq_mutex_lock(&queue->mutex);
    queue->next_pull = next_pull >= 0 ? next_pull : queue->next_pull;
    queue->queue_end = queue_end >= 0 ? queue_end : queue->queue_end;
    omq_process_queue_unlock(queue);
}

int64_t omq_locked_position(const omq_process_queue *queue) {
    return queue->pending.count > 0 ? first_offset(&queue->pending) : queue->next_pull;
}

int64_t omq_locked_done_after(const omq_process_queue *queue, int64_t done) {
    return queue->consuming.count > 0 ? done : omq_locked_position(queue);
}

uint64_t omq_process_queue_permit(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    omq_locked_forbid(queue);
    uint64_t permit = queue->permit = ++queue->permits;
    omq_process_queue_unlock(queue);
    return permit;
}

void omq_process_queue_forbid(omq_process_queue *queue, uint64_t permit) {
    omq_mutex_lock(&queue->mutex);
    if (permit == 0 || permit == queue->permit) {
        omq_locked_forbid(queue);
    }
    omq_process_queue_unlock(queue);
}

static void forget_waiter(omq_process_queue *queue) {
    queue->waiter = (omq_room_waiter){NULL, NULL};
    if (queue->share.room != NULL) {
        omq_room_share_forget_waiter(&queue->share);
    }
}

void omq_process_queue_forget_waiter(omq_process_queue *queue, const void *context) {
    omq_mutex_lock(&queue->mutex);
    if (queue->waiter.context == context) {
        forget_waiter(queue);
    }
    omq_process_queue_unlock(queue);
}

static int64_t span(const omq_process_queue *queue) {
    int64_t pending = first_offset(&queue->pending);
    int64_t oldest = first_offset(&queue->consuming);
    if (oldest < 0 || (pending >= 0 && pending < oldest)) {
        oldest = pending;
    }
    return oldest < 0 ? 0 : queue->max_offset - oldest;
}

static omq_fill_next next_fill(omq_process_queue *queue, const omq_fill_limits *limits,
                               omq_room_waiter waiter) {
    if (limits->fills_if_none_pending && queue->pending.count == 0) {
        return OMQ_FILL_MORE;
    }
    queue->counts_pending = limits->counts_pending;
    if (limited_count(queue, limits->counts_pending) > limits->messages) {
        /* Half empty before filling on: waking for each message costs more than it gives. */
        queue->room_below = limits->messages / 2 + 1;
        queue->waiter = waiter;
        return OMQ_FILL_WAIT;
    }
    if (queue->share.room != NULL) {
        omq_room_share_count(&queue->share, queue->pending.count);
        if (omq_room_share_wait(&queue->share, waiter)) {
            queue->room_below = 0;
            queue->waiter = waiter; /* for an end of the permit */
            return OMQ_FILL_WAIT;
        }
    }
    bool is_full = queue->size_bytes > limits->bytes || span(queue) > limits->span;
    return is_full ? OMQ_FILL_END : OMQ_FILL_MORE;
}

omq_fill_next omq_process_queue_may_fill(omq_process_queue *queue, uint64_t permit,
                                         const omq_fill_limits *limits, omq_room_waiter waiter) {
    omq_fill_next next = OMQ_FILL_REFUSED;
    omq_mutex_lock(&queue->mutex);
    if (permit == queue->permit) {
        forget_waiter(queue);
        next = next_fill(queue, limits, waiter);
    }
    omq_process_queue_unlock(queue);
    return next;
}

static omq_status put_answer(omq_process_queue *queue, omq_answer *answer,
                             const int64_t *offsets) {
    omq_columns columns = {.offsets = offsets,
                           .first = answer->rows.first_offset,
                           .sizes = answer->rows.body_sizes,
                           .count = answer->rows.count,
                           .bytes = answer->rows.size_bytes};
    uint32_t slot = OMQ_NO_SLOT;
    omq_status status = fill_slot(queue, &columns, &slot);
    if (slot != OMQ_NO_SLOT) { /* also without memory: a prefix may be buffered */
        omq_answer_hold(answer);
        queue->slots.slots[slot].answer = answer;
    }
    return status;
}

omq_fill_next omq_process_queue_fill(omq_process_queue *queue, uint64_t permit,
                                     omq_answer *answer, int64_t next_pull, int64_t queue_end,
                                     const omq_fill_limits *limits, omq_room_waiter waiter,
                                     bool *dispatch) {
    omq_fill_next next = OMQ_FILL_REFUSED;
    int64_t *offsets = NULL;
    omq_read_message last = omq_message_last(answer->body, &answer->rows);
    *dispatch = false;
    /* A filter, or compaction, left some out; lanes want them all. */
    if (!answer->rows.is_run || queue->lanes.map != NULL) {
        offsets = malloc(answer->rows.count * sizeof *offsets);
        if (offsets == NULL) {
            return OMQ_FILL_REFUSED;
        }
        for (size_t i = 0; i < answer->rows.count; i++) {
            offsets[i] = omq_message_offset(answer->body, &answer->rows, i);
        }
    }
    omq_mutex_lock(&queue->mutex);
    bool is_allowed =
        permit == queue->permit && need_shape(queue, OMQ_SHAPE_BATCHES) == OMQ_OK;
    if (is_allowed && queue->window != NULL) {
        bool has_copy;
        is_allowed = omq_id_window_note_new(queue->window, answer->body, &answer->rows,
                                            &has_copy) == OMQ_OK &&
                     !has_copy;
        next = has_copy ? OMQ_FILL_COPIES : next;
    }
    if (is_allowed &&
        put_answer(queue, answer, answer->rows.is_run ? NULL : offsets) == OMQ_OK &&
        (queue->lanes.map == NULL ||
         omq_filled_lanes_add(&queue->lanes, answer, offsets) == OMQ_OK)) {
        queue->next_pull = next_pull;
        queue->queue_end = queue_end;
        omq_locked_note_read(queue, last);
        *dispatch = omq_locked_begin_dispatch(queue);
        next = next_fill(queue, limits, waiter);
    }
    omq_process_queue_unlock(queue);
    free(offsets);
    return next;
}

void omq_process_queue_fill_new_only(omq_process_queue *queue, omq_id_window *window) {
    omq_mutex_lock(&queue->mutex);
    queue->window = window;
    omq_process_queue_unlock(queue);
}

void omq_process_queue_fill_within(omq_process_queue *queue, omq_shared_room *room) {
    omq_mutex_lock(&queue->mutex);
    omq_room_share_join(&queue->share, room);
    omq_process_queue_unlock(queue);
}

void omq_process_queue_fill_lanes(omq_process_queue *queue, omq_lane_map *map) {
    omq_mutex_lock(&queue->mutex);
    queue->lanes.map = map;
    omq_process_queue_unlock(queue);
}

omq_answer *omq_process_queue_lane_answer(omq_process_queue *queue, uint32_t number) {
    omq_mutex_lock(&queue->mutex);
    omq_answer *answer = omq_filled_lanes_answer(&queue->lanes, number);
    omq_process_queue_unlock(queue);
    return answer;
}

omq_answer *omq_process_queue_answer(omq_process_queue *queue, uint32_t slot) {
    omq_mutex_lock(&queue->mutex);
    omq_answer *answer = slot < queue->slots.count ? queue->slots.slots[slot].answer : NULL;
    if (answer != NULL) {
        omq_answer_hold(answer);
    }
    omq_process_queue_unlock(queue);
    return answer;
}

bool omq_locked_oldest_stored_ms(const omq_process_queue *queue, int64_t *stored_ms) {
    const omq_offset_tree *map = &queue->consuming;
    if (map->count == 0 || (queue->pending.count > 0 &&
                            first_offset(&queue->pending) < first_offset(&queue->consuming))) {
        map = &queue->pending;
    }
    if (queue->shape != OMQ_SHAPE_BATCHES || map->count == 0) {
        return false;
    }
    uint64_t token = omq_offset_tree_first_item(map).token;
    const omq_answer *answer = queue->slots.slots[omq_token_slot(token)].answer;
    if (answer == NULL) {
        return false;
    }
    omq_message message;
    omq_message_read(answer->body, &answer->rows, omq_token_index(token), &message);
    *stored_ms = message.stored_ms;
    return true;
}

bool omq_process_queue_has_answer(omq_process_queue *queue, uint32_t slot,
                                  const omq_answer *answer) {
    omq_mutex_lock(&queue->mutex);
    bool has = slot < queue->slots.count && queue->slots.slots[slot].answer == answer;
    omq_process_queue_unlock(queue);
    return has;
}

/* ---- what leaves ---- */

/* Subtract an entry that has left the queue, and its share of its batch. */
static void release(omq_process_queue *queue, const omq_item *item) {
    queue->size_bytes -= queue->shape == OMQ_SHAPE_COLUMNS
                             ? item->extent
                             : omq_batch_slots_release(&queue->slots, omq_token_slot(item->token),
                                                       omq_token_index(item->token), item->extent);
}

/* ---- take ---- */

/* Move an entry to consuming. It lies above what is there, except after something was put or made
 * pending again below it. */
static omq_status consume(omq_process_queue *queue, const omq_item *item) {
    return last_offset(&queue->consuming) < item->offset
               ? omq_offset_tree_append(&queue->consuming, item)
               : omq_offset_tree_insert(&queue->consuming, item);
}

/* Move up to `limit` entries from the head leaf of pending to consuming; copy their offsets
 * and tokens. Returns how many, 0 without memory. */
static size_t take_entries(omq_process_queue *queue, size_t limit, int64_t *offsets,
                           uint64_t *tokens) {
    const omq_leaf *leaf = queue->pending.head;
    uint32_t at = leaf->begin;
    size_t run = omq_leaf_count(leaf) < limit ? omq_leaf_count(leaf) : limit;
    size_t moved = 0;
    if (last_offset(&queue->consuming) < leaf->offsets[at]) {
        (void)omq_offset_tree_append_columns(&queue->consuming, leaf->offsets + at,
                                             leaf->tokens + at, leaf->extents + at, run, &moved);
    } else {
        omq_item item = omq_leaf_item(leaf, at);
        moved = omq_offset_tree_insert(&queue->consuming, &item) == OMQ_OK;
    }
    memcpy(offsets, leaf->offsets + at, moved * sizeof *offsets);
    memcpy(tokens, leaf->tokens + at, moved * sizeof *tokens);
    if (moved > 0) {
        omq_offset_tree_drop_head(&queue->pending, (uint32_t)moved);
    }
    return moved;
}

/* Check the shape of a take. If nothing is pending the dispatch flag is cleared here, under the
 * mutex under which put sets it: between the two no put can slip in unseen. */
static omq_status start_take(omq_process_queue *queue, omq_shape shape) {
    omq_status status = need_shape(queue, shape);
    if (status == OMQ_OK && queue->pending.count == 0) {
        queue->is_dispatched = false;
    }
    return status;
}

/* Start to load what the next take of this size will read: in a deep queue it was put so long ago
 * that no cache has it any more. */
static void prefetch_head(const omq_process_queue *queue, size_t limit) {
    enum { MOST = 64 };
    const omq_leaf *leaf = queue->pending.head;
    uint32_t wanted = limit < MOST ? (uint32_t)limit : MOST;
    uint32_t held = omq_leaf_count(leaf);
    omq_leaf_prefetch(leaf, leaf->begin, wanted);
    if (held < wanted && leaf->next != NULL) {
        omq_leaf_prefetch(leaf->next, 0, wanted - held);
    }
}

omq_status omq_process_queue_take_columns(omq_process_queue *queue, int64_t *offsets,
                                          uint64_t *tokens, size_t limit, size_t *taken) {
    size_t done = 0;
    *taken = 0;
    if (limit == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = start_take(queue, OMQ_SHAPE_COLUMNS);
    while (status == OMQ_OK && done < limit && queue->pending.count > 0) {
        size_t run = take_entries(queue, limit - done, offsets + done, tokens + done);
        done += run;
        if (run == 0) {
            status = done == 0 ? OMQ_NO_MEMORY : OMQ_OK;
            break;
        }
    }
    prefetch_head(queue, limit); /* under the mutex: another thread may free the head leaf */
    omq_process_queue_unlock(queue);
    *taken = done;
    return status;
}

/* Add a run to `count` segments, or grow the last one: a run that was cut at a leaf's key, or by
 * a retry, is whole again for the caller. Return how many segments there are. */
static size_t add_segment(omq_segment *segments, size_t count, const omq_item *run) {
    omq_segment added = {omq_token_slot(run->token), omq_token_index(run->token), run->extent};
    omq_segment *last = segments + count - 1;
    if (count > 0 && last->slot == added.slot && last->first + last->count == added.first) {
        last->count += added.count;
        return count;
    }
    segments[count] = added;
    return count + 1;
}

/* Move the lowest pending run, or its first `limit` messages, to consuming. */
static omq_status take_run(omq_process_queue *queue, size_t limit, omq_item *run) {
    *run = omq_offset_tree_first_item(&queue->pending);
    run->extent = run->extent < limit ? run->extent : (uint32_t)limit;
    omq_status status = consume(queue, run);
    if (status == OMQ_OK) {
        omq_offset_tree_trim_head(&queue->pending, run->extent);
    }
    return status;
}

omq_status omq_locked_take_unnamed(omq_process_queue *queue, size_t count) {
    omq_status status = OMQ_OK;
    omq_item run;
    while (status == OMQ_OK && count > 0 && queue->pending.count > 0) {
        status = take_run(queue, count, &run);
        count -= status == OMQ_OK ? run.extent : 0;
    }
    return status;
}

omq_status omq_locked_take_segments(omq_process_queue *queue, omq_segment *segments, size_t limit,
                                    size_t *count) {
    size_t left = limit;
    size_t found = 0;
    omq_status status = start_take(queue, OMQ_SHAPE_BATCHES);
    while (status == OMQ_OK && left > 0 && queue->pending.count > 0) {
        omq_item run;
        if (take_run(queue, left, &run) != OMQ_OK) {
            status = left == limit ? OMQ_NO_MEMORY : OMQ_OK;
            break;
        }
        found = add_segment(segments, found, &run);
        left -= run.extent;
    }
    *count = found;
    return status;
}

omq_status omq_process_queue_take_segments(omq_process_queue *queue, omq_segment *segments,
                                           size_t limit, size_t *count) {
    *count = 0;
    if (limit == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = omq_locked_take_segments(queue, segments, limit, count);
    omq_process_queue_unlock(queue);
    return status;
}

/* ---- commit and back ---- */

int64_t omq_locked_commit(omq_process_queue *queue, uint32_t *slot) {
    *slot = OMQ_NO_SLOT;
    omq_offset_tree *consuming = &queue->consuming;
    int64_t next = consuming->count > 0 ? last_offset(consuming) + 1 : -1;
    if (next >= 0) {
        for (const omq_leaf *leaf = consuming->head; leaf != NULL; leaf = leaf->next) {
            for (uint32_t i = leaf->begin; i < leaf->end; i++) {
                omq_item item = omq_leaf_item(leaf, i);
                release(queue, &item);
            }
        }
        omq_offset_tree_clear(consuming);
        if (next > queue->floor) { /* make_again below an earlier commit must not lower it */
            queue->floor = next;
        }
        /* One slot comes with the commit, so that the usual caller needs no second call. */
        (void)omq_batch_slots_collect(&queue->slots, slot);
    }
    return next;
}

int64_t omq_process_queue_commit(omq_process_queue *queue, uint32_t *slot) {
    omq_mutex_lock(&queue->mutex);
    int64_t next = omq_locked_commit(queue, slot);
    omq_process_queue_unlock(queue);
    return next;
}

/* Make everything consuming pending in O(1): a rollback of a queue with nothing else pending. */
static void swap_maps(omq_process_queue *queue) {
    omq_offset_tree pending = queue->pending;
    queue->pending = queue->consuming;
    queue->consuming = pending;
}

/* Return the part of a tree's last entry that lies at or above `start`. */
static omq_item last_part(const omq_offset_tree *map, int64_t start) {
    omq_item last = omq_offset_tree_last_item(map);
    if (last.offset < start) {
        uint32_t below = (uint32_t)(start - last.offset);
        last = (omq_item){start, last.token + below, last.extent - below};
    }
    return last;
}

/* Take back the first `count` offsets of an insert that ran out of memory half way. Each is the
 * end of its run, so that no run is cut in two and this cannot run out of memory itself. */
static void undo_insert(omq_process_queue *queue, const omq_item *item, size_t count) {
    while (count-- > 0) {
        omq_item out;
        bool is_found;
        (void)omq_offset_tree_extract(&queue->pending, item->offset + (int64_t)count, &out,
                                      &is_found);
    }
}

omq_status omq_locked_make_again_from(omq_process_queue *queue, int64_t start, size_t *moved) {
    omq_status status = OMQ_OK;
    size_t done = 0;
    omq_offset_tree *consuming = &queue->consuming;
    if (queue->pending.count == 0 && consuming->count > 0 && first_offset(consuming) >= start) {
        done = consuming->count;
        swap_maps(queue);
    }
    /* From the greatest down: each lands at the front of pending, which is cheap. */
    while (consuming->count > 0 && last_offset(consuming) >= start) {
        omq_item part = last_part(consuming, start);
        uint32_t length = omq_run_length(consuming, part.extent);
        size_t before = queue->pending.count;
        status = omq_offset_tree_insert(&queue->pending, &part);
        if (status != OMQ_OK) {
            undo_insert(queue, &part, queue->pending.count - before);
            break;
        }
        omq_offset_tree_trim_tail(consuming, length);
        done += length;
    }
    *moved = done;
    return status;
}

omq_status omq_process_queue_make_again_from(omq_process_queue *queue, int64_t start,
                                             size_t *moved) {
    omq_mutex_lock(&queue->mutex);
    omq_status status = omq_locked_make_again_from(queue, start, moved);
    omq_process_queue_unlock(queue);
    return status;
}

/* Insert first, extract second: each may run out of memory, and only the insert can be undone. */
static omq_status make_one_again(omq_process_queue *queue, int64_t offset, bool *is_found) {
    omq_item item;
    *is_found = omq_offset_tree_find(&queue->consuming, offset, &item);
    if (!*is_found) {
        return OMQ_OK;
    }
    if (omq_offset_tree_insert(&queue->pending, &item) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    if (omq_offset_tree_extract(&queue->consuming, offset, &item, is_found) != OMQ_OK) {
        undo_insert(queue, &item, 1);
        return OMQ_NO_MEMORY;
    }
    return OMQ_OK;
}

omq_status omq_locked_make_again(omq_process_queue *queue, const int64_t *offsets, size_t count,
                                 size_t *moved) {
    omq_status status = OMQ_OK;
    *moved = 0;
    for (size_t i = 0; status == OMQ_OK && i < count; i++) {
        bool is_found;
        status = make_one_again(queue, offsets[i], &is_found);
        *moved += status == OMQ_OK && is_found;
    }
    return status;
}

omq_status omq_process_queue_make_again(omq_process_queue *queue, const int64_t *offsets,
                                        size_t count, size_t *moved) {
    omq_mutex_lock(&queue->mutex);
    omq_status status = omq_locked_make_again(queue, offsets, count, moved);
    omq_process_queue_unlock(queue);
    return status;
}

/* Return the offset below which everything is done. */
static int64_t watermark(const omq_process_queue *queue) {
    int64_t pending = first_offset(&queue->pending);
    int64_t consuming = first_offset(&queue->consuming);
    if (pending < 0 && consuming < 0) {
        return queue->max_offset + 1;
    }
    if (pending < 0 || consuming < 0) {
        return pending < 0 ? consuming : pending;
    }
    return pending < consuming ? pending : consuming;
}

static omq_status remove_one(omq_process_queue *queue, int64_t offset) {
    omq_item item;
    bool is_found;
    omq_status status = omq_offset_tree_extract(&queue->pending, offset, &item, &is_found);
    if (status == OMQ_OK && !is_found) {
        status = omq_offset_tree_extract(&queue->consuming, offset, &item, &is_found);
    }
    if (status == OMQ_OK && is_found) {
        release(queue, &item);
    }
    return status;
}

omq_status omq_locked_remove(omq_process_queue *queue, const int64_t *offsets, size_t count,
                             int64_t *done) {
    omq_status status = OMQ_OK;
    *done = -1;
    if (omq_locked_count(queue) > 0) {
        for (size_t i = 0; status == OMQ_OK && i < count; i++) {
            status = remove_one(queue, offsets[i]);
        }
        *done = watermark(queue);
        if (*done > queue->floor) {
            queue->floor = *done;
        }
        omq_filled_lanes_release(&queue->lanes, *done);
    }
    return status;
}

omq_status omq_process_queue_remove(omq_process_queue *queue, const int64_t *offsets, size_t count,
                                    int64_t *done) {
    omq_mutex_lock(&queue->mutex);
    omq_status status = omq_locked_remove(queue, offsets, count, done);
    omq_process_queue_unlock(queue);
    return status;
}

/* ---- check ---- */

/* Add up bytes, and messages a slot (NULL: none), of one map. */
static const char *check_messages(const omq_process_queue *queue, const omq_offset_tree *map,
                                  uint32_t *messages, uint64_t *bytes) {
    REQUIRE(map->has_runs == (queue->shape == OMQ_SHAPE_BATCHES), "runs in columns, or none");
    for (const omq_leaf *leaf = map->head; leaf != NULL; leaf = leaf->next) {
        for (uint32_t i = leaf->begin; i < leaf->end; i++) {
            uint32_t extent = leaf->extents[i];
            REQUIRE(leaf->offsets[i] + omq_run_length(map, extent) - 1 <= queue->max_offset,
                    "an offset is above max_offset");
            if (messages == NULL) {
                *bytes += extent;
                continue;
            }
            uint32_t slot = omq_token_slot(leaf->tokens[i]);
            REQUIRE(slot < queue->slots.count, "a token names no slot");
            messages[slot] += extent;
            const uint32_t *sizes = queue->slots.slots[slot].sizes;
            if (sizes != NULL) {
                *bytes += omq_sum_sizes(sizes + omq_token_index(leaf->tokens[i]), extent);
            }
        }
    }
    return NULL;
}

static const char *check_lists(const omq_batch_slots *slots) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < slots->count; i++) {
        bool is_live = slots->slots[i].messages > 0;
        live += is_live;
        REQUIRE(is_live || (slots->slots[i].sizes == NULL && slots->slots[i].bytes == 0),
                "a slot not in use keeps sizes");
    }
    uint32_t listed = 0;
    uint32_t emptied = 0;
    for (uint32_t at = slots->emptied; at != OMQ_NO_SLOT; at = slots->slots[at].next) {
        REQUIRE(slots->slots[at].messages == 0, "a live slot is on the emptied list");
        REQUIRE(++listed <= slots->count, "the emptied list is a ring");
        emptied++;
    }
    for (uint32_t at = slots->free; at != OMQ_NO_SLOT; at = slots->slots[at].next) {
        REQUIRE(slots->slots[at].messages == 0, "a live slot is on the free list");
        REQUIRE(++listed <= slots->count, "the free list is a ring");
    }
    REQUIRE(live + listed == slots->count, "a slot is lost, or on both lists");
    REQUIRE(atomic_load(&slots->to_collect) == emptied, "the count of slots to collect");
    return NULL;
}

static const char *check_contents(const omq_process_queue *queue, uint32_t *messages) {
    uint64_t bytes = 0;
    uint64_t slot_bytes = 0;
    const char *broken = check_messages(queue, &queue->pending, messages, &bytes);
    if (broken == NULL) {
        broken = check_messages(queue, &queue->consuming, messages, &bytes);
    }
    if (broken != NULL) {
        return broken;
    }
    REQUIRE(bytes == queue->size_bytes, "size_bytes is not the sum of the sizes");
    for (uint32_t i = 0; messages != NULL && i < queue->slots.count; i++) {
        REQUIRE(messages[i] == queue->slots.slots[i].messages, "a slot's count of messages");
        slot_bytes += queue->slots.slots[i].bytes;
    }
    REQUIRE(messages == NULL || slot_bytes == bytes, "the bytes of the slots");
    for (const omq_leaf *leaf = queue->consuming.head; leaf != NULL; leaf = leaf->next) {
        for (uint32_t i = leaf->begin; i < leaf->end; i++) {
            uint32_t length = omq_run_length(&queue->consuming, leaf->extents[i]);
            for (uint32_t ahead = 0; ahead < length; ahead++) {
                omq_item item;
                REQUIRE(!omq_offset_tree_find(&queue->pending, leaf->offsets[i] + ahead, &item),
                        "an offset is both pending and consuming");
            }
        }
    }
    return NULL;
}

static const char *check_queue(const omq_process_queue *queue) {
    const char *broken = omq_offset_tree_check(&queue->pending, INT64_MAX - 1);
    if (broken == NULL) {
        broken = omq_offset_tree_check(&queue->consuming, INT64_MAX - 1);
    }
    if (broken == NULL) {
        broken = check_lists(&queue->slots);
    }
    if (broken != NULL) {
        return broken;
    }
    REQUIRE(queue->shape != OMQ_SHAPE_NONE || queue->pending.count == 0,
            "messages without a shape");
    REQUIRE(queue->floor >= 0, "the floor is negative");
    if (queue->shape == OMQ_SHAPE_NONE) {
        return NULL;
    }
    if (queue->shape == OMQ_SHAPE_COLUMNS) {
        return check_contents(queue, NULL);
    }
    uint32_t *messages = calloc((size_t)queue->slots.count + 1, sizeof *messages);
    REQUIRE(messages != NULL, "no memory to check");
    broken = check_contents(queue, messages);
    free(messages);
    return broken;
}

const char *omq_process_queue_check(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    const char *broken = check_queue(queue);
    omq_process_queue_unlock(queue);
    return broken;
}
