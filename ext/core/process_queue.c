#include "process_queue.h"

#include <stdlib.h>
#include <string.h>

static uint32_t minimum(size_t a, size_t b) { return (uint32_t)(a < b ? a : b); }

static int64_t first_offset(const omq_offset_map *map) {
    return map->count > 0 ? map->head->offsets[map->head->begin] : -1;
}

static int64_t last_offset(const omq_offset_map *map) {
    return map->count > 0 ? map->tail->offsets[map->tail->end - 1] : -1;
}

/* ---- slots ---- */

static omq_status grow_slots(omq_process_queue *queue) {
    uint32_t old = queue->slot_count;
    uint32_t count = old == 0 ? 8 : old * 2;
    if (count < old) {
        return OMQ_NO_MEMORY;
    }
    omq_slot *slots = realloc(queue->slots, count * sizeof *slots);
    if (slots == NULL) {
        return OMQ_NO_MEMORY;
    }
    for (uint32_t i = old; i < count; i++) {
        slots[i] = (omq_slot){0, i + 1 < count ? i + 1 : queue->free_slot};
    }
    queue->slots = slots;
    queue->slot_count = count;
    queue->free_slot = old;
    return OMQ_OK;
}

/* `count` messages of a batch have left the queue. */
static void release(omq_process_queue *queue, uint32_t slot, uint32_t count) {
    queue->slots[slot].messages -= count;
    if (queue->slots[slot].messages == 0) {
        queue->slots[slot].next = queue->emptied_slot;
        queue->emptied_slot = slot;
        atomic_fetch_add_explicit(&queue->to_collect, 1, memory_order_relaxed);
    }
}

static void release_token(omq_process_queue *queue, uint64_t token) {
    if (queue->shape == OMQ_SHAPE_BATCHES) {
        release(queue, omq_token_slot(token), 1);
    }
}

static void release_tokens(omq_process_queue *queue, const uint64_t *tokens, size_t count) {
    for (size_t i = 0; i < count;) {
        uint32_t slot = omq_token_slot(tokens[i]);
        size_t end = i + 1;
        while (end < count && omq_token_slot(tokens[end]) == slot) {
            end++;
        }
        release(queue, slot, (uint32_t)(end - i));
        i = end;
    }
}

static void release_all(omq_process_queue *queue) {
    for (uint32_t slot = 0; slot < queue->slot_count; slot++) {
        if (queue->slots[slot].messages > 0) {
            release(queue, slot, queue->slots[slot].messages);
        }
    }
}

bool omq_process_queue_collect(omq_process_queue *queue, uint32_t *slot) {
    /* Almost every call finds nothing; the slots a thread emptied itself it does see here. */
    if (atomic_load_explicit(&queue->to_collect, memory_order_relaxed) == 0) {
        return false;
    }
    omq_mutex_lock(&queue->mutex);
    uint32_t emptied = queue->emptied_slot;
    if (emptied != OMQ_NO_SLOT) {
        queue->emptied_slot = queue->slots[emptied].next;
        queue->slots[emptied].next = queue->free_slot;
        queue->free_slot = emptied;
        atomic_fetch_sub_explicit(&queue->to_collect, 1, memory_order_relaxed);
        *slot = emptied;
    }
    omq_mutex_unlock(&queue->mutex);
    return emptied != OMQ_NO_SLOT;
}

/* ---- life ---- */

omq_process_queue *omq_process_queue_new(void) {
    omq_process_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return NULL;
    }
    queue->max_offset = -1;
    queue->free_slot = OMQ_NO_SLOT;
    queue->emptied_slot = OMQ_NO_SLOT;
    if (omq_mutex_init(&queue->mutex) == 0) {
        if (omq_offset_map_open(&queue->pending) == OMQ_OK) {
            if (omq_offset_map_open(&queue->consuming) == OMQ_OK) {
                return queue;
            }
            omq_offset_map_close(&queue->pending);
        }
        omq_mutex_destroy(&queue->mutex);
    }
    free(queue);
    return NULL;
}

void omq_process_queue_free(omq_process_queue *queue) {
    if (queue != NULL) {
        omq_offset_map_close(&queue->pending);
        omq_offset_map_close(&queue->consuming);
        omq_mutex_destroy(&queue->mutex);
        free(queue->slots);
        free(queue);
    }
}

/* ---- put ---- */

typedef struct {
    const int64_t *offsets;
    const uint64_t *tokens; /* NULL: first_token + index */
    uint64_t first_token;
    const uint32_t *sizes; /* NULL: zeros */
    size_t count;
} omq_columns;

