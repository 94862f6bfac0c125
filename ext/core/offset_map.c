#include "offset_map.h"

#include <stdlib.h>
#include <string.h>

/* Where a descent went: at level l it took child slots[l] of nodes[l]; level 0 is the root. */
typedef struct {
    omq_inner *nodes[OMQ_MAX_HEIGHT];
    uint32_t slots[OMQ_MAX_HEIGHT];
} omq_path;

/* ---- leaves ---- */

static uint32_t leaf_count(const omq_leaf *leaf) { return leaf->end - leaf->begin; }

static omq_item leaf_item(const omq_leaf *leaf, uint32_t at) {
    return (omq_item){leaf->offsets[at], leaf->tokens[at], leaf->sizes[at]};
}

static void leaf_set(omq_leaf *leaf, uint32_t at, const omq_item *item) {
    leaf->offsets[at] = item->offset;
    leaf->tokens[at] = item->token;
    leaf->sizes[at] = item->size;
}

static void leaf_move(omq_leaf *to, uint32_t to_at, const omq_leaf *from, uint32_t at,
                      uint32_t count) {
    memmove(to->offsets + to_at, from->offsets + at, count * sizeof *to->offsets);
    memmove(to->tokens + to_at, from->tokens + at, count * sizeof *to->tokens);
    memmove(to->sizes + to_at, from->sizes + at, count * sizeof *to->sizes);
}

/* The first position with an offset >= `offset`, or end. */
static uint32_t leaf_lower_bound(const omq_leaf *leaf, int64_t offset) {
    uint32_t at = leaf->begin;
    uint32_t left = leaf_count(leaf);
    while (left > 0) {
        uint32_t half = left / 2;
        bool is_below = leaf->offsets[at + half] < offset;
        at += is_below ? half + 1 : 0;
        left = is_below ? left - half - 1 : half;
    }
    return at;
}

static bool leaf_holds(const omq_leaf *leaf, uint32_t at, int64_t offset) {
    return at < leaf->end && leaf->offsets[at] == offset;
}

/* Insert before position `at` of a leaf with room, moving the shorter side if it can. */
static void leaf_insert(omq_leaf *leaf, uint32_t at, const omq_item *item) {
    uint32_t before = at - leaf->begin;
    uint32_t after = leaf->end - at;
    bool has_room_after = leaf->end < OMQ_LEAF_CAPACITY;
    if (leaf->begin > 0 && (before < after || !has_room_after)) {
        leaf_move(leaf, leaf->begin - 1, leaf, leaf->begin, before);
        leaf->begin--;
        at--;
    } else {
        leaf_move(leaf, at + 1, leaf, at, after);
        leaf->end++;
    }
    leaf_set(leaf, at, item);
}

static void leaf_delete(omq_leaf *leaf, uint32_t at) {
    uint32_t before = at - leaf->begin;
    uint32_t after = leaf->end - at - 1;
    if (before < after) {
        leaf_move(leaf, leaf->begin + 1, leaf, leaf->begin, before);
        leaf->begin++;
    } else {
        leaf_move(leaf, at, leaf, at + 1, after);
        leaf->end--;
    }
}

static omq_leaf *new_leaf(omq_offset_map *map) {
    omq_leaf *leaf = map->spare_leaf;
    if (leaf == NULL) {
        leaf = malloc(sizeof *leaf);
        if (leaf == NULL) {
            return NULL;
        }
    }
    map->spare_leaf = NULL;
    leaf->previous = NULL;
    leaf->next = NULL;
    leaf->begin = 0;
    leaf->end = 0;
    return leaf;
}

static void discard_leaf(omq_offset_map *map, omq_leaf *leaf) {
    if (map->spare_leaf == NULL) {
        map->spare_leaf = leaf;
    } else {
        free(leaf);
    }
}

static void link_after(omq_offset_map *map, omq_leaf *leaf, omq_leaf *added) {
    added->previous = leaf;
    added->next = leaf->next;
    if (leaf->next != NULL) {
        leaf->next->previous = added;
    } else {
        map->tail = added;
    }
    leaf->next = added;
}

