/* The offset map of ordermq.h. */
#include "offset_map.h"

#include <stdlib.h>

#include "offset_tree.h"

/* ---- blocks in memory ---- */

static omq_block *new_block(omq_offset_map *map, uint32_t capacity) {
    omq_block *block = capacity == OMQ_BLOCK_SPAN ? map->spare : NULL;
    if (block != NULL) {
        map->spare = NULL;
        return block;
    }
    return malloc(omq_block_bytes(capacity));
}

static void discard_block(omq_offset_map *map, omq_block *block) {
    if (map->spare == NULL && !omq_block_is_packed(block)) {
        map->spare = block;
    } else {
        free(block);
    }
}

static void set_block(omq_leaf *leaf, uint32_t at, const omq_block *block) {
    leaf->tokens[at] = (uintptr_t)block;
    leaf->extents[at] = OMQ_IN_BLOCK;
}

/* Give the block of an entry another capacity. NO_MEMORY (nothing done). */
static omq_status resize(omq_offset_map *map, omq_leaf *leaf, uint32_t at, uint32_t capacity) {
    omq_block *block = omq_directory_block(leaf, at);
    omq_block *copy = new_block(map, capacity);
    if (copy == NULL) {
        return OMQ_NO_MEMORY;
    }
    omq_block_copy(copy, block, capacity);
    set_block(leaf, at, copy);
    discard_block(map, block);
    return OMQ_OK;
}

/* Let a block that has thinned take less memory, the last offset none. */
static void shrink(omq_offset_map *map, omq_leaf *leaf, uint32_t at) {
    omq_block *block = omq_directory_block(leaf, at);
    if (block->held == 1) {
        uint32_t low = omq_block_ceiling(block, 0);
        leaf->extents[at] = low;
        leaf->tokens[at] = block->tokens[omq_block_index(block, low)];
        discard_block(map, block);
    } else {
        uint32_t capacity = omq_block_shrunk(block->capacity, block->held);
        if (resize(map, leaf, at, capacity) != OMQ_OK) {
            block->is_refused = true;
        }
    }
}

/* ---- life ---- */

omq_offset_map *omq_offset_map_new(void) {
    omq_offset_map *map = malloc(sizeof *map);
    if (map == NULL) {
        return NULL;
    }
    *map = (omq_offset_map){0};
    if (omq_offset_tree_open(&map->directory) != OMQ_OK) {
        free(map);
        return NULL;
    }
    return map;
}

static void discard_all_blocks(omq_offset_map *map) {
    for (const omq_leaf *leaf = map->directory.head; leaf != NULL; leaf = leaf->next) {
        for (uint32_t at = leaf->begin; at < leaf->end; at++) {
            if (leaf->extents[at] == OMQ_IN_BLOCK) {
                discard_block(map, omq_directory_block(leaf, at));
            }
        }
    }
}

void omq_offset_map_free(omq_offset_map *map) {
    if (map != NULL) {
        discard_all_blocks(map);
        free(map->spare);
        omq_offset_tree_close(&map->directory);
        free(map);
    }
}

void omq_offset_map_clear(omq_offset_map *map) {
    discard_all_blocks(map);
    omq_offset_tree_clear(&map->directory);
    map->count = 0;
}

/* ---- places in the directory ---- */

static inline int64_t number_of(int64_t offset) { return offset >> OMQ_BLOCK_BITS; }
static inline uint32_t low_of(int64_t offset) { return offset & (OMQ_BLOCK_SPAN - 1); }

/* The first entry of a leaf whose number is at least this, or end. Where the blocks of a leaf
 * have no gap, which is usual, it is found without a search. */
static inline uint32_t position_of(const omq_leaf *leaf, int64_t number) {
    uint32_t count = omq_leaf_count(leaf);
    if (count > 0) {
        uint64_t ahead = (uint64_t)number - (uint64_t)leaf->offsets[leaf->begin];
        if (ahead < count && leaf->offsets[leaf->begin + ahead] == number) {
            return leaf->begin + (uint32_t)ahead;
        }
    }
    return omq_leaf_lower_bound(leaf, number);
}

static inline omq_leaf *seek(const omq_offset_map *map, int64_t number, omq_path *path,
                             uint32_t *at) {
    omq_leaf *leaf = omq_tree_descend(&map->directory, number, path);
    *at = position_of(leaf, number);
    return leaf;
}

static inline bool is_entry(const omq_leaf *leaf, uint32_t at, int64_t number) {
    return at < leaf->end && leaf->offsets[at] == number;
}