/* One look at everything before anything is done: a bad column changes nothing. */
static bool are_in_range(const omq_columns *columns) {
    uint64_t offsets = 0; /* sign bit: some offset is negative, or INT64_MAX */
    uint32_t sizes = 0;
    for (size_t i = 0; i < columns->count; i++) {
        uint64_t offset = (uint64_t)columns->offsets[i];
        offsets |= offset | (offset + 1);
    }
    for (size_t i = 0; columns->sizes != NULL && i < columns->count; i++) {
        sizes |= columns->sizes[i];
    }
    return offsets >> 63 == 0 && sizes >> 31 == 0;
}

static void count_new(omq_process_queue *queue, const omq_columns *columns, size_t at,
                      size_t count) {
    for (size_t i = 0; columns->sizes != NULL && i < count; i++) {
        queue->size_bytes += columns->sizes[at + i];
    }
}

/* Append what ascends from `at` on above everything ever buffered, and so is new without a
 * look at the maps. Writes how many that were. */
static omq_status put_run(omq_process_queue *queue, const omq_columns *columns, size_t at,
                          size_t *count) {
    const int64_t *offsets = columns->offsets;
    size_t end = at + 1;
    while (end < columns->count && offsets[end] > offsets[end - 1]) {
        end++;
    }
    omq_status status = omq_offset_map_append(
        &queue->pending, offsets + at, columns->tokens == NULL ? NULL : columns->tokens + at,
        columns->first_token + at, columns->sizes == NULL ? NULL : columns->sizes + at, end - at,
        count);
    if (*count > 0) {
        queue->max_offset = offsets[at + *count - 1];
        count_new(queue, columns, at, *count);
    }
    return status;
}

static omq_status put_one(omq_process_queue *queue, const omq_columns *columns, size_t at,
                          bool *is_new) {
    omq_item item = {columns->offsets[at], 0, 0};
    omq_item held;
    *is_new = item.offset >= queue->floor &&
              !omq_offset_map_find(&queue->pending, item.offset, &held) &&
              !omq_offset_map_find(&queue->consuming, item.offset, &held);
    if (!*is_new) {
        queue->duplicates_ignored++;
        return OMQ_OK;
    }
    item.token = columns->tokens == NULL ? columns->first_token + at : columns->tokens[at];
    item.size = columns->sizes == NULL ? 0 : columns->sizes[at];
    if (omq_offset_map_insert(&queue->pending, &item) != OMQ_OK) {
        *is_new = false;
        return OMQ_NO_MEMORY;
    }
    if (item.offset > queue->max_offset) {
        queue->max_offset = item.offset;
    }
    queue->size_bytes += item.size;
    return OMQ_OK;
}

/* Write how many were new. */
static omq_status put_all(omq_process_queue *queue, const omq_columns *columns, size_t *added) {
    omq_status status = OMQ_OK;
    *added = 0;
    for (size_t i = 0; status == OMQ_OK && i < columns->count;) {
        int64_t offset = columns->offsets[i];
        size_t count = 1;
        if (offset > queue->max_offset && offset >= queue->floor) {
            status = put_run(queue, columns, i, &count);
            *added += count;
        } else {
            bool is_new;
            status = put_one(queue, columns, i, &is_new);
            *added += is_new;
        }
        i += count;
    }
    return status;
}

static bool begin_dispatch(omq_process_queue *queue) {
    bool begins = !queue->is_dispatched && queue->pending.count > 0;
    queue->is_dispatched |= begins;
    return begins;
}

static omq_status need_shape(const omq_process_queue *queue, omq_shape shape) {
    bool fits = queue->shape == OMQ_SHAPE_NONE || queue->shape == shape;
    return fits ? OMQ_OK : OMQ_WRONG_SHAPE;
}

omq_status omq_process_queue_put_columns(omq_process_queue *queue, const int64_t *offsets,
                                         const uint64_t *tokens, const uint32_t *sizes,
                                         size_t count, bool *dispatch) {
    omq_columns columns = {offsets, tokens, 0, sizes, count};
    *dispatch = false;
    if (!are_in_range(&columns)) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = need_shape(queue, OMQ_SHAPE_COLUMNS);
    if (status == OMQ_OK) {
        size_t added;
        queue->shape = OMQ_SHAPE_COLUMNS;
        status = put_all(queue, &columns, &added);
        /* Without memory the caller sees an error, not `dispatch`; it must come again. */
        *dispatch = status == OMQ_OK && begin_dispatch(queue);
    }
    omq_mutex_unlock(&queue->mutex);
    return status;
}

