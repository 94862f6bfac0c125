/* The offset map of ordermq.h: one offset an entry. */
#include <stdlib.h>

#include "offset_leaf.h"

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

static bool is_in_range(int64_t offset) { return offset >= 0 && offset != INT64_MAX; }

static bool is_past_end(const omq_offset_map *map, int64_t offset) {
    const omq_leaf *tail = map->tail;
    return tail->end > tail->begin && offset > tail->offsets[tail->end - 1];
}

static omq_status put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new) {
    omq_item item = {offset, token, 0};
    *is_new = true;
    if (is_past_end(map, offset)) {
        return omq_offset_map_append(map, &item);
    }
    return omq_offset_map_insert_or_replace(map, &item, is_new);
}

omq_status omq_offset_map_put(omq_offset_map *map, int64_t offset, uint64_t token, bool *is_new) {
    return is_in_range(offset) ? put(map, offset, token, is_new) : OMQ_OUT_OF_RANGE;
}

/* Every OMQ_PREFETCH_GROUP keys, begin to load the leaves of the next ones. A map of one
 * level above its leaves lies in the cache. */
static void prefetch(const omq_offset_map *map, const int64_t *offsets, size_t at, size_t count) {
    if (at % OMQ_PREFETCH_GROUP == 0 && map->height > 1) {
        size_t left = count - at;
        omq_offset_map_prefetch(map, offsets + at,
                                left < OMQ_PREFETCH_GROUP ? left : OMQ_PREFETCH_GROUP);
    }
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
    bool is_found;
    (void)omq_offset_map_extract(map, offset, &item, &is_found); /* cannot fail without runs */
    return is_found;
}

size_t omq_offset_map_remove_columns(omq_offset_map *map, const int64_t *offsets, size_t count) {
    size_t removed = 0;
    for (size_t i = 0; i < count; i++) {
        prefetch(map, offsets, i, count);
        removed += omq_offset_map_remove(map, offsets[i]);
    }
    return removed;
}

size_t omq_offset_map_pop_first(omq_offset_map *map, omq_entry *entries, size_t limit) {
    size_t popped = 0;
    while (popped < limit && map->count > 0) {
        const omq_leaf *leaf = map->head;
        size_t left = limit - popped;
        uint32_t run = omq_leaf_count(leaf) < left ? omq_leaf_count(leaf) : (uint32_t)left;
        for (uint32_t i = 0; i < run; i++) {
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
    uint32_t at;
    const omq_leaf *leaf = omq_offset_map_seek(map, offset, &at);
    if (at < leaf->end && leaf->offsets[at] == offset) {
        return read_entry(leaf, at, entry);
    }
    if (at > leaf->begin) {
        return read_entry(leaf, at - 1, entry);
    }
    leaf = leaf->previous;
    return leaf != NULL && read_entry(leaf, leaf->end - 1, entry);
}

bool omq_offset_map_ceiling(const omq_offset_map *map, int64_t offset, omq_entry *entry) {
    uint32_t at;
    const omq_leaf *leaf = omq_offset_map_seek(map, offset, &at);
    if (at < leaf->end) {
        return read_entry(leaf, at, entry);
    }
    leaf = leaf->next;
    return leaf != NULL && read_entry(leaf, leaf->begin, entry);
}

size_t omq_offset_map_read(const omq_offset_map *map, int64_t start, int64_t *offsets,
                           uint64_t *tokens, size_t capacity) {
    uint32_t at;
    const omq_leaf *leaf = omq_offset_map_seek(map, start, &at);
    size_t copied = 0;
    while (leaf != NULL && copied < capacity) {
        size_t run = leaf->end - at < capacity - copied ? leaf->end - at : capacity - copied;
        memcpy(offsets + copied, leaf->offsets + at, run * sizeof *offsets);
        if (tokens != NULL) {
            memcpy(tokens + copied, leaf->tokens + at, run * sizeof *tokens);
        }
        copied += run;
        leaf = leaf->next;
        at = leaf != NULL ? leaf->begin : 0;
    }
    return copied;
}

size_t omq_offset_map_count(const omq_offset_map *map) { return map->count; }
