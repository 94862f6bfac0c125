/* The lock table of ordermq.h: an open-addressing table per group, and the ids of all names. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "lock_ids.h"
#include "platform.h"

/* An omq_lock without its group, which its place tells: two fit into a cache line. */
typedef struct {
    uint64_t queue;
    uint64_t owner;
    uint64_t epoch; /* 0: the place is free */
    int64_t granted_ms;
} omq_lock_place;

/* The locks of one group: open addressing over queue ids, linear probing, deletion shifts
 * back, so that there are no tombstones to sweep. */
typedef struct {
    uint64_t id;
    omq_lock_place *places; /* `capacity` of them, a power of two, never full */
    size_t capacity;
    unsigned shift;    /* 64 - log2(capacity) */
    size_t count;      /* > 0: a group without locks is deleted */
    int64_t oldest_ms; /* no lock was granted before; a renewal need not raise it, a sweep does */
} omq_lock_group;

struct omq_lock_table {
    omq_mutex mutex; /* guards all of it */
    int64_t lease_ms;
    uint64_t next_epoch;
    omq_lock_group *groups; /* ascending by id */
    size_t group_count;
    size_t group_capacity;
    size_t count; /* locks of all groups */
    omq_lock_ids ids;
};

enum {
    FIRST_PLACES = 8,
    FIRST_SHIFT = 61,
    FIRST_GROUPS = 8,
    AHEAD = 8 /* queues of a batch whose places are on their way from memory at once */
};

/* Subtract as unsigned: now - granted overflows an int64 if the clock jumps from end to end. A
 * clock that went back never expires a lock. */
static bool is_expired(const omq_lock_table *table, int64_t granted_ms, int64_t now_ms) {
    return now_ms > granted_ms &&
           (uint64_t)now_ms - (uint64_t)granted_ms > (uint64_t)table->lease_ms;
}

/* ---- the locks of one group ---- */

/* Where probing for a queue starts. */
static size_t home_of(const omq_lock_group *group, uint64_t queue) {
    /* Four ids given out in turn, as a topic's queues are, are neighbours, so that a member's
     * renewals read a quarter of the cache lines. The high bits of the product choose the place:
     * then a table of twice the size keeps the order of places, and growing it streams. */
    enum { NEIGHBOURS = 4 };
    uint64_t at = queue / NEIGHBOURS * UINT64_C(0x9E3779B97F4A7C15) >> group->shift;
    return (size_t)(at / NEIGHBOURS * NEIGHBOURS + queue % NEIGHBOURS);
}

/* Return the place of a queue, or the free place where it would go. */
static omq_lock_place *place_of(const omq_lock_group *group, uint64_t queue) {
    size_t at = home_of(group, queue);
    while (group->places[at].epoch != 0 && group->places[at].queue != queue) {
        at = (at + 1) & (group->capacity - 1);
    }
    return group->places + at;
}

/* Move a group's locks into a table of another capacity. NO_MEMORY: nothing changed. */
static omq_status resize_group(omq_lock_group *group, size_t capacity) {
    omq_lock_group resized = *group;
    resized.capacity = capacity;
    for (resized.shift = FIRST_SHIFT; capacity > FIRST_PLACES; capacity /= 2) {
        resized.shift--;
    }
    resized.places = calloc(resized.capacity, sizeof *resized.places);
    if (resized.places == NULL) {
        return OMQ_NO_MEMORY;
    }
    for (size_t i = 0; i < group->capacity; i++) {
        if (group->places[i].epoch != 0) {
            *place_of(&resized, group->places[i].queue) = group->places[i];
        }
    }
    free(group->places);
    *group = resized;
    return OMQ_OK;
}

/* Free a place and move up the locks that probing had pushed past it: no tombstones, which a
 * table whose owners come and go would fill up with. */
static void free_place(omq_lock_group *group, size_t at) {
    size_t mask = group->capacity - 1;
    for (size_t next = (at + 1) & mask; group->places[next].epoch != 0; next = (next + 1) & mask) {
        size_t home = home_of(group, group->places[next].queue);
        if (((next - home) & mask) >= ((next - at) & mask)) {
            group->places[at] = group->places[next];
            at = next;
        }
    }
    group->places[at] = (omq_lock_place){0};
    group->count--;
}

/* ---- groups ---- */

/* The first group with an id >= `id`. */
static size_t group_position(const omq_lock_table *table, uint64_t id) {
    size_t at = 0;
    size_t left = table->group_count;
    while (left > 0) {
        size_t half = left / 2;
        bool is_below = table->groups[at + half].id < id;
        at += is_below ? half + 1 : 0;
        left = is_below ? left - half - 1 : half;
    }
    return at;
}

