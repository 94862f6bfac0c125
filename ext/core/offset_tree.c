#include "offset_tree.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

/* ---- leaves ---- */

static omq_leaf *new_leaf(omq_offset_tree *tree) {
    omq_leaf *leaf = tree->spare_leaf;
    if (leaf == NULL) {
        leaf = malloc(sizeof *leaf);
        if (leaf == NULL) {
            return NULL;
        }
    }
    tree->spare_leaf = NULL;
    leaf->previous = NULL;
    leaf->next = NULL;
    leaf->begin = 0;
    leaf->end = 0;
    return leaf;
}

static void discard_leaf(omq_offset_tree *tree, omq_leaf *leaf) {
    if (tree->spare_leaf == NULL) { /* one is enough for a flow that fills and empties leaves */
        tree->spare_leaf = leaf;
    } else {
        free(leaf);
    }
}

static void link_after(omq_offset_tree *tree, omq_leaf *leaf, omq_leaf *added) {
    added->previous = leaf;
    added->next = leaf->next;
    if (leaf->next != NULL) {
        leaf->next->previous = added;
    } else {
        tree->tail = added;
    }
    leaf->next = added;
}

static void link_first(omq_offset_tree *tree, omq_leaf *added) {
    added->next = tree->head;
    tree->head->previous = added;
    tree->head = added;
}

static void unlink_leaf(omq_offset_tree *tree, omq_leaf *leaf) {
    if (leaf->previous != NULL) {
        leaf->previous->next = leaf->next;
    } else {
        tree->head = leaf->next;
    }
    if (leaf->next != NULL) {
        leaf->next->previous = leaf->previous;
    } else {
        tree->tail = leaf->previous;
    }
}

/* ---- inner nodes ---- */

/* Write the path to the first leaf or to the last one. */
static void descend_edge(const omq_offset_tree *tree, bool is_last, omq_path *path) {
    void *node = tree->root;
    for (int level = 0; level < tree->height; level++) {
        omq_inner *inner = node;
        path->nodes[level] = inner;
        path->slots[level] = is_last ? inner->count - 1 : 0;
        node = inner->children[path->slots[level]];
    }
}

static void give_spare_inner(omq_offset_tree *tree, omq_inner *node) {
    node->children[0] = tree->spare_inners;
    tree->spare_inners = node;
    tree->spare_inner_count++;
}

static omq_inner *take_spare_inner(omq_offset_tree *tree) {
    omq_inner *node = tree->spare_inners;
    tree->spare_inners = node->children[0];
    tree->spare_inner_count--;
    return node;
}

static void discard_inner(omq_offset_tree *tree, omq_inner *node) {
    if (tree->spare_inner_count == 0) {
        give_spare_inner(tree, node);
    } else {
        free(node);
    }
}

/* Allocate as many spare inner nodes as one more leaf below this path can need. Doing it before the
 * split means that a split never has to be undone half way. */