static void link_first(omq_offset_map *map, omq_leaf *added) {
    added->next = map->head;
    map->head->previous = added;
    map->head = added;
}

static void unlink_leaf(omq_offset_map *map, omq_leaf *leaf) {
    if (leaf->previous != NULL) {
        leaf->previous->next = leaf->next;
    } else {
        map->head = leaf->next;
    }
    if (leaf->next != NULL) {
        leaf->next->previous = leaf->previous;
    } else {
        map->tail = leaf->previous;
    }
}

/* ---- inner nodes ---- */

static uint32_t child_slot(const omq_inner *node, int64_t offset) {
    uint32_t at = 1; /* the first child from 1 on whose key is above `offset`, minus one */
    uint32_t left = node->count - 1;
    while (left > 0) {
        uint32_t half = left / 2;
        bool is_at_most = node->keys[at + half] <= offset;
        at += is_at_most ? half + 1 : 0;
        left = is_at_most ? left - half - 1 : half;
    }
    return at - 1;
}

static omq_leaf *descend(const omq_offset_map *map, int64_t offset, omq_path *path) {
    void *node = map->root;
    for (int level = 0; level < map->height; level++) {
        omq_inner *inner = node;
        uint32_t slot = child_slot(inner, offset);
        path->nodes[level] = inner;
        path->slots[level] = slot;
        node = inner->children[slot];
    }
    return node;
}

/* The path to the first leaf or to the last one. */
static void descend_edge(const omq_offset_map *map, bool is_last, omq_path *path) {
    void *node = map->root;
    for (int level = 0; level < map->height; level++) {
        omq_inner *inner = node;
        path->nodes[level] = inner;
        path->slots[level] = is_last ? inner->count - 1 : 0;
        node = inner->children[path->slots[level]];
    }
}

static void give_spare_inner(omq_offset_map *map, omq_inner *node) {
    node->children[0] = map->spare_inners;
    map->spare_inners = node;
    map->spare_inner_count++;
}

static omq_inner *take_spare_inner(omq_offset_map *map) {
    omq_inner *node = map->spare_inners;
    map->spare_inners = node->children[0];
    map->spare_inner_count--;
    return node;
}

static void discard_inner(omq_offset_map *map, omq_inner *node) {
    if (map->spare_inner_count == 0) {
        give_spare_inner(map, node);
    } else {
        free(node);
    }
}

/* Have as many spare inner nodes as one more leaf below this path can need. */
static omq_status reserve_inners(omq_offset_map *map, const omq_path *path) {
    size_t needed = 0;
    int level = map->height - 1;
    while (level >= 0 && path->nodes[level]->count == OMQ_INNER_CAPACITY) {
        needed++;
        level--;
    }
    if (level < 0) {
        if (map->height == OMQ_MAX_HEIGHT) {
            return OMQ_NO_MEMORY;
        }
        needed++; /* a new root */
    }
    while (map->spare_inner_count < needed) {
        omq_inner *node = malloc(sizeof *node);
        if (node == NULL) {
            return OMQ_NO_MEMORY;
        }
        give_spare_inner(map, node);
    }
    return OMQ_OK;
}

static void insert_child(omq_inner *node, uint32_t at, int64_t key, void *child) {
    uint32_t after = node->count - at;
    memmove(node->keys + at + 1, node->keys + at, after * sizeof *node->keys);
    memmove(node->children + at + 1, node->children + at, after * sizeof *node->children);
    node->keys[at] = key;
    node->children[at] = child;
    node->count++;
}

/* Move the upper half of a full node to `right`; at the end of the tree, nothing: ascending
 * keys leave full nodes behind. Returns the key of `right`. */
static int64_t split_inner(omq_inner *node, omq_inner *right) {
    uint32_t half = OMQ_INNER_CAPACITY / 2;
    right->count = OMQ_INNER_CAPACITY - half;
    memcpy(right->keys, node->keys + half, right->count * sizeof *node->keys);
    memcpy(right->children, node->children + half, right->count * sizeof *node->children);
    node->count = half;
    return right->keys[0];
}