static omq_lock_group *find_group(const omq_lock_table *table, uint64_t id) {
    size_t at = group_position(table, id);
    return at < table->group_count && table->groups[at].id == id ? table->groups + at : NULL;
}

static omq_lock_group *add_group(omq_lock_table *table, uint64_t id) {
    if (table->group_count == table->group_capacity) {
        size_t capacity = table->group_capacity == 0 ? FIRST_GROUPS : table->group_capacity * 2;
        omq_lock_group *groups = realloc(table->groups, capacity * sizeof *groups);
        if (groups == NULL) {
            return NULL;
        }
        table->groups = groups;
        table->group_capacity = capacity;
    }
    omq_lock_place *places = calloc(FIRST_PLACES, sizeof *places);
    if (places == NULL) {
        return NULL;
    }
    omq_lock_group *group = table->groups + group_position(table, id);
    size_t after = (size_t)(table->groups + table->group_count - group);
    memmove(group + 1, group, after * sizeof *group);
    *group = (omq_lock_group){id, places, FIRST_PLACES, FIRST_SHIFT, 0, INT64_MAX};
    table->group_count++;
    return group;
}

static void delete_group(omq_lock_table *table, omq_lock_group *group) {
    free(group->places);
    table->group_count--;
    size_t after = (size_t)(table->groups + table->group_count - group);
    memmove(group, group + 1, after * sizeof *group);
}

/* Free a lock's place; its ids are unused, but for the group's, which is the whole group's. */
static void delete_lock(omq_lock_table *table, omq_lock_group *group,
                        const omq_lock_place *lock) {
    omq_lock_ids_unuse(&table->ids, lock->queue);
    omq_lock_ids_unuse(&table->ids, lock->owner);
    free_place(group, (size_t)(lock - group->places));
    table->count--;
}

/* Delete a group that lost its last lock; nothing uses its id any more. */
static void drop_group(omq_lock_table *table, omq_lock_group *group) {
    omq_lock_ids_unuse(&table->ids, group->id);
    delete_group(table, group);
}

static omq_lock_place *find_lock(const omq_lock_table *table, uint64_t group_id, uint64_t queue) {
    const omq_lock_group *group = find_group(table, group_id);
    omq_lock_place *lock = group == NULL ? NULL : place_of(group, queue);
    return lock == NULL || lock->epoch == 0 ? NULL : lock;
}