omq_status omq_process_queue_put_batch(omq_process_queue *queue, const int64_t *offsets,
                                       const uint32_t *sizes, size_t count, uint32_t *slot,
                                       bool *dispatch) {
    omq_columns columns = {offsets, NULL, 0, sizes, count};
    *slot = OMQ_NO_SLOT;
    *dispatch = false;
    if (count >= UINT32_MAX || !are_in_range(&columns)) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = need_shape(queue, OMQ_SHAPE_BATCHES);
    if (status == OMQ_OK && queue->free_slot == OMQ_NO_SLOT) {
        status = grow_slots(queue);
    }
    if (status == OMQ_OK) {
        size_t added;
        uint32_t chosen = queue->free_slot;
        queue->shape = OMQ_SHAPE_BATCHES;
        columns.first_token = (uint64_t)chosen << 32;
        status = put_all(queue, &columns, &added);
        if (added > 0) {
            queue->free_slot = queue->slots[chosen].next;
            queue->slots[chosen] = (omq_slot){(uint32_t)added, OMQ_NO_SLOT};
            *slot = chosen;
        }
        *dispatch = status == OMQ_OK && begin_dispatch(queue);
    }
    omq_mutex_unlock(&queue->mutex);
    return status;
}

/* ---- take ---- */

/* Move up to `limit` messages from the head leaf of pending to consuming; copy their offsets
 * (unless NULL) and tokens. Returns how many, 0 without memory. */
static size_t take_run(omq_process_queue *queue, size_t limit, int64_t *offsets,
                       uint64_t *tokens) {
    const omq_leaf *leaf = queue->pending.head;
    uint32_t at = leaf->begin;
    uint32_t run = minimum(leaf->end - at, limit);
    size_t moved = 0;
    if (last_offset(&queue->consuming) < leaf->offsets[at]) {
        (void)omq_offset_map_append(&queue->consuming, leaf->offsets + at, leaf->tokens + at, 0,
                                    leaf->sizes + at, run, &moved);
    } else {
        /* Something was put or made again below what is consuming. */
        omq_item item = {leaf->offsets[at], leaf->tokens[at], leaf->sizes[at]};
        moved = omq_offset_map_insert(&queue->consuming, &item) == OMQ_OK;
    }
    if (offsets != NULL) {
        memcpy(offsets, leaf->offsets + at, moved * sizeof *offsets);
    }
    memcpy(tokens, leaf->tokens + at, moved * sizeof *tokens);
    if (moved > 0) {
        omq_offset_map_drop_head(&queue->pending, moved);
    }
    return moved;
}

/* Under the mutex: whether a take may go on, and D cleared if nothing is pending. */
static omq_status start_take(omq_process_queue *queue, omq_shape shape) {
    omq_status status = need_shape(queue, shape);
    if (status == OMQ_OK && queue->pending.count == 0) {
        queue->is_dispatched = false;
    }
    return status;
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
        size_t run = take_run(queue, limit - done, offsets + done, tokens + done);
        done += run;
        if (run == 0) {
            status = done == 0 ? OMQ_NO_MEMORY : OMQ_OK;
            break;
        }
    }
    omq_mutex_unlock(&queue->mutex);
    *taken = done;
    return status;
}

/* Add tokens to segments, of which there are `count`; return how many there are. A token of
 * the next message in the same batch is one greater; so is no other, for a slot's last index
 * is not used. */
static size_t add_segments(omq_segment *segments, size_t count, const uint64_t *tokens,
                           size_t token_count) {
    for (size_t i = 0; i < token_count;) {
        uint64_t token = tokens[i];
        size_t end = i + 1;
        while (end < token_count && tokens[end] == token + (end - i)) {
            end++;
        }
        omq_segment run = {omq_token_slot(token), omq_token_index(token), (uint32_t)(end - i)};
        omq_segment *last = segments + count - 1;
        if (count > 0 && last->slot == run.slot && last->first + last->count == run.first) {
            last->count += run.count; /* the run goes on from one leaf to the next */
        } else {
            segments[count++] = run;
        }
        i = end;
    }
    return count;
}