/* At `level` the child on the path became two, `left` and `right`, whose offsets start at
 * key. The spare nodes are reserved. */
static void replace_child(omq_offset_map *map, const omq_path *path, int level, void *left,
                          int64_t key, void *right, bool is_append) {
    for (; level >= 0; level--) {
        omq_inner *node = path->nodes[level];
        uint32_t slot = path->slots[level];
        node->children[slot] = left;
        if (node->count < OMQ_INNER_CAPACITY) {
            insert_child(node, slot + 1, key, right);
            return;
        }
        omq_inner *added = take_spare_inner(map);
        if (is_append) {
            added->count = 1;
            added->keys[0] = key;
            added->children[0] = right;
        } else {
            int64_t added_key = split_inner(node, added);
            if (slot + 1 <= node->count) {
                insert_child(node, slot + 1, key, right);
            } else {
                insert_child(added, slot + 1 - node->count, key, right);
            }
            key = added_key;
        }
        left = node;
        right = added;
    }
    omq_inner *root = take_spare_inner(map);
    root->count = 2;
    root->keys[0] = INT64_MIN;
    root->keys[1] = key;
    root->children[0] = left;
    root->children[1] = right;
    map->root = root;
    map->height++;
}

static void remove_child(omq_offset_map *map, const omq_path *path, int level) {
    for (; level >= 0; level--) {
        omq_inner *node = path->nodes[level];
        uint32_t at = path->slots[level];
        uint32_t after = node->count - at - 1;
        memmove(node->keys + at, node->keys + at + 1, after * sizeof *node->keys);
        memmove(node->children + at, node->children + at + 1, after * sizeof *node->children);
        node->count--;
        if (node->count > 0) {
            break;
        }
        discard_inner(map, node); /* never the root, which has two children or more */
    }
    while (map->height > 0 && ((omq_inner *)map->root)->count == 1) {
        omq_inner *root = map->root;
        map->root = root->children[0];
        map->height--;
        discard_inner(map, root);
    }
}

/* ---- leaves in the tree ---- */

