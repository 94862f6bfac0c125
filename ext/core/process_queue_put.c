/* What comes into a process queue. */
#include "process_queue.h"

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

/* One look at everything before anything is done: a bad column changes nothing. */
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
    return offsets >> 63 == 0 && sizes >> 31 == 0;
}

/* How many offsets, from `at` on, follow each other without a gap: mostly all. */
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

/* Append what ascends from `at` on above everything ever buffered, and so is new without a
 * look at the maps. Adds up what that was. */
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

static omq_status put_one(omq_process_queue *queue, const omq_columns *columns, size_t at,
                          omq_added *added) {
    omq_item item = {offset_at(columns, at), columns->first_token + at, 1};
    omq_item held;
    uint32_t size = columns->sizes == NULL ? 0 : columns->sizes[at];
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
    queue->size_bytes += added->bytes;
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
    omq_status status = omq_need_shape(queue, OMQ_SHAPE_COLUMNS);
    if (status == OMQ_OK) {
        omq_added added;
        choose_shape(queue, OMQ_SHAPE_COLUMNS);
        status = put_all(queue, &columns, &added);
        /* Without memory the caller sees an error, not `dispatch`; it must come again. */
        *dispatch = status == OMQ_OK && omq_try_begin_dispatch(queue);
    }
    omq_mutex_unlock(&queue->mutex);
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

static omq_status put_batch(omq_process_queue *queue, omq_columns *columns, uint32_t *slot,
                            bool *dispatch) {
    omq_mutex_lock(&queue->mutex);
    omq_status status = omq_need_shape(queue, OMQ_SHAPE_BATCHES);
    if (status == OMQ_OK) {
        status = fill_slot(queue, columns, slot);
        *dispatch = status == OMQ_OK && omq_try_begin_dispatch(queue);
    }
    omq_mutex_unlock(&queue->mutex);
    return status;
}

omq_status omq_process_queue_put_batch(omq_process_queue *queue, const int64_t *offsets,
                                       const uint32_t *sizes, size_t count, uint32_t *slot,
                                       bool *dispatch) {
    omq_columns columns = {.offsets = offsets, .sizes = sizes, .count = count};
    *slot = OMQ_NO_SLOT;
    *dispatch = false;
    bool is_good = count < UINT32_MAX && read_columns(&columns);
    return is_good ? put_batch(queue, &columns, slot, dispatch) : OMQ_OUT_OF_RANGE;
}

omq_status omq_process_queue_put_run(omq_process_queue *queue, int64_t first,
                                     const uint32_t *sizes, size_t count, uint64_t bytes,
                                     uint32_t *slot, bool *dispatch) {
    omq_columns columns = {.first = first, .sizes = sizes, .count = count, .bytes = bytes};
    *slot = OMQ_NO_SLOT;
    *dispatch = false;
    bool is_good = count < UINT32_MAX && first >= 0 && first < INT64_MAX - (int64_t)count;
    return is_good ? put_batch(queue, &columns, slot, dispatch) : OMQ_OUT_OF_RANGE;
}