static omq_status reserve_inners(omq_offset_tree *tree, const omq_path *path) {
    size_t needed = 0;
    int level = tree->height - 1;
    while (level >= 0 && path->nodes[level]->count == OMQ_INNER_CAPACITY) {
        needed++;
        level--;
    }
    if (level < 0) {
        if (tree->height == OMQ_MAX_HEIGHT) {
            return OMQ_NO_MEMORY;
        }
        needed++; /* a new root */
    }
    while (tree->spare_inner_count < needed) {
        omq_inner *node = malloc(sizeof *node);
        if (node == NULL) {
            return OMQ_NO_MEMORY;
        }
        give_spare_inner(tree, node);
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

/* Move the upper half of a full node to `right`; return the key of `right`. */
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
static void replace_child(omq_offset_tree *tree, const omq_path *path, int level, void *left,
                          int64_t key, void *right, bool is_append) {
    for (; level >= 0; level--) {
        omq_inner *node = path->nodes[level];
        uint32_t slot = path->slots[level];
        node->children[slot] = left;
        if (node->count < OMQ_INNER_CAPACITY) {
            insert_child(node, slot + 1, key, right);
            return;
        }
        omq_inner *added = take_spare_inner(tree);
        if (is_append) { /* ascending keys leave full nodes behind, as they do leaves */
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
    omq_inner *root = take_spare_inner(tree);
    root->count = 2;
    root->keys[0] = INT64_MIN; /* never read: child 0 takes all that is below keys[1] */
    root->keys[1] = key;
    root->children[0] = left;
    root->children[1] = right;
    tree->root = root;
    tree->height++;
}

/* Take the child on the path out of its parent, and drop nodes that this empties. */
static void remove_child(omq_offset_tree *tree, const omq_path *path, int level) {
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
        discard_inner(tree, node); /* never the root, which has two children or more */
    }
    while (tree->height > 0 && ((omq_inner *)tree->root)->count == 1) {
        omq_inner *root = tree->root;
        tree->root = root->children[0];
        tree->height--;
        discard_inner(tree, root);
    }
}

/* ---- leaves in the tree ---- */

/* Add a leaf beside a full one to make room for `offset` at position `at` of it; write the leaf and
 * the position where it goes. NO_MEMORY (nothing done). At either end of the tree the full leaf
 * stays full: a queue is filled at its end, and a retry refills it at its front. */
static omq_status split_leaf(omq_offset_tree *tree, const omq_path *path, int64_t offset,
                               omq_leaf **leaf, uint32_t *at) {
    if (reserve_inners(tree, path) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    omq_leaf *old = *leaf;
    omq_leaf *added = new_leaf(tree);
    if (added == NULL) {
        return OMQ_NO_MEMORY;
    }
    if (old == tree->tail && *at == old->end) {
        link_after(tree, old, added);
        replace_child(tree, path, tree->height - 1, old, offset, added, true);
        *leaf = added;
        *at = 0;
    } else if (old == tree->head && *at == old->begin) {
        added->begin = OMQ_LEAF_CAPACITY; /* fills downward */
        added->end = OMQ_LEAF_CAPACITY;
        link_first(tree, added);
        replace_child(tree, path, tree->height - 1, added, old->offsets[old->begin], old, false);
        *leaf = added;
        *at = added->begin;
    } else {
        uint32_t middle = old->begin + omq_leaf_count(old) / 2;
        added->end = old->end - middle;
        omq_leaf_move(added, 0, old, middle, added->end);
        old->end = middle;
        link_after(tree, old, added);
        replace_child(tree, path, tree->height - 1, old, added->offsets[0], added, false);
        if (*at > middle) {
            *leaf = added;
            *at -= middle;
        }
    }
    return OMQ_OK;
}

static void remove_leaf(omq_offset_tree *tree, const omq_path *path, omq_leaf *leaf) {
    if (tree->height == 0) {
        leaf->begin = 0;
        leaf->end = 0;
        return;
    }
    unlink_leaf(tree, leaf);
    discard_leaf(tree, leaf);
    remove_child(tree, path, tree->height - 1);
}

/* Append a leaf's entries to those of the leaf before it. */
static void absorb(omq_leaf *into, const omq_leaf *from) {
    uint32_t held = omq_leaf_count(into);
    omq_leaf_move(into, 0, into, into->begin, held);
    omq_leaf_move(into, held, from, from->begin, omq_leaf_count(from));
    into->begin = 0;
    into->end = held + omq_leaf_count(from);
}

/* Join a leaf that random deletes have thinned with a neighbour under the same parent. Without this
 * memory would follow the greatest count ever held. Only if the two stay at most half full, or the
 * next insert would split them again. */
static void join_thin_leaf(omq_offset_tree *tree, omq_path *path, omq_leaf *leaf) {
    int level = tree->height - 1;
    uint32_t slot = path->slots[level];
    uint32_t siblings = path->nodes[level]->count;
    uint32_t room = OMQ_LEAF_CAPACITY / 2 - omq_leaf_count(leaf);
    if (slot + 1 < siblings && omq_leaf_count(leaf->next) <= room) {
        path->slots[level] = slot + 1;
        omq_leaf *next = leaf->next;
        absorb(leaf, next);
        remove_leaf(tree, path, next);
    } else if (slot > 0 && omq_leaf_count(leaf->previous) <= room) {
        absorb(leaf->previous, leaf);
        remove_leaf(tree, path, leaf);
    }
}

void omq_tree_delete(omq_offset_tree *tree, omq_path *path, omq_leaf *leaf, uint32_t at) {
    omq_leaf_delete(leaf, at);
    if (omq_leaf_count(leaf) == 0) {
        remove_leaf(tree, path, leaf);
    } else if (tree->height > 0 && omq_leaf_count(leaf) < OMQ_LEAF_CAPACITY / 4) {
        join_thin_leaf(tree, path, leaf);
    }
}

omq_status omq_tree_insert(omq_offset_tree *tree, const omq_path *path, omq_leaf *leaf, uint32_t at,
                           const omq_item *item) {
    if (omq_leaf_count(leaf) == OMQ_LEAF_CAPACITY &&
        split_leaf(tree, path, item->offset, &leaf, &at) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    omq_leaf_insert(leaf, at, item);
    return OMQ_OK;
}

/* Return the first offset that belongs to a later leaf than the path's. */
static int64_t upper_bound(const omq_offset_tree *tree, const omq_path *path) {
    for (int level = tree->height - 1; level >= 0; level--) {
        if (path->slots[level] + 1 < path->nodes[level]->count) {
            return path->nodes[level]->keys[path->slots[level] + 1];
        }
    }
    return INT64_MAX;
}

/* ---- entries: single offsets or runs; grown, cut, trimmed ---- */

/* Grow the entry at `at` if `item` continues it, in offsets and in tokens; return whether it did.
 * Tokens of another batch never continue it, for the slot is in their high half. */
static bool grow_run(omq_leaf *leaf, uint32_t at, const omq_item *item) {
    uint32_t length = leaf->extents[at];
    bool goes_on = leaf->offsets[at] + length == item->offset &&
                   leaf->tokens[at] + length == item->token && length <= UINT32_MAX - item->extent;
    leaf->extents[at] += goes_on ? item->extent : 0;
    return goes_on;
}

omq_status omq_offset_tree_insert(omq_offset_tree *tree, const omq_item *item) {
    omq_item rest = *item;
    while (true) {
        omq_path path;
        omq_item part = rest;
        omq_leaf *leaf = omq_tree_descend(tree, part.offset, &path);
        uint32_t length = omq_run_length(tree, part.extent);
        if (length > 1) {
            /* Every offset of a run must lie in the leaf that a descent for it ends in, or find
             * would look in the wrong leaf: a run is cut at the next leaf's key. */
            int64_t room = upper_bound(tree, &path) - part.offset;
            part.extent = length = room < (int64_t)length ? (uint32_t)room : length;
        }
        uint32_t at = omq_leaf_lower_bound(leaf, part.offset);
        bool has_grown = tree->has_runs && at > leaf->begin && grow_run(leaf, at - 1, &part);
        if (!has_grown && omq_tree_insert(tree, &path, leaf, at, &part) != OMQ_OK) {
            return OMQ_NO_MEMORY;
        }
        tree->count += length;
        if (length == omq_run_length(tree, rest.extent)) {
            return OMQ_OK;
        }
        rest = (omq_item){rest.offset + length, rest.token + length, rest.extent - length};
    }
}

/* Make room after the last entry of the tail leaf; return how much, 0 without memory. A leaf that
 * is half empty at its front is moved down first: a queue that drains as it fills never splits. */
static uint32_t make_room_at_tail(omq_offset_tree *tree, int64_t offset) {
    omq_leaf *tail = tree->tail;
    uint32_t held = omq_leaf_count(tail);
    if (tail->end == OMQ_LEAF_CAPACITY && held <= OMQ_LEAF_CAPACITY / 2) {
        omq_leaf_move(tail, 0, tail, tail->begin, held);
        tail->begin = 0;
        tail->end = held;
    } else if (tail->end == OMQ_LEAF_CAPACITY) {
        omq_path path;
        descend_edge(tree, true, &path);
        uint32_t at = tail->end;
        if (split_leaf(tree, &path, offset, &tail, &at) != OMQ_OK) {
            return 0;
        }
    }
    return OMQ_LEAF_CAPACITY - tail->end;
}

omq_status omq_offset_tree_append(omq_offset_tree *tree, const omq_item *item) {
    omq_leaf *leaf = tree->tail;
    bool has_grown =
        tree->has_runs && leaf->end > leaf->begin && grow_run(leaf, leaf->end - 1, item);
    if (!has_grown) {
        if (leaf->end == OMQ_LEAF_CAPACITY && make_room_at_tail(tree, item->offset) == 0) {
            return OMQ_NO_MEMORY;
        }
        leaf = tree->tail;
        omq_leaf_set(leaf, leaf->end++, item);
    }
    tree->count += omq_run_length(tree, item->extent);
    return OMQ_OK;
}

omq_status omq_offset_tree_append_columns(omq_offset_tree *tree, const int64_t *offsets,
                                          const uint64_t *tokens, const uint32_t *extents,
                                          size_t count, size_t *appended) {
    size_t done = 0;
    while (done < count) {
        uint32_t room = make_room_at_tail(tree, offsets[done]);
        if (room == 0) {
            break;
        }
        omq_leaf *leaf = tree->tail;
        uint32_t at = leaf->end;
        uint32_t run = count - done < room ? (uint32_t)(count - done) : room;
        memcpy(leaf->offsets + at, offsets + done, run * sizeof *offsets);
        memcpy(leaf->tokens + at, tokens + done, run * sizeof *tokens);
        if (extents != NULL) {
            memcpy(leaf->extents + at, extents + done, run * sizeof *extents);
        } else {
            memset(leaf->extents + at, 0, run * sizeof *leaf->extents);
        }
        leaf->end += run;
        tree->count += run;
        done += run;
    }
    *appended = done;
    return done == count ? OMQ_OK : OMQ_NO_MEMORY;
}

void omq_offset_tree_drop_head(omq_offset_tree *tree, uint32_t count) {
    omq_leaf *leaf = tree->head;
    for (uint32_t i = 0; tree->has_runs && i < count; i++) {
        tree->count -= leaf->extents[leaf->begin + i];
    }
    tree->count -= tree->has_runs ? 0 : count;
    leaf->begin += count;
    if (leaf->begin == leaf->end) {
        omq_path path;
        descend_edge(tree, false, &path);
        remove_leaf(tree, &path, leaf);
    }
}

void omq_offset_tree_trim_head(omq_offset_tree *tree, uint32_t count) {
    omq_leaf *leaf = tree->head;
    uint32_t at = leaf->begin;
    if (count == omq_run_length(tree, leaf->extents[at])) {
        omq_offset_tree_drop_head(tree, 1);
        return;
    }
    leaf->offsets[at] += count;
    leaf->tokens[at] += count;
    leaf->extents[at] -= count;
    tree->count -= count;
}

void omq_offset_tree_trim_tail(omq_offset_tree *tree, uint32_t count) {
    omq_leaf *leaf = tree->tail;
    tree->count -= count;
    if (count < omq_run_length(tree, leaf->extents[leaf->end - 1])) {
        leaf->extents[leaf->end - 1] -= count;
        return;
    }
    leaf->end--;
    if (leaf->begin == leaf->end) {
        omq_path path;
        descend_edge(tree, true, &path);
        remove_leaf(tree, &path, leaf);
    }
}

/* Return the position of the entry that holds an offset of this leaf, or end. */
static uint32_t position_of(const omq_offset_tree *tree, const omq_leaf *leaf, int64_t offset) {
    uint32_t at = omq_leaf_lower_bound(leaf, offset);
    if (at < leaf->end && leaf->offsets[at] == offset) {
        return at;
    }
    bool is_inside = tree->has_runs && at > leaf->begin &&
                     offset - leaf->offsets[at - 1] < (int64_t)leaf->extents[at - 1];
    return is_inside ? at - 1 : leaf->end;
}

/* Return one offset of an entry as an entry of its own. */
static omq_item single(const omq_offset_tree *tree, const omq_leaf *leaf, uint32_t at,
                       int64_t offset) {
    uint64_t ahead = (uint64_t)(offset - leaf->offsets[at]);
    return (omq_item){offset, leaf->tokens[at] + ahead, tree->has_runs ? 1 : leaf->extents[at]};
}

bool omq_offset_tree_find(const omq_offset_tree *tree, int64_t offset, omq_item *item) {
    omq_path path;
    const omq_leaf *leaf = omq_tree_descend(tree, offset, &path);
    uint32_t at = position_of(tree, leaf, offset);
    if (at == leaf->end) {
        return false;
    }
    *item = single(tree, leaf, at, offset);
    return true;
}

/* Take one offset out of a run of two or more. */
static omq_status cut_run(omq_offset_tree *tree, const omq_path *path, omq_leaf *leaf, uint32_t at,
                          uint32_t ahead) {
    uint32_t length = leaf->extents[at];
    if (ahead == 0) {
        leaf->offsets[at]++;
        leaf->tokens[at]++;
        leaf->extents[at]--;
    } else {
        omq_item after = {leaf->offsets[at] + ahead + 1, leaf->tokens[at] + ahead + 1,
                          length - ahead - 1};
        leaf->extents[at] = ahead;
        if (after.extent > 0 && omq_tree_insert(tree, path, leaf, at + 1, &after) != OMQ_OK) {
            leaf->extents[at] = length; /* whole again: nothing was done */
            return OMQ_NO_MEMORY;
        }
    }
    return OMQ_OK;
}

omq_status omq_offset_tree_extract(omq_offset_tree *tree, int64_t offset, omq_item *item,
                                   bool *is_found) {
    omq_path path;
    omq_leaf *leaf = omq_tree_descend(tree, offset, &path);
    uint32_t at = position_of(tree, leaf, offset);
    *is_found = at < leaf->end;
    if (!*is_found) {
        return OMQ_OK;
    }
    *item = single(tree, leaf, at, offset);
    if (omq_run_length(tree, leaf->extents[at]) == 1) {
        omq_tree_delete(tree, &path, leaf, at);
    } else if (cut_run(tree, &path, leaf, at, (uint32_t)(offset - leaf->offsets[at])) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    tree->count--;
    return OMQ_OK;
}

/* ---- life ---- */

omq_status omq_offset_tree_open(omq_offset_tree *tree) {
    *tree = (omq_offset_tree){0};
    omq_leaf *leaf = new_leaf(tree);
    if (leaf == NULL) {
        return OMQ_NO_MEMORY;
    }
    tree->root = leaf;
    tree->head = leaf;
    tree->tail = leaf;
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

void omq_offset_tree_close(omq_offset_tree *tree) {
    free_inners(tree->root, tree->height);
    for (omq_leaf *leaf = tree->head; leaf != NULL;) {
        omq_leaf *next = leaf->next;
        free(leaf);
        leaf = next;
    }
    free(tree->spare_leaf);
    while (tree->spare_inners != NULL) {
        free(take_spare_inner(tree));
    }
}

void omq_offset_tree_clear(omq_offset_tree *tree) {
    omq_leaf *kept = tree->head;
    if (kept != tree->tail) {
        free_inners(tree->root, tree->height);
        for (omq_leaf *leaf = kept->next; leaf != NULL;) {
            omq_leaf *next = leaf->next;
            discard_leaf(tree, leaf);
            leaf = next;
        }
    }
    kept->next = NULL;
    kept->begin = 0;
    kept->end = 0;
    tree->count = 0;
    tree->height = 0;
    tree->root = kept;
    tree->head = kept;
    tree->tail = kept;
}

/* ---- check ---- */

typedef struct {
    const omq_offset_tree *tree;
    const omq_leaf *next_leaf; /* the leaf that the walk must meet next */
    size_t offsets;
} walk;

/* Walk a subtree whose offsets lie in low .. high. */
static const char *check_node(walk *state, const void *node, int height, int64_t low,
                              int64_t high) {
    if (height == 0) {
        const omq_leaf *leaf = node;
        REQUIRE(leaf == state->next_leaf, "a leaf's link skips or repeats a leaf of the tree");
        REQUIRE(leaf->begin <= leaf->end && leaf->end <= OMQ_LEAF_CAPACITY,
                "a leaf's window lies outside of it");
        for (uint32_t i = leaf->begin; i < leaf->end; i++) {
            uint32_t length = omq_run_length(state->tree, leaf->extents[i]);
            REQUIRE(length > 0, "a run of nothing");
            REQUIRE(low <= leaf->offsets[i] && leaf->offsets[i] <= high - (length - 1),
                    "an offset lies outside the keys above it, or in the run before");
            low = leaf->offsets[i] + length;
            state->offsets += length;
        }
        REQUIRE(leaf->next == NULL || leaf->next->previous == leaf, "leaf links disagree");
        state->next_leaf = leaf->next;
        return NULL;
    }
    const omq_inner *inner = node;
    REQUIRE(inner->count > 0 && inner->count <= OMQ_INNER_CAPACITY, "an inner node's count");
    for (uint32_t i = 0; i < inner->count; i++) {
        int64_t from = i == 0 ? low : inner->keys[i];
        int64_t to = i + 1 == inner->count ? high : inner->keys[i + 1] - 1;
        REQUIRE(low <= from && from <= to && to <= high, "the keys of an inner node");
        const char *broken = check_node(state, inner->children[i], height - 1, from, to);
        if (broken != NULL) {
            return broken;
        }
    }
    return NULL;
}

const char *omq_offset_tree_check(const omq_offset_tree *tree, int64_t high) {
    walk state = {tree, tree->head, 0};
    REQUIRE(tree->head != NULL && tree->head->previous == NULL, "the head leaf has a previous one");
    REQUIRE(tree->tail != NULL && tree->tail->next == NULL, "the tail leaf has a next one");
    REQUIRE(tree->height >= 0 && tree->height <= OMQ_MAX_HEIGHT, "the height");
    REQUIRE(tree->height == 0 || ((const omq_inner *)tree->root)->count >= 2,
            "the root has a single child");
    const char *broken = check_node(&state, tree->root, tree->height, 0, high);
    if (broken != NULL) {
        return broken;
    }
    REQUIRE(state.next_leaf == NULL, "leaves are linked that the tree does not hold");
    REQUIRE(state.offsets == tree->count, "the count differs from the offsets");
    for (const omq_leaf *leaf = tree->head; tree->height > 0 && leaf != NULL; leaf = leaf->next) {
        REQUIRE(leaf->begin < leaf->end, "an empty leaf is not the only one");
    }
    return NULL;
}