/* Add a leaf beside a full one to make room at position `at` of it; move both to the place. */
static omq_status split_leaf(omq_offset_map *map, const omq_path *path, int64_t offset,
                             omq_leaf **leaf, uint32_t *at) {
    if (reserve_inners(map, path) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    omq_leaf *old = *leaf;
    omq_leaf *added = new_leaf(map);
    if (added == NULL) {
        return OMQ_NO_MEMORY;
    }
    if (old == map->tail && *at == old->end) {
        link_after(map, old, added);
        replace_child(map, path, map->height - 1, old, offset, added, true);
        *leaf = added;
        *at = 0;
    } else if (old == map->head && *at == old->begin) {
        added->begin = OMQ_LEAF_CAPACITY; /* fills downward */
        added->end = OMQ_LEAF_CAPACITY;
        link_first(map, added);
        replace_child(map, path, map->height - 1, added, old->offsets[old->begin], old, false);
        *leaf = added;
        *at = added->begin;
    } else {
        uint32_t middle = old->begin + leaf_count(old) / 2;
        added->end = old->end - middle;
        leaf_move(added, 0, old, middle, added->end);
        old->end = middle;
        link_after(map, old, added);
        replace_child(map, path, map->height - 1, old, added->offsets[0], added, false);
        if (*at > middle) {
            *leaf = added;
            *at -= middle;
        }
    }
    return OMQ_OK;
}

static void remove_leaf(omq_offset_map *map, const omq_path *path, omq_leaf *leaf) {
    if (map->height == 0) {
        leaf->begin = 0;
        leaf->end = 0;
        return;
    }
    unlink_leaf(map, leaf);
    discard_leaf(map, leaf);
    remove_child(map, path, map->height - 1);
}

/* Append a small leaf to the one before it. */
static void absorb(omq_leaf *into, const omq_leaf *from) {
    uint32_t held = leaf_count(into);
    leaf_move(into, 0, into, into->begin, held);
    leaf_move(into, held, from, from->begin, leaf_count(from));
    into->begin = 0;
    into->end = held + leaf_count(from);
}

/* Join a leaf that random deletes have thinned with a neighbour under the same parent, if
 * the two stay at most half full: else memory would follow the greatest count ever held. */
static void join_thin_leaf(omq_offset_map *map, omq_path *path, omq_leaf *leaf) {
    int level = map->height - 1;
    uint32_t slot = path->slots[level];
    uint32_t siblings = path->nodes[level]->count;
    uint32_t room = OMQ_LEAF_CAPACITY / 2 - leaf_count(leaf);
    if (slot + 1 < siblings && leaf_count(leaf->next) <= room) {
        path->slots[level] = slot + 1;
        omq_leaf *next = leaf->next;
        absorb(leaf, next);
        remove_leaf(map, path, next);
    } else if (slot > 0 && leaf_count(leaf->previous) <= room) {
        absorb(leaf->previous, leaf);
        remove_leaf(map, path, leaf);
    }
}

static void delete_at(omq_offset_map *map, omq_path *path, omq_leaf *leaf, uint32_t at) {
    leaf_delete(leaf, at);
    map->count--;
    if (leaf_count(leaf) == 0) {
        remove_leaf(map, path, leaf);
    } else if (map->height > 0 && leaf_count(leaf) < OMQ_LEAF_CAPACITY / 4) {
        join_thin_leaf(map, path, leaf);
    }
}

static omq_status insert_at(omq_offset_map *map, const omq_path *path, omq_leaf *leaf, uint32_t at,
                            const omq_item *item) {
    if (leaf_count(leaf) == OMQ_LEAF_CAPACITY &&
        split_leaf(map, path, item->offset, &leaf, &at) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    leaf_insert(leaf, at, item);
    map->count++;
    return OMQ_OK;
}

/* ---- for process_queue.c ---- */

omq_status omq_offset_map_open(omq_offset_map *map) {
    *map = (omq_offset_map){0};
    omq_leaf *leaf = new_leaf(map);
    if (leaf == NULL) {
        return OMQ_NO_MEMORY;
    }
    map->root = leaf;
    map->head = leaf;
    map->tail = leaf;
    return OMQ_OK;
}

static void free_inners(void *node, int height) {
    if (height > 0) {
        omq_inner *inner = node;
        for (uint32_t i = 0; height > 1 && i < inner->count; i++) {
            free_inners(inner->children[i], height - 1);
        }
        free(inner);
    }
}

void omq_offset_map_close(omq_offset_map *map) {
    free_inners(map->root, map->height);
    for (omq_leaf *leaf = map->head; leaf != NULL;) {
        omq_leaf *next = leaf->next;
        free(leaf);
        leaf = next;
    }
    free(map->spare_leaf);
    while (map->spare_inners != NULL) {
        free(take_spare_inner(map));
    }
}

omq_status omq_offset_map_insert(omq_offset_map *map, const omq_item *item) {
    omq_path path;
    omq_leaf *leaf = descend(map, item->offset, &path);
    return insert_at(map, &path, leaf, leaf_lower_bound(leaf, item->offset), item);
}

/* Have room after the last entry of the tail leaf; returns how much, 0 without memory. */
static uint32_t make_room_at_tail(omq_offset_map *map, int64_t offset) {
    omq_leaf *tail = map->tail;
    uint32_t held = leaf_count(tail);
    if (tail->end == OMQ_LEAF_CAPACITY && held <= OMQ_LEAF_CAPACITY / 2) {
        leaf_move(tail, 0, tail, tail->begin, held);
        tail->begin = 0;
        tail->end = held;
    } else if (tail->end == OMQ_LEAF_CAPACITY) {
        omq_path path;
        descend_edge(map, true, &path);
        uint32_t at = tail->end;
        if (split_leaf(map, &path, offset, &tail, &at) != OMQ_OK) {
            return 0;
        }
    }
    return OMQ_LEAF_CAPACITY - tail->end;
}

omq_status omq_offset_map_append(omq_offset_map *map, const int64_t *offsets,
                                 const uint64_t *tokens, uint64_t first_token,
                                 const uint32_t *sizes, size_t count, size_t *appended) {
    size_t done = 0;
    while (done < count) {
        uint32_t room = make_room_at_tail(map, offsets[done]);
        if (room == 0) {
            break;
        }
        omq_leaf *leaf = map->tail;
        uint32_t at = leaf->end;
        uint32_t run = count - done < room ? (uint32_t)(count - done) : room;
        memcpy(leaf->offsets + at, offsets + done, run * sizeof *offsets);
        if (tokens != NULL) {
            memcpy(leaf->tokens + at, tokens + done, run * sizeof *tokens);
        } else {
            for (uint32_t i = 0; i < run; i++) {
                leaf->tokens[at + i] = first_token + done + i;
            }
        }
        if (sizes != NULL) {
            memcpy(leaf->sizes + at, sizes + done, run * sizeof *sizes);
        } else {
            memset(leaf->sizes + at, 0, run * sizeof *sizes);
        }
        leaf->end += run;
        map->count += run;
        done += run;
    }
    *appended = done;
    return done == count ? OMQ_OK : OMQ_NO_MEMORY;
}

void omq_offset_map_drop_head(omq_offset_map *map, size_t count) {
    omq_leaf *leaf = map->head;
    leaf->begin += (uint32_t)count;
    map->count -= count;
    if (leaf->begin == leaf->end) {
        omq_path path;
        descend_edge(map, false, &path);
        remove_leaf(map, &path, leaf);
    }
}

void omq_offset_map_drop_tail(omq_offset_map *map, size_t count) {
    omq_leaf *leaf = map->tail;
    leaf->end -= (uint32_t)count;
    map->count -= count;
    if (leaf->begin == leaf->end) {
        omq_path path;
        descend_edge(map, true, &path);
        remove_leaf(map, &path, leaf);
    }
}

bool omq_offset_map_extract(omq_offset_map *map, int64_t offset, omq_item *item) {
    omq_path path;
    omq_leaf *leaf = descend(map, offset, &path);
    uint32_t at = leaf_lower_bound(leaf, offset);
    if (!leaf_holds(leaf, at, offset)) {
        return false;
    }
    *item = leaf_item(leaf, at);
    delete_at(map, &path, leaf, at);
    return true;
}

bool omq_offset_map_find(const omq_offset_map *map, int64_t offset, omq_item *item) {
    omq_path path;
    const omq_leaf *leaf = descend(map, offset, &path);
    uint32_t at = leaf_lower_bound(leaf, offset);
    if (!leaf_holds(leaf, at, offset)) {
        return false;
    }
    *item = leaf_item(leaf, at);
    return true;
}

/* ---- ordermq.h ---- */

omq_offset_map *omq_offset_map_new(void) {
    omq_offset_map *map = malloc(sizeof *map);
    if (map != NULL && omq_offset_map_open(map) != OMQ_OK) {
        free(map);
        return NULL;
    }
    return map;
}

void omq_offset_map_free(omq_offset_map *map) {
    if (map != NULL) {
        omq_offset_map_close(map);
        free(map);
    }
}

omq_status omq_offset_map_put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new) {
    if (offset < 0 || offset == INT64_MAX) {
        return OMQ_OUT_OF_RANGE;
    }
    omq_leaf *tail = map->tail;
    if (tail->end > tail->begin && offset > tail->offsets[tail->end - 1]) {
        size_t appended;
        *is_new = true;
        return omq_offset_map_append(map, &offset, &token, 0, NULL, 1, &appended);
    }
    omq_path path;
    omq_leaf *leaf = descend(map, offset, &path);
    uint32_t at = leaf_lower_bound(leaf, offset);
    *is_new = !leaf_holds(leaf, at, offset);
    if (!*is_new) {
        leaf->tokens[at] = token;
        return OMQ_OK;
    }
    omq_item item = {offset, token, 0};
    return insert_at(map, &path, leaf, at, &item);
}

bool omq_offset_map_get(const omq_offset_map *map, int64_t offset, uint64_t *token) {
    omq_item item;
    bool is_found = omq_offset_map_find(map, offset, &item);
    if (is_found) {
        *token = item.token;
    }
    return is_found;
}

bool omq_offset_map_remove(omq_offset_map *map, int64_t offset) {
    omq_item item;
    return omq_offset_map_extract(map, offset, &item);
}

size_t omq_offset_map_pop_first(omq_offset_map *map, omq_entry *entries, size_t limit) {
    size_t popped = 0;
    while (popped < limit && map->count > 0) {
        const omq_leaf *leaf = map->head;
        size_t run = leaf_count(leaf) < limit - popped ? leaf_count(leaf) : limit - popped;
        for (size_t i = 0; i < run; i++) {
            entries[popped + i] =
                (omq_entry){leaf->offsets[leaf->begin + i], leaf->tokens[leaf->begin + i]};
        }
        omq_offset_map_drop_head(map, run);
        popped += run;
    }
    return popped;
}

static bool read_entry(const omq_leaf *leaf, uint32_t at, omq_entry *entry) {
    *entry = (omq_entry){leaf->offsets[at], leaf->tokens[at]};
    return true;
}

bool omq_offset_map_first(const omq_offset_map *map, omq_entry *entry) {
    return map->count > 0 && read_entry(map->head, map->head->begin, entry);
}

bool omq_offset_map_last(const omq_offset_map *map, omq_entry *entry) {
    return map->count > 0 && read_entry(map->tail, map->tail->end - 1, entry);
}

bool omq_offset_map_floor(const omq_offset_map *map, int64_t offset, omq_entry *entry) {
    omq_path path;
    const omq_leaf *leaf = descend(map, offset, &path);
    uint32_t at = leaf_lower_bound(leaf, offset);
    if (leaf_holds(leaf, at, offset)) {
        return read_entry(leaf, at, entry);
    }
    if (at > leaf->begin) {
        return read_entry(leaf, at - 1, entry);
    }
    leaf = leaf->previous;
    return leaf != NULL && read_entry(leaf, leaf->end - 1, entry);
}

bool omq_offset_map_ceiling(const omq_offset_map *map, int64_t offset, omq_entry *entry) {
    omq_path path;
    const omq_leaf *leaf = descend(map, offset, &path);
    uint32_t at = leaf_lower_bound(leaf, offset);
    if (at < leaf->end) {
        return read_entry(leaf, at, entry);
    }
    leaf = leaf->next;
    return leaf != NULL && read_entry(leaf, leaf->begin, entry);
}

size_t omq_offset_map_read(const omq_offset_map *map, int64_t start, int64_t *offsets,
                           size_t capacity) {
    omq_path path;
    const omq_leaf *leaf = descend(map, start, &path);
    uint32_t at = leaf_lower_bound(leaf, start);
    size_t copied = 0;
    while (leaf != NULL && copied < capacity) {
        size_t run = leaf->end - at < capacity - copied ? leaf->end - at : capacity - copied;
        memcpy(offsets + copied, leaf->offsets + at, run * sizeof *offsets);
        copied += run;
        leaf = leaf->next;
        at = leaf != NULL ? leaf->begin : 0;
    }
    return copied;
}

size_t omq_offset_map_count(const omq_offset_map *map) { return map->count; }

void omq_offset_map_clear(omq_offset_map *map) {
    omq_leaf *kept = map->head;
    free_inners(map->root, map->height);
    for (omq_leaf *leaf = kept->next; leaf != NULL;) {
        omq_leaf *next = leaf->next;
        discard_leaf(map, leaf);
        leaf = next;
    }
    kept->next = NULL;
    kept->begin = 0;
    kept->end = 0;
    map->count = 0;
    map->height = 0;
    map->root = kept;
    map->head = kept;
    map->tail = kept;
}