/* Begin to load what the next offsets need: with random keys each directory leaf and each
 * block is a miss, and these overlap. */
static void prefetch_group(const omq_offset_map *map, const int64_t *offsets, size_t count) {
    const omq_leaf *leaves[OMQ_PREFETCH_GROUP];
    uint32_t positions[OMQ_PREFETCH_GROUP];
    for (size_t i = 0; i < count; i++) {
        omq_path path;
        leaves[i] = omq_tree_descend(&map->directory, number_of(offsets[i]), &path);
        OMQ_PREFETCH(leaves[i]);
        for (uint32_t at = 0; at < OMQ_LEAF_CAPACITY; at += 16) {
            OMQ_PREFETCH(leaves[i]->offsets + at);
        }
    }
    for (size_t i = 0; i < count; i++) {
        positions[i] = position_of(leaves[i], number_of(offsets[i]));
        OMQ_PREFETCH(leaves[i]->tokens + positions[i]);
        OMQ_PREFETCH(leaves[i]->extents + positions[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (positions[i] < leaves[i]->end && leaves[i]->extents[positions[i]] == OMQ_IN_BLOCK) {
            uintptr_t block = (uintptr_t)leaves[i]->tokens[positions[i]];
            size_t token = omq_block_bytes(low_of(offsets[i])); /* unless it is packed */
            OMQ_PREFETCH((const void *)block);
            OMQ_PREFETCH((const void *)(block + token));
        }
    }
}

/* Every OMQ_PREFETCH_GROUP keys. A directory of one level above its leaves, and what it leads
 * to, lies in the cache. */
static void prefetch(const omq_offset_map *map, const int64_t *offsets, size_t at, size_t count) {
    if (at % OMQ_PREFETCH_GROUP == 0 && map->directory.height > 1) {
        size_t left = count - at;
        prefetch_group(map, offsets + at, left < OMQ_PREFETCH_GROUP ? left : OMQ_PREFETCH_GROUP);
    }
}

/* ---- put and remove ---- */

/* The only offset of an entry, and another of its block. */
static omq_status make_block(omq_offset_map *map, omq_leaf *leaf, uint32_t at, uint32_t low,
                             uint64_t token) {
    omq_block *block = new_block(map, OMQ_BLOCK_SMALLEST);
    if (block == NULL) {
        return OMQ_NO_MEMORY;
    }
    *block = (omq_block){.capacity = OMQ_BLOCK_SMALLEST};
    omq_block_add(block, leaf->extents[at], leaf->tokens[at]);
    omq_block_add(block, low, token);
    set_block(leaf, at, block);
    return OMQ_OK;
}

/* Put into the entry of the offset's block. */
static inline omq_status put_into(omq_offset_map *map, omq_leaf *leaf, uint32_t at, uint32_t low,
                                  uint64_t token, bool *is_new) {
    *is_new = false;
    if (leaf->extents[at] != OMQ_IN_BLOCK) {
        if (leaf->extents[at] == low) {
            leaf->tokens[at] = token;
            return OMQ_OK;
        }
        if (make_block(map, leaf, at, low, token) != OMQ_OK) {
            return OMQ_NO_MEMORY;
        }
    } else {
        omq_block *block = omq_directory_block(leaf, at);
        if (omq_block_has(block, low)) {
            block->tokens[omq_block_index(block, low)] = token;
            return OMQ_OK;
        }
        if (block->held == block->capacity) {
            if (resize(map, leaf, at, omq_block_grown(block->capacity)) != OMQ_OK) {
                return OMQ_NO_MEMORY;
            }
            block = omq_directory_block(leaf, at);
        }
        omq_block_add(block, low, token);
    }
    *is_new = true;
    map->count++;
    return OMQ_OK;
}

static inline omq_status put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new) {
    omq_item item = {number_of(offset), token, low_of(offset)};
    omq_leaf *leaf = map->directory.tail;
    uint32_t at = leaf->end - 1;
    omq_status status;
    if (leaf->end == leaf->begin || item.offset < leaf->offsets[at]) {
        omq_path path;
        leaf = seek(map, item.offset, &path, &at);
        if (is_entry(leaf, at, item.offset)) {
            return put_into(map, leaf, at, item.extent, token, is_new);
        }
        status = omq_tree_insert(&map->directory, &path, leaf, at, &item);
        map->directory.count += status == OMQ_OK;
    } else if (item.offset == leaf->offsets[at]) { /* the last block: without a search */
        return put_into(map, leaf, at, item.extent, token, is_new);
    } else {
        status = omq_offset_tree_append(&map->directory, &item);
    }
    *is_new = status == OMQ_OK;
    map->count += *is_new;
    return status;
}

static bool is_in_range(int64_t offset) { return offset >= 0 && offset != INT64_MAX; }

omq_status omq_offset_map_put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new) {
    return is_in_range(offset) ? put(map, offset, token, is_new) : OMQ_OUT_OF_RANGE;
}

