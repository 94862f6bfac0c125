/* Every invariant of the process queue and the lock table, for tests. */
#include <stdlib.h>

#include "check.h"
#include "lock_table.h"
#include "process_queue.h"

/* ---- process queue ---- */

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
    omq_mutex_unlock(&queue->mutex);
    return broken;
}

/* ---- lock table ---- */

static const char *check_group(const omq_lock_table *table, const omq_lock_group *group) {
    size_t count = 0;
    for (size_t i = 0; i < group->capacity; i++) {
        const omq_lock_place *lock = group->places + i;
        if (lock->epoch == 0) {
            continue;
        }
        count++;
        REQUIRE(lock->granted_ms >= group->oldest_ms, "a sweep would overlook a lock");
        REQUIRE(lock->epoch < table->next_epoch, "an epoch was not given out yet");
        size_t at = omq_lock_home(group, lock->queue);
        for (; at != i; at = (at + 1) & (group->capacity - 1)) {
            REQUIRE(group->places[at].epoch != 0, "probing cannot reach a lock");
            REQUIRE(group->places[at].queue != lock->queue, "a queue has two locks");
        }
    }
    REQUIRE(count == group->count, "a group's count of locks");
    REQUIRE(count > 0 && count < group->capacity, "a group is empty or full");
    return NULL;
}

/* Take back the uses that the locks are known to make; false if an id is unknown. */
static bool take_back_uses(const omq_lock_table *table) {
    for (size_t i = 0; i < table->group_count; i++) {
        const omq_lock_group *group = table->groups + i;
        omq_id_slot *of_group = omq_lock_ids_find(&table->ids, group->id);
        if (of_group == NULL) {
            return false;
        }
        of_group->uses--;
        for (size_t k = 0; k < group->capacity; k++) {
            const omq_lock_place *lock = group->places + k;
            omq_id_slot *queue = omq_lock_ids_find(&table->ids, lock->queue);
            omq_id_slot *owner = omq_lock_ids_find(&table->ids, lock->owner);
            if (lock->epoch != 0 && (queue == NULL || owner == NULL)) {
                return false;
            }
            if (lock->epoch != 0) {
                queue->uses--;
                owner->uses--;
            }
        }
    }
    return true;
}

static void count_uses_again(const omq_lock_table *table) {
    for (size_t i = 0; i < table->group_count; i++) {
        const omq_lock_group *group = table->groups + i;
        omq_lock_ids_find(&table->ids, group->id)->uses++;
        for (size_t k = 0; k < group->capacity; k++) {
            if (group->places[k].epoch != 0) {
                omq_lock_ids_find(&table->ids, group->places[k].queue)->uses++;
                omq_lock_ids_find(&table->ids, group->places[k].owner)->uses++;
            }
        }
    }
}

static const char *check_ids(const omq_lock_table *table) {
    const omq_lock_ids *ids = &table->ids;
    size_t idle = 0;
    for (uint32_t at = ids->first_idle; at != OMQ_NO_ID_SLOT; at = ids->slots[at].next) {
        REQUIRE(at < ids->count && ids->slots[at].is_known, "a free id is listed as idle");
        REQUIRE(ids->slots[at].is_in_idle, "an idle id is listed unmarked");
        REQUIRE(++idle <= ids->count, "the idle ids go round");
    }
    size_t free_count = 0;
    for (uint32_t at = ids->first_free; at != OMQ_NO_ID_SLOT; at = ids->slots[at].next) {
        REQUIRE(at < ids->count && !ids->slots[at].is_known, "a known id is listed as free");
        REQUIRE(++free_count <= ids->count, "the free ids go round");
    }
    for (size_t at = 0; at < ids->count; at++) {
        const omq_id_slot *slot = ids->slots + at;
        bool is_used = slot->pins > 0 || slot->uses > 0;
        REQUIRE(slot->is_known || !(is_used || slot->is_in_idle), "a forgotten id is in use");
        REQUIRE(!slot->is_known || is_used || slot->is_in_idle, "an idle id is not listed");
        idle -= slot->is_in_idle;
    }
    REQUIRE(idle == 0, "an id marked idle is not listed");
    REQUIRE(take_back_uses(table), "a lock's id is unknown"); /* leaves a broken table broken */
    bool is_counted = true;
    for (size_t at = 0; at < ids->count; at++) {
        is_counted = is_counted && ids->slots[at].uses == 0;
    }
    count_uses_again(table);
    REQUIRE(is_counted, "the uses of an id differ from its locks");
    return NULL;
}

static const char *check_table(const omq_lock_table *table) {
    size_t count = 0;
    for (size_t i = 0; i < table->group_count; i++) {
        const char *broken = check_group(table, table->groups + i);
        if (broken != NULL) {
            return broken;
        }
        REQUIRE(i == 0 || table->groups[i - 1].id < table->groups[i].id, "groups do not ascend");
        count += table->groups[i].count;
    }
    REQUIRE(count == table->count, "the count differs from the locks");
    return check_ids(table);
}

const char *omq_lock_table_check(omq_lock_table *table) {
    omq_mutex_lock(&table->mutex);
    const char *broken = check_table(table);
    omq_mutex_unlock(&table->mutex);
    return broken;
}
