/* The process queue: its life, its flag and what is read of it. */
#include "process_queue.h"

#include <stdlib.h>

omq_process_queue *omq_process_queue_new(void) {
    omq_process_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return NULL;
    }
    queue->max_offset = -1;
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
        omq_offset_tree_close(&queue->pending);
        omq_offset_tree_close(&queue->consuming);
        omq_mutex_destroy(&queue->mutex);
        omq_batch_slots_close(&queue->slots);
        free(queue);
    }
}

static void clear(omq_process_queue *queue) {
    omq_batch_slots_release_all(&queue->slots);
    omq_offset_tree_clear(&queue->pending);
    omq_offset_tree_clear(&queue->consuming);
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

bool omq_process_queue_collect(omq_process_queue *queue, uint32_t *slot) {
    /* Almost every call finds nothing; the slots a thread emptied itself it does see here. */
    if (atomic_load_explicit(&queue->slots.to_collect, memory_order_relaxed) == 0) {
        return false;
    }
    omq_mutex_lock(&queue->mutex);
    bool is_found = omq_batch_slots_collect(&queue->slots, slot);
    omq_mutex_unlock(&queue->mutex);
    return is_found;
}

bool omq_process_queue_begin_dispatch(omq_process_queue *queue) {
    omq_mutex_lock(&queue->mutex);
    bool begins = omq_try_begin_dispatch(queue);
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
    bool is_found = omq_offset_tree_find(&queue->pending, offset, &item);
    omq_mutex_unlock(&queue->mutex);
    return is_found;
}

void omq_process_queue_read(omq_process_queue *queue, omq_process_queue_state *state) {
    omq_mutex_lock(&queue->mutex);
    *state = (omq_process_queue_state){
        .pending = queue->pending.count,
        .consuming = queue->consuming.count,
        .size_bytes = queue->size_bytes,
        .first_pending = omq_first_offset(&queue->pending),
        .last_pending = omq_last_offset(&queue->pending),
        .first_consuming = omq_first_offset(&queue->consuming),
        .last_consuming = omq_last_offset(&queue->consuming),
        .max_offset = queue->max_offset,
        .floor = queue->floor,
        .duplicates_ignored = queue->duplicates_ignored,
        .is_dispatched = queue->is_dispatched,
    };
    omq_mutex_unlock(&queue->mutex);
}