omq_status omq_offset_map_put_columns(omq_offset_map *map, const int64_t *offsets,
                                      const uint64_t *tokens, size_t count, size_t *added) {
    *added = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_in_range(offsets[i])) {
            return OMQ_OUT_OF_RANGE;
        }
    }
    for (size_t i = 0; i < count; i++) {
        bool is_new;
        prefetch(map, offsets, i, count);
        if (put(map, offsets[i], tokens[i], &is_new) != OMQ_OK) {
            return OMQ_NO_MEMORY;
        }
        *added += is_new;
    }
    return OMQ_OK;
}

bool omq_offset_map_remove(omq_offset_map *map, int64_t offset) {
    omq_path path;
    uint32_t at;
    uint32_t low = low_of(offset);
    omq_leaf *leaf = seek(map, number_of(offset), &path, &at);
    if (!is_entry(leaf, at, number_of(offset))) {
        return false;
    }
    if (leaf->extents[at] == OMQ_IN_BLOCK) {
        omq_block *block = omq_directory_block(leaf, at);
        if (!omq_block_has(block, low)) {
            return false;
        }
        omq_block_drop(block, low);
        if (block->held <= omq_block_thin(block->capacity)) {
            shrink(map, leaf, at);
        }
    } else if (leaf->extents[at] == low) {
        omq_tree_delete(&map->directory, &path, leaf, at);
        map->directory.count--;
    } else {
        return false;
    }
    map->count--;
    return true;
}

size_t omq_offset_map_remove_columns(omq_offset_map *map, const int64_t *offsets, size_t count) {
    size_t removed = 0;
    for (size_t i = 0; i < count; i++) {
        prefetch(map, offsets, i, count);
        removed += omq_offset_map_remove(map, offsets[i]);
    }
    return removed;
}

/* Move up to `limit` entries of the first block. */
static size_t pop_block(omq_offset_map *map, omq_entry *entries, size_t limit) {
    omq_leaf *leaf = map->directory.head;
    uint32_t at = leaf->begin;
    int64_t base = leaf->offsets[at] * OMQ_BLOCK_SPAN;
    if (leaf->extents[at] != OMQ_IN_BLOCK) {
        *entries = (omq_entry){base + leaf->extents[at], leaf->tokens[at]};
        omq_offset_tree_drop_head(&map->directory, 1);
        return 1;
    }
    omq_block *block = omq_directory_block(leaf, at);
    uint32_t count = block->held < limit ? block->held : (uint32_t)limit;
    omq_block_pop(block, base, entries, count);
    if (block->held == 0) {
        discard_block(map, block);
        omq_offset_tree_drop_head(&map->directory, 1);
    } else if (block->held <= omq_block_thin(block->capacity)) {
        shrink(map, leaf, at);
    }
    return count;
}

size_t omq_offset_map_pop_first(omq_offset_map *map, omq_entry *entries, size_t limit) {
    size_t popped = 0;
    while (popped < limit && map->count > 0) {
        size_t count = pop_block(map, entries + popped, limit - popped);
        map->count -= count;
        popped += count;
    }
    return popped;
}

/* ---- looking ---- */

bool omq_offset_map_get(const omq_offset_map *map, int64_t offset, uint64_t *token) {
    omq_path path;
    uint32_t at;
    uint32_t low = low_of(offset);
    const omq_leaf *leaf = seek(map, number_of(offset), &path, &at);
    if (!is_entry(leaf, at, number_of(offset))) {
        return false;
    }
    if (leaf->extents[at] != OMQ_IN_BLOCK) {
        *token = leaf->tokens[at];
        return leaf->extents[at] == low;
    }
    const omq_block *block = omq_directory_block(leaf, at);
    if (!omq_block_has(block, low)) {
        return false;
    }
    *token = block->tokens[omq_block_index(block, low)];
    return true;
}

/* Write the entry of `low`, which is OMQ_BLOCK_SPAN if there is none. */
static bool read_low(const omq_leaf *leaf, uint32_t at, uint32_t low, omq_entry *entry) {
    if (low == OMQ_BLOCK_SPAN) {
        return false;
    }
    const omq_block *block = omq_directory_block(leaf, at);
    entry->offset = leaf->offsets[at] * OMQ_BLOCK_SPAN + low;
    entry->token = leaf->extents[at] == OMQ_IN_BLOCK ? block->tokens[omq_block_index(block, low)]
                                                     : leaf->tokens[at];
    return true;
}

