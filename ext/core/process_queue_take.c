/* What moves from pending to consuming, back, and out of a process queue. */
#include "process_queue.h"

/* An entry has left the queue. */
static void release(omq_process_queue *queue, const omq_item *item) {
    queue->size_bytes -= queue->shape == OMQ_SHAPE_COLUMNS
                             ? item->extent
                             : omq_batch_slots_release(&queue->slots, omq_token_slot(item->token),
                                                       omq_token_index(item->token), item->extent);
}

/* ---- take ---- */

/* Move an entry to consuming. Mostly it lies above; not if something was put or made again
 * below what is consuming. */
static omq_status consume(omq_process_queue *queue, const omq_item *item) {
    return omq_last_offset(&queue->consuming) < item->offset
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
    if (omq_last_offset(&queue->consuming) < leaf->offsets[at]) {
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

/* Under the mutex: whether a take may go on, and D cleared if nothing is pending. */
static omq_status start_take(omq_process_queue *queue, omq_shape shape) {
    omq_status status = omq_need_shape(queue, shape);
    if (status == OMQ_OK && queue->pending.count == 0) {
        queue->is_dispatched = false;
    }
    return status;
}

/* Begin to load what a take like this one will want next: in a deep queue it was put so long
 * ago that no cache has it. */
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
    prefetch_head(queue, limit);
    omq_mutex_unlock(&queue->mutex);
    *taken = done;
    return status;
}

/* Add a run to segments, of which there are `count`; return how many there are. */
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

omq_status omq_process_queue_take_segments(omq_process_queue *queue, omq_segment *segments,
                                           size_t limit, size_t *count) {
    size_t left = limit;
    size_t found = 0;
    *count = 0;
    if (limit == 0) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_mutex_lock(&queue->mutex);
    omq_status status = start_take(queue, OMQ_SHAPE_BATCHES);
    while (status == OMQ_OK && left > 0 && queue->pending.count > 0) {
        omq_item run = omq_offset_tree_first_item(&queue->pending);
        run.extent = run.extent < left ? run.extent : (uint32_t)left;
        if (consume(queue, &run) != OMQ_OK) {
            status = left == limit ? OMQ_NO_MEMORY : OMQ_OK;
            break;
        }
        omq_offset_tree_trim_head(&queue->pending, run.extent);
        found = add_segment(segments, found, &run);
        left -= run.extent;
    }
    omq_mutex_unlock(&queue->mutex);
    *count = found;
    return status;
}

/* ---- commit and back ---- */

int64_t omq_process_queue_commit(omq_process_queue *queue, uint32_t *slot) {
    *slot = OMQ_NO_SLOT;
    omq_mutex_lock(&queue->mutex);
    omq_offset_tree *consuming = &queue->consuming;
    int64_t next = consuming->count > 0 ? omq_last_offset(consuming) + 1 : -1;
    if (next >= 0) {
        for (const omq_leaf *leaf = consuming->head; leaf != NULL; leaf = leaf->next) {
            for (uint32_t i = leaf->begin; i < leaf->end; i++) {
                omq_item item = omq_leaf_item(leaf, i);
                release(queue, &item);
            }
        }
        omq_offset_tree_clear(consuming);
        if (next > queue->floor) {
            queue->floor = next;
        }
        (void)omq_batch_slots_collect(&queue->slots, slot);
    }
    omq_mutex_unlock(&queue->mutex);
    return next;
}

static void swap_maps(omq_process_queue *queue) {
    omq_offset_tree pending = queue->pending;
    queue->pending = queue->consuming;
    queue->consuming = pending;
}

/* What of the last entry of a map lies at or above `start`. */
static omq_item last_part(const omq_offset_tree *map, int64_t start) {
    omq_item last = omq_offset_tree_last_item(map);
    if (last.offset < start) {
        uint32_t below = (uint32_t)(start - last.offset);
        last = (omq_item){start, last.token + below, last.extent - below};
    }
    return last;
}

/* Take back the first `count` offsets of an insert that ran out of memory half way. They end
 * the runs they are in, so this needs no memory itself. */
static void undo_insert(omq_process_queue *queue, const omq_item *item, size_t count) {
    while (count-- > 0) {
        omq_item out;
        bool is_found;
        (void)omq_offset_tree_extract(&queue->pending, item->offset + (int64_t)count, &out,
                                      &is_found);
    }
}

omq_status omq_process_queue_make_again_from(omq_process_queue *queue, int64_t start,
                                             size_t *moved) {
    omq_status status = OMQ_OK;
    size_t done = 0;
    omq_mutex_lock(&queue->mutex);
    omq_offset_tree *consuming = &queue->consuming;
    if (queue->pending.count == 0 && consuming->count > 0 && omq_first_offset(consuming) >= start) {
        done = consuming->count;
        swap_maps(queue);
    }
    /* From the greatest down: each lands at the front of pending, which is cheap. */
    while (consuming->count > 0 && omq_last_offset(consuming) >= start) {
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
    omq_mutex_unlock(&queue->mutex);
    *moved = done;
    return status;
}

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

omq_status omq_process_queue_make_again(omq_process_queue *queue, const int64_t *offsets,
                                        size_t count, size_t *moved) {
    omq_status status = OMQ_OK;
    *moved = 0;
    omq_mutex_lock(&queue->mutex);
    for (size_t i = 0; status == OMQ_OK && i < count; i++) {
        bool is_found;
        status = make_one_again(queue, offsets[i], &is_found);
        *moved += status == OMQ_OK && is_found;
    }
    omq_mutex_unlock(&queue->mutex);
    return status;
}

static int64_t watermark(const omq_process_queue *queue) {
    int64_t pending = omq_first_offset(&queue->pending);
    int64_t consuming = omq_first_offset(&queue->consuming);
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

omq_status omq_process_queue_remove(omq_process_queue *queue, const int64_t *offsets, size_t count,
                                    int64_t *done) {
    omq_status status = OMQ_OK;
    *done = -1;
    omq_mutex_lock(&queue->mutex);
    if (queue->pending.count + queue->consuming.count > 0) {
        for (size_t i = 0; status == OMQ_OK && i < count; i++) {
            status = remove_one(queue, offsets[i]);
        }
        *done = watermark(queue);
        if (*done > queue->floor) {
            queue->floor = *done;
        }
    }
    omq_mutex_unlock(&queue->mutex);
    return status;
}