omq_status omq_process_queue_take_segments(omq_process_queue *queue, omq_segment *segments,
                                           size_t limit, size_t *count) {
    uint64_t tokens[OMQ_LEAF_CAPACITY];
    size_t done = 0;
    size_t found = 0;
    *count = 0;
    if (limit == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = start_take(queue, OMQ_SHAPE_BATCHES);
    while (status == OMQ_OK && done < limit && queue->pending.count > 0) {
        size_t run = take_run(queue, limit - done, NULL, tokens);
        found = add_segments(segments, found, tokens, run);
        done += run;
        if (run == 0) {
            status = done == 0 ? OMQ_NO_MEMORY : OMQ_OK;
            break;
        }
    }
    omq_mutex_unlock(&queue->mutex);
    *count = found;
    return status;
}

/* ---- commit and back ---- */

int64_t omq_process_queue_commit(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    omq_offset_map *consuming = &queue->consuming;
    int64_t next = consuming->count > 0 ? last_offset(consuming) + 1 : -1;
    if (next >= 0) {
        for (const omq_leaf *leaf = consuming->head; leaf != NULL; leaf = leaf->next) {
            for (uint32_t i = leaf->begin; i < leaf->end; i++) {
                queue->size_bytes -= leaf->sizes[i];
            }
            if (queue->shape == OMQ_SHAPE_BATCHES) {
                release_tokens(queue, leaf->tokens + leaf->begin, leaf->end - leaf->begin);
            }
        }
        omq_offset_map_clear(consuming);
        if (next > queue->floor) {
            queue->floor = next;
        }
    }
    omq_mutex_unlock(&queue->mutex);
    return next;
}

static void swap_maps(omq_process_queue *queue) {
    omq_offset_map pending = queue->pending;
    queue->pending = queue->consuming;
    queue->consuming = pending;
}

omq_status omq_process_queue_make_again_from(omq_process_queue *queue, int64_t start,
                                             size_t *moved) {
    omq_status status = OMQ_OK;
    size_t done = 0;
    omq_mutex_lock(&queue->mutex);
    omq_offset_map *consuming = &queue->consuming;
    if (queue->pending.count == 0 && consuming->count > 0 && first_offset(consuming) >= start) {
        done = consuming->count;
        swap_maps(queue);
    }
    /* From the greatest down: each lands at the front of pending, which is cheap. */
    while (consuming->count > 0 && last_offset(consuming) >= start) {
        const omq_leaf *tail = consuming->tail;
        uint32_t at = tail->end - 1;
        omq_item item = {tail->offsets[at], tail->tokens[at], tail->sizes[at]};
        status = omq_offset_map_insert(&queue->pending, &item);
        if (status != OMQ_OK) {
            break;
        }
        omq_offset_map_drop_tail(consuming, 1);
        done++;
    }
    omq_mutex_unlock(&queue->mutex);
    *moved = done;
    return status;
}

omq_status omq_process_queue_make_again(omq_process_queue *queue, const int64_t *offsets,
                                        size_t count, size_t *moved) {
    omq_status status = OMQ_OK;
    size_t done = 0;
    omq_mutex_lock(&queue->mutex);
    for (size_t i = 0; i < count; i++) {
        omq_item item;
        if (!omq_offset_map_find(&queue->consuming, offsets[i], &item)) {
            continue;
        }
        status = omq_offset_map_insert(&queue->pending, &item);
        if (status != OMQ_OK) {
            break;
        }
        (void)omq_offset_map_extract(&queue->consuming, offsets[i], &item);
        done++;
    }
    omq_mutex_unlock(&queue->mutex);
    *moved = done;
    return status;
}

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

int64_t omq_process_queue_remove(omq_process_queue *queue, const int64_t *offsets, size_t count) {
    int64_t done = -1;
    omq_mutex_lock(&queue->mutex);
    if (queue->pending.count + queue->consuming.count > 0) {
        for (size_t i = 0; i < count; i++) {
            omq_item item;
            if (omq_offset_map_extract(&queue->pending, offsets[i], &item) ||
                omq_offset_map_extract(&queue->consuming, offsets[i], &item)) {
                queue->size_bytes -= item.size;
                release_token(queue, item.token);
            }
        }
        done = watermark(queue);
        if (done > queue->floor) {
            queue->floor = done;
        }
    }
    omq_mutex_unlock(&queue->mutex);
    return done;
}

static void clear(omq_process_queue *queue) {
    release_all(queue);
    omq_offset_map_clear(&queue->pending);
    omq_offset_map_clear(&queue->consuming);
    queue->size_bytes = 0;
    queue->max_offset = -1;
}

void omq_process_queue_clear(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    clear(queue);
    omq_mutex_unlock(&queue->mutex);
}

omq_status omq_process_queue_reset(omq_process_queue *queue, int64_t floor) {
    if (floor < 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    clear(queue);
    queue->floor = floor;
    omq_mutex_unlock(&queue->mutex);
    return OMQ_OK;
}

/* ---- flag and state ---- */

bool omq_process_queue_begin_dispatch(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    bool begins = begin_dispatch(queue);
    omq_mutex_unlock(&queue->mutex);
    return begins;
}

void omq_process_queue_end_dispatch(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    queue->is_dispatched = false;
    omq_mutex_unlock(&queue->mutex);
}

bool omq_process_queue_is_pending(omq_process_queue *queue, int64_t offset) {
    omq_item item;
    omq_mutex_lock(&queue->mutex);
    bool is_found = omq_offset_map_find(&queue->pending, offset, &item);
    omq_mutex_unlock(&queue->mutex);
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
        .duplicates_ignored = queue->duplicates_ignored,
        .is_dispatched = queue->is_dispatched,
    };
    omq_mutex_unlock(&queue->mutex);
}
