/* The entries of an offset tree: single offsets or runs; grown, cut, trimmed. */
#include "offset_tree.h"

/* Whether the entry at `at` goes on in `item`, and grow it if so. */
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
            /* Every offset of a run lies in the leaf that a descent for it ends in. */
            int64_t room = omq_tree_upper_bound(tree, &path) - part.offset;
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

/* Have room after the last entry of the tail leaf; returns how much, 0 without memory. */
static uint32_t make_room_at_tail(omq_offset_tree *tree, int64_t offset) {
    omq_leaf *tail = tree->tail;
    uint32_t held = omq_leaf_count(tail);
    if (tail->end == OMQ_LEAF_CAPACITY && held <= OMQ_LEAF_CAPACITY / 2) {
        omq_leaf_move(tail, 0, tail, tail->begin, held);
        tail->begin = 0;
        tail->end = held;
    } else if (tail->end == OMQ_LEAF_CAPACITY) {
        omq_path path;
        omq_tree_descend_edge(tree, true, &path);
        uint32_t at = tail->end;
        if (omq_tree_split_leaf(tree, &path, offset, &tail, &at) != OMQ_OK) {
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
        omq_tree_descend_edge(tree, false, &path);
        omq_tree_remove_leaf(tree, &path, leaf);
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
        omq_tree_descend_edge(tree, true, &path);
        omq_tree_remove_leaf(tree, &path, leaf);
    }
}

/* The position of the entry that holds an offset of this leaf, or end. */
static uint32_t position_of(const omq_offset_tree *tree, const omq_leaf *leaf, int64_t offset) {
    uint32_t at = omq_leaf_lower_bound(leaf, offset);
    if (at < leaf->end && leaf->offsets[at] == offset) {
        return at;
    }
    bool is_inside = tree->has_runs && at > leaf->begin &&
                     offset - leaf->offsets[at - 1] < (int64_t)leaf->extents[at - 1];
    return is_inside ? at - 1 : leaf->end;
}

/* One offset of an entry as an entry. */
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
            leaf->extents[at] = length;
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