/* Write what a directory entry has at or above `low`, or at or below it. */
static bool read_ceiling(const omq_leaf *leaf, uint32_t at, uint32_t low, omq_entry *entry) {
    uint32_t only = leaf->extents[at];
    uint32_t found = only == OMQ_IN_BLOCK ? omq_block_ceiling(omq_directory_block(leaf, at), low)
                     : only >= low        ? only
                                          : OMQ_BLOCK_SPAN;
    return read_low(leaf, at, found, entry);
}

static bool read_floor(const omq_leaf *leaf, uint32_t at, uint32_t low, omq_entry *entry) {
    uint32_t only = leaf->extents[at];
    uint32_t found = only == OMQ_IN_BLOCK ? omq_block_floor(omq_directory_block(leaf, at), low)
                     : only <= low        ? only
                                          : OMQ_BLOCK_SPAN;
    return read_low(leaf, at, found, entry);
}

bool omq_offset_map_first(const omq_offset_map *map, omq_entry *entry) {
    const omq_leaf *head = map->directory.head;
    return map->count > 0 && read_ceiling(head, head->begin, 0, entry);
}

bool omq_offset_map_last(const omq_offset_map *map, omq_entry *entry) {
    const omq_leaf *tail = map->directory.tail;
    return map->count > 0 && read_floor(tail, tail->end - 1, OMQ_BLOCK_SPAN - 1, entry);
}

bool omq_offset_map_floor(const omq_offset_map *map, int64_t offset, omq_entry *entry) {
    omq_path path;
    uint32_t at;
    const omq_leaf *leaf = seek(map, number_of(offset), &path, &at);
    if (is_entry(leaf, at, number_of(offset)) && read_floor(leaf, at, low_of(offset), entry)) {
        return true;
    }
    if (at == leaf->begin) {
        leaf = leaf->previous;
        at = leaf != NULL ? leaf->end : 0;
    }
    return leaf != NULL && read_floor(leaf, at - 1, OMQ_BLOCK_SPAN - 1, entry);
}

bool omq_offset_map_ceiling(const omq_offset_map *map, int64_t offset, omq_entry *entry) {
    omq_path path;
    uint32_t at;
    const omq_leaf *leaf = seek(map, number_of(offset), &path, &at);
    if (is_entry(leaf, at, number_of(offset))) {
        if (read_ceiling(leaf, at, low_of(offset), entry)) {
            return true;
        }
        at++;
    }
    if (at == leaf->end) {
        leaf = leaf->next;
        at = leaf != NULL ? leaf->begin : 0;
    }
    return leaf != NULL && read_ceiling(leaf, at, 0, entry);
}

/* Begin to load the block some entries on: thin blocks are read faster than they come. */
static inline void prefetch_ahead(const omq_leaf *leaf, uint32_t at) {
    at += OMQ_PREFETCH_GROUP;
    if (at < leaf->end && leaf->extents[at] == OMQ_IN_BLOCK) {
        OMQ_PREFETCH(omq_directory_block(leaf, at));
    }
}

size_t omq_offset_map_read(const omq_offset_map *map, int64_t start, int64_t *offsets,
                           uint64_t *tokens, size_t capacity) {
    omq_path path;
    uint32_t at;
    const omq_leaf *leaf = seek(map, number_of(start), &path, &at);
    uint32_t low = is_entry(leaf, at, number_of(start)) ? low_of(start) : 0;
    size_t copied = 0;
    while (leaf != NULL && copied < capacity) {
        for (; at < leaf->end && copied < capacity; at++, low = 0) {
            prefetch_ahead(leaf, at);
            int64_t base = leaf->offsets[at] * OMQ_BLOCK_SPAN;
            uint64_t *to = tokens != NULL ? tokens + copied : NULL;
            if (leaf->extents[at] == OMQ_IN_BLOCK) {
                copied += omq_block_read(omq_directory_block(leaf, at), base, low,
                                         offsets + copied, to, capacity - copied);
            } else if (leaf->extents[at] >= low) {
                offsets[copied++] = base + leaf->extents[at];
                if (to != NULL) {
                    *to = leaf->tokens[at];
                }
            }
        }
        leaf = leaf->next;
        at = leaf != NULL ? leaf->begin : 0;
    }
    return copied;
}

size_t omq_offset_map_count(const omq_offset_map *map) { return map->count; }