/* Store a lock of a queue that has none; the caller counts the uses of its ids. */
static omq_status add_lock(omq_lock_table *table, omq_lock_group *group,
                           const omq_lock_place *lock) {
    if ((group->count + 1) * 4 > group->capacity * 3 &&
        resize_group(group, group->capacity * 2) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    *place_of(group, lock->queue) = *lock;
    group->count++;
    group->oldest_ms = lock->granted_ms < group->oldest_ms ? lock->granted_ms : group->oldest_ms;
    table->count++;
    return OMQ_OK;
}

static omq_lock outside(const omq_lock_group *group, const omq_lock_place *lock) {
    return (omq_lock){group->id, lock->queue, lock->owner, lock->epoch, lock->granted_ms};
}

/* ---- life ---- */

omq_lock_table *omq_lock_table_new(int64_t lease_ms, uint64_t first_epoch) {
    omq_lock_table *table = calloc(1, sizeof *table);
    if (table != NULL && omq_mutex_init(&table->mutex) != 0) {
        free(table);
        return NULL;
    }
    if (table != NULL) {
        table->lease_ms = lease_ms;
        table->next_epoch = first_epoch;
        table->ids.first_free = OMQ_NO_ID_SLOT;
        table->ids.first_idle = OMQ_NO_ID_SLOT;
    }
    return table;
}

static void delete_groups(omq_lock_table *table) {
    for (size_t i = 0; i < table->group_count; i++) {
        free(table->groups[i].places);
    }
    free(table->groups);
    table->groups = NULL;
    table->group_count = 0;
    table->group_capacity = 0;
    table->count = 0;
}

void omq_lock_table_free(omq_lock_table *table) {
    if (table != NULL) {
        delete_groups(table);
        free(table->ids.slots);
        omq_mutex_destroy(&table->mutex);
        free(table);
    }
}

/* ---- ids ---- */

omq_status omq_lock_table_add_id(omq_lock_table *table, uint64_t *id) {
    omq_mutex_lock(&table->mutex);
    omq_status status = omq_lock_ids_add(&table->ids, id);
    omq_mutex_unlock(&table->mutex);
    return status;
}

omq_status omq_lock_table_pin(omq_lock_table *table, uint64_t id) {
    omq_mutex_lock(&table->mutex);
    omq_status status = omq_lock_ids_pin(&table->ids, id);
    omq_mutex_unlock(&table->mutex);
    return status;
}

omq_status omq_lock_table_unpin(omq_lock_table *table, uint64_t id) {
    omq_mutex_lock(&table->mutex);
    omq_status status = omq_lock_ids_unpin(&table->ids, id);
    omq_mutex_unlock(&table->mutex);
    return status;
}

size_t omq_lock_table_known(omq_lock_table *table, const uint64_t *ids, size_t count) {
    omq_mutex_lock(&table->mutex);
    size_t found = omq_lock_ids_known(&table->ids, ids, count);
    omq_mutex_unlock(&table->mutex);
    return found;
}

size_t omq_lock_table_forget(omq_lock_table *table, uint64_t *ids, size_t capacity) {
    omq_mutex_lock(&table->mutex);
    size_t forgotten = omq_lock_ids_forget(&table->ids, ids, capacity);
    omq_mutex_unlock(&table->mutex);
    return forgotten;
}

/* ---- locks ---- */

/* Grant or renew one lock (docs/internals/semantics.md#broker-lock-table); epoch 0: refused. */
static omq_status try_lock(omq_lock_table *table, omq_lock_group *group,
                           const omq_lock_place *asked, uint64_t *epoch) {
    omq_lock_place *held = place_of(group, asked->queue);
    bool is_live = held->epoch != 0 && !is_expired(table, held->granted_ms, asked->granted_ms);
    *epoch = 0;
    if (is_live && held->owner != asked->owner) {
        return OMQ_OK;
    }
    omq_lock_place granted = *asked;
    granted.epoch = is_live ? held->epoch : table->next_epoch;
    if (held->epoch == 0) {
        if (add_lock(table, group, &granted) != OMQ_OK) {
            return OMQ_NO_MEMORY;
        }
        omq_lock_ids_use(&table->ids, asked->queue);
        omq_lock_ids_use(&table->ids, asked->owner);
    } else {
        if (held->owner != asked->owner) {
            omq_lock_ids_use(&table->ids, asked->owner);
            omq_lock_ids_unuse(&table->ids, held->owner);
        }
        *held = granted;
    }
    table->next_epoch += !is_live; /* the same owner after expiry, too: others may have held it */
    *epoch = granted.epoch;
    return OMQ_OK;
}

/* Try each queue. All ids are known, so that only memory can fail. */
static omq_status try_lock_all(omq_lock_table *table, uint64_t group_id, const uint64_t *queues,
                               size_t count, uint64_t owner, int64_t now_ms, uint64_t *epochs) {
    omq_status status = OMQ_OK;
    omq_lock_group *group = find_group(table, group_id);
    if (group == NULL) {
        group = add_group(table, group_id);
        if (group == NULL) {
            return OMQ_NO_MEMORY;
        }
        omq_lock_ids_use(&table->ids, group_id);
    }
    /* oldest_ms is a lower bound, and a clock that went back makes a renewed lock the oldest. */
    group->oldest_ms = now_ms < group->oldest_ms ? now_ms : group->oldest_ms;
    for (size_t i = 0; status == OMQ_OK && i < count; i++) {
        if (i + AHEAD < count) {
            OMQ_PREFETCH(group->places + home_of(group, queues[i + AHEAD]));
        }
        omq_lock_place asked = {queues[i], owner, 0, now_ms};
        status = try_lock(table, group, &asked, epochs + i);
    }
    if (group->count == 0) {
        drop_group(table, group); /* only after NO_MEMORY */
    }
    return status;
}

omq_status omq_lock_table_try_lock(omq_lock_table *table, uint64_t group_id,
                                   const uint64_t *queues, size_t count, uint64_t owner,
                                   int64_t now_ms, uint64_t *epochs) {
    const uint64_t others[] = {group_id, owner};
    omq_status status = OMQ_UNKNOWN_ID;
    /* One mutex over test and grant of the whole batch: two members that ask at the same time
     * never both get a queue. */
    omq_mutex_lock(&table->mutex);
    if (omq_lock_ids_known(&table->ids, others, 2) == 2 &&
        omq_lock_ids_known(&table->ids, queues, count) == count) {
        status = count == 0 ? OMQ_OK
                            : try_lock_all(table, group_id, queues, count, owner, now_ms, epochs);
    }
    omq_mutex_unlock(&table->mutex);
    return status;
}

void omq_lock_table_unlock(omq_lock_table *table, uint64_t group_id, const uint64_t *queues,
                           size_t count, uint64_t owner, const uint64_t *epochs, bool *unlocked) {
    omq_mutex_lock(&table->mutex);
    omq_lock_group *group = find_group(table, group_id);
    for (size_t i = 0; i < count; i++) {
        const omq_lock_place *held = group == NULL ? NULL : place_of(group, queues[i]);
        uint64_t epoch = epochs == NULL ? 0 : epochs[i];
        unlocked[i] = held != NULL && held->epoch != 0 && held->owner == owner &&
                      (epoch == 0 || epoch == held->epoch);
        if (unlocked[i]) {
            delete_lock(table, group, held);
        }
    }
    if (group != NULL && group->count == 0) {
        drop_group(table, group);
    }
    omq_mutex_unlock(&table->mutex);
}

bool omq_lock_table_holder(omq_lock_table *table, uint64_t group, uint64_t queue, omq_lock *lock) {
    omq_mutex_lock(&table->mutex);
    const omq_lock_place *held = find_lock(table, group, queue);
    if (held != NULL) {
        *lock = (omq_lock){group, queue, held->owner, held->epoch, held->granted_ms};
    }
    omq_mutex_unlock(&table->mutex);
    return held != NULL;
}

bool omq_lock_table_is_current(omq_lock_table *table, uint64_t group, uint64_t queue,
                               uint64_t owner, uint64_t epoch, int64_t now_ms) {
    omq_mutex_lock(&table->mutex);
    const omq_lock_place *held = find_lock(table, group, queue);
    bool is_current = held != NULL && held->owner == owner && held->epoch == epoch &&
                      !is_expired(table, held->granted_ms, now_ms);
    omq_mutex_unlock(&table->mutex);
    return is_current;
}

bool omq_lock_table_is_all_expired(omq_lock_table *table, uint64_t group_id, int64_t now_ms) {
    bool has_live = false;
    omq_mutex_lock(&table->mutex);
    const omq_lock_group *group = find_group(table, group_id);
    for (size_t i = 0; group != NULL && !has_live && i < group->capacity; i++) {
        has_live = group->places[i].epoch != 0 &&
                   !is_expired(table, group->places[i].granted_ms, now_ms);
    }
    omq_mutex_unlock(&table->mutex);
    return !has_live;
}

/* Delete a group's expired locks, as many as `locks` has room for; return how many. */
static size_t sweep_group(omq_lock_table *table, omq_lock_group *group, int64_t now_ms,
                          omq_lock *locks, size_t capacity) {
    size_t swept = 0;
    int64_t oldest_ms = INT64_MAX;
    for (size_t i = 0; i < group->capacity;) {
        const omq_lock_place *held = group->places + i;
        if (held->epoch == 0) {
            i++;
        } else if (!is_expired(table, held->granted_ms, now_ms)) {
            oldest_ms = held->granted_ms < oldest_ms ? held->granted_ms : oldest_ms;
            i++;
        } else if (swept == capacity) {
            return swept;
        } else {
            locks[swept++] = outside(group, held);
            delete_lock(table, group, held); /* may move another lock to this place */
        }
    }
    group->oldest_ms = oldest_ms; /* exact again: the group is skipped for a whole lease */
    return swept;
}

/* Shrink a group to a quarter or less once that is enough; it stays as it is without memory. Not to
 * a half: members that come and go would move it each time. */
static void shrink_group(omq_lock_group *group) {
    size_t capacity = group->capacity;
    while (capacity > FIRST_PLACES && group->count * 4 <= capacity) {
        capacity /= 2;
    }
    if (capacity * 4 <= group->capacity) {
        (void)resize_group(group, capacity);
    }
}

size_t omq_lock_table_sweep(omq_lock_table *table, int64_t now_ms, omq_lock *locks,
                            size_t capacity) {
    size_t swept = 0;
    omq_mutex_lock(&table->mutex);
    for (size_t at = table->group_count; at-- > 0 && swept < capacity;) {
        omq_lock_group *group = table->groups + at;
        if (!is_expired(table, group->oldest_ms, now_ms)) {
            continue;
        }
        swept += sweep_group(table, group, now_ms, locks + swept, capacity - swept);
        if (group->count == 0) {
            drop_group(table, group);
        } else {
            shrink_group(group);
        }
    }
    omq_mutex_unlock(&table->mutex);
    return swept;
}

size_t omq_lock_table_snapshot(omq_lock_table *table, omq_lock *locks, size_t capacity) {
    size_t written = 0;
    omq_mutex_lock(&table->mutex);
    for (size_t at = 0; at < table->group_count; at++) {
        const omq_lock_group *group = table->groups + at;
        for (size_t i = 0; i < group->capacity && written < capacity; i++) {
            if (group->places[i].epoch != 0) {
                locks[written++] = outside(group, group->places + i);
            }
        }
    }
    size_t count = table->count;
    omq_mutex_unlock(&table->mutex);
    return count;
}

/* Count the uses of every lock's ids, or take them back, by the function given. */
static void count_uses(omq_lock_table *table, void (*count)(omq_lock_ids *, uint64_t)) {
    for (size_t at = 0; at < table->group_count; at++) {
        const omq_lock_group *group = table->groups + at;
        count(&table->ids, group->id);
        for (size_t i = 0; i < group->capacity; i++) {
            if (group->places[i].epoch != 0) {
                count(&table->ids, group->places[i].queue);
                count(&table->ids, group->places[i].owner);
            }
        }
    }
}

/* Add a lock to a table that is being built; `ids` are those of the real one. */
static omq_status restore_lock(omq_lock_table *table, const omq_lock_ids *ids,
                               const omq_lock *lock) {
    const uint64_t used[] = {lock->group, lock->queue, lock->owner};
    if (lock->epoch == 0 || lock->epoch >= table->next_epoch) {
        return OMQ_OUT_OF_RANGE;
    }
    if (omq_lock_ids_known(ids, used, 3) != 3) {
        return OMQ_UNKNOWN_ID;
    }
    omq_lock_group *group = find_group(table, lock->group);
    if (group == NULL) {
        group = add_group(table, lock->group);
    }
    if (group == NULL) {
        return OMQ_NO_MEMORY;
    }
    const omq_lock_place place = {lock->queue, lock->owner, lock->epoch, lock->granted_ms};
    return place_of(group, lock->queue)->epoch != 0 ? OMQ_DUPLICATE
                                                     : add_lock(table, group, &place);
}

omq_status omq_lock_table_restore(omq_lock_table *table, const omq_lock *locks, size_t count,
                                  uint64_t next_epoch) {
    omq_status status = next_epoch <= INT64_MAX ? OMQ_OK : OMQ_OUT_OF_RANGE;
    omq_mutex_lock(&table->mutex);
    /* Build first, then swap: a bad lock leaves the old table as it was. */
    omq_lock_table built = {.next_epoch = table->next_epoch};
    if (next_epoch > built.next_epoch) {
        built.next_epoch = next_epoch;
    }
    for (size_t i = 0; status == OMQ_OK && i < count; i++) {
        status = restore_lock(&built, &table->ids, locks + i);
    }
    if (status == OMQ_OK) {
        count_uses(table, omq_lock_ids_unuse);
        delete_groups(table);
        table->groups = built.groups;
        table->group_count = built.group_count;
        table->group_capacity = built.group_capacity;
        table->count = built.count;
        table->next_epoch = built.next_epoch;
        count_uses(table, omq_lock_ids_use);
    } else {
        delete_groups(&built);
    }
    omq_mutex_unlock(&table->mutex);
    return status;
}

size_t omq_lock_table_count(omq_lock_table *table) {
    omq_mutex_lock(&table->mutex);
    size_t count = table->count;
    omq_mutex_unlock(&table->mutex);
    return count;
}

uint64_t omq_lock_table_next_epoch(omq_lock_table *table) {
    omq_mutex_lock(&table->mutex);
    uint64_t epoch = table->next_epoch;
    omq_mutex_unlock(&table->mutex);
    return epoch;
}

/* ---- check ---- */

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
        size_t at = home_of(group, lock->queue);
        for (; at != i; at = (at + 1) & (group->capacity - 1)) {
            REQUIRE(group->places[at].epoch != 0, "probing cannot reach a lock");
            REQUIRE(group->places[at].queue != lock->queue, "a queue has two locks");
        }
    }
    REQUIRE(count == group->count, "a group's count of locks");
    REQUIRE(count > 0 && count < group->capacity, "a group is empty or full");
    return NULL;
}

/* Take back the uses of every lock; false if an id is unknown. */
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
