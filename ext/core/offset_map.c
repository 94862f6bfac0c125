/* The offset map of ordermq.h.
 *
 * Offsets are nearly contiguous, so the map keeps them by blocks of 128 neighbours: a
 * directory, an offset tree without runs, has an entry for each block number (offset >> 7)
 * that has an offset. Where a block has one offset only, its token is in the directory, else a
 * pointer to the block is. So a search looks at few keys, and a dense block moves nothing. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "offset_tree.h"

/* ---- blocks ---- */

/* A block: those of BLOCK_SPAN neighbouring offsets that the map holds.
 *
 * One bit per offset says which are there. The tokens of a thin block are packed in the order of
 * their offsets, so the place of one is the number of bits below it; in a block of more than
 * BLOCK_PACKED offsets each lies where its offset does, and nothing moves. A block doubles
 * when it is full and shrinks late, so that an offset that comes and goes does not copy it
 * each time. */

enum {
    BLOCK_BITS = 7,
    BLOCK_SPAN = 1 << BLOCK_BITS,
    BLOCK_SMALLEST = 4, /* tokens */
    BLOCK_PACKED = 32,  /* tokens of the largest packed block: half as many cost a map of
                               every sixth offset 50 bytes each, twice as many a slower put */
    BLOCK_THIN = 24     /* with so many left, a block of BLOCK_SPAN tokens packs them */
};

typedef struct {
    uint64_t present[2];
    uint32_t held;
    uint16_t capacity; /* tokens: 4, 8, 16, 32 or, not packed, BLOCK_SPAN */
    bool is_refused;   /* it should have shrunk, but there was no memory */
    uint64_t tokens[];
} omq_block;

static inline bool block_is_packed(const omq_block *block) {
    return block->capacity < BLOCK_SPAN;
}

static inline bool block_has(const omq_block *block, uint32_t low) {
    return block->present[low >> 6] >> (low & 63) & 1;
}

/* Return the count at which a block of this capacity should shrink: well below half, so that a key
 * that comes and goes does not copy the block each time. */
static inline uint32_t block_thin(uint32_t capacity) {
    return capacity < BLOCK_SPAN ? capacity / 4 : BLOCK_THIN;
}

/* Return the number of bits set. Not the compiler's builtin: without -mpopcnt, which wheels cannot
 * ask for, that is a call. */
static inline uint32_t count_bits(uint64_t bits) {
    bits -= bits >> 1 & UINT64_C(0x5555555555555555);
    bits = (bits & UINT64_C(0x3333333333333333)) + (bits >> 2 & UINT64_C(0x3333333333333333));
    bits = (bits + (bits >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)(bits * UINT64_C(0x0101010101010101) >> 56);
}

/* Return how many offsets of the block are below `low`, which is below BLOCK_SPAN. */
static inline uint32_t block_rank(const omq_block *block, uint32_t low) {
    uint64_t below = block->present[low >> 6] & ((UINT64_C(1) << (low & 63)) - 1);
    return count_bits(below) + (low < 64 ? 0 : count_bits(block->present[0]));
}

/* Return where the token of an offset is, or in a packed block would go. */
static inline uint32_t block_index(const omq_block *block, uint32_t low) {
    return block_is_packed(block) ? block_rank(block, low) : low;
}

/* Return the smallest offset >= low, or BLOCK_SPAN if there is none. */
static inline uint32_t block_ceiling(const omq_block *block, uint32_t low) {
    if (low < 64) {
        uint64_t bits = block->present[0] >> low << low;
        if (bits != 0) {
            return (uint32_t)__builtin_ctzll(bits);
        }
        low = 64;
    }
    uint64_t bits = low < BLOCK_SPAN ? block->present[1] >> (low - 64) << (low - 64) : 0;
    return bits != 0 ? 64 + (uint32_t)__builtin_ctzll(bits) : BLOCK_SPAN;
}

/* Return the greatest offset <= low, or BLOCK_SPAN if there is none. */
static inline uint32_t block_floor(const omq_block *block, uint32_t low) {
    if (low >= 64) {
        uint64_t bits = block->present[1] << (127 - low);
        if (bits != 0) {
            return low - (uint32_t)__builtin_clzll(bits);
        }
        low = 63;
    }
    uint64_t bits = block->present[0] << (63 - low);
    return bits != 0 ? low - (uint32_t)__builtin_clzll(bits) : BLOCK_SPAN;
}

/* Add an offset that is absent to a block with room. */
static inline void block_add(omq_block *block, uint32_t low, uint64_t token) {
    uint32_t at = low;
    if (block_is_packed(block)) {
        at = block_rank(block, low);
        memmove(block->tokens + at + 1, block->tokens + at,
                (block->held - at) * sizeof *block->tokens);
    }
    block->tokens[at] = token;
    block->present[low >> 6] |= UINT64_C(1) << (low & 63);
    block->held++;
}

/* Delete an offset that is there. */
static inline void block_drop(omq_block *block, uint32_t low) {
    block->present[low >> 6] &= ~(UINT64_C(1) << (low & 63));
    block->held--;
    if (block_is_packed(block)) {
        uint32_t at = block_rank(block, low);
        memmove(block->tokens + at, block->tokens + at + 1,
                (block->held - at) * sizeof *block->tokens);
    }
}

/* Return the bytes of a block with room for so many tokens. */
static size_t block_bytes(uint32_t capacity) {
    return offsetof(omq_block, tokens) + capacity * sizeof(uint64_t);
}

/* Return the capacity that a full block grows to: from packed straight to one place per offset. */
static uint32_t block_grown(uint32_t capacity) {
    return capacity < BLOCK_PACKED ? 2 * capacity : BLOCK_SPAN;
}

/* Return the capacity that a block with so many offsets shrinks to. */
static uint32_t block_shrunk(uint32_t capacity, uint32_t held) {
    while (held <= block_thin(capacity)) {
        capacity = capacity < BLOCK_SPAN ? capacity / 2 : BLOCK_PACKED;
    }
    return capacity;
}

/* Take the smallest bit of two words that are not both 0. */
static inline uint32_t take_bit(uint64_t *bits) {
    uint32_t word = bits[0] == 0;
    uint32_t low = (uint32_t)__builtin_ctzll(bits[word]);
    bits[word] &= bits[word] - 1;
    return 64 * word + low;
}

/* Make `to`, memory of block_bytes(capacity), a block of the same offsets and tokens. */
static void block_copy(omq_block *to, const omq_block *from, uint32_t capacity) {
    uint64_t bits[2] = {from->present[0], from->present[1]};
    *to = (omq_block){{bits[0], bits[1]}, from->held, (uint16_t)capacity, false};
    bool was_packed = block_is_packed(from);
    if (was_packed && block_is_packed(to)) {
        memcpy(to->tokens, from->tokens, from->held * sizeof *to->tokens);
        return;
    }
    for (uint32_t i = 0; i < from->held; i++) {
        uint32_t low = take_bit(bits);
        to->tokens[was_packed ? low : i] = from->tokens[was_packed ? i : low];
    }
}

/* Write the offsets of the smallest `count` bits of a word, and the tokens beside: packed from
 * `from` on, or else each where its offset is. */
static void read_word(uint64_t bits, const uint64_t *from, bool is_packed, int64_t base,
                      int64_t *offsets, uint64_t *tokens, uint32_t count) {
    if (bits == UINT64_MAX) { /* dense, as queues are: two copies instead of 64 steps */
        for (uint32_t i = 0; i < count; i++) {
            offsets[i] = base + i;
        }
        is_packed = true;
    } else {
        for (uint32_t i = 0; i < count; i++, bits &= bits - 1) {
            uint32_t low = (uint32_t)__builtin_ctzll(bits);
            offsets[i] = base + low;
            if (tokens != NULL && !is_packed) {
                tokens[i] = from[low];
            }
        }
    }
    if (tokens != NULL && is_packed) {
        memcpy(tokens, from, count * sizeof *tokens);
    }
}

/* Write the entries from `low` on, up to `room`; offsets count from `base`. Either column may
 * be NULL. Returns how many. */
static size_t block_read(const omq_block *block, int64_t base, uint32_t low, int64_t *offsets,
                      uint64_t *tokens, size_t room) {
    bool is_packed = block_is_packed(block);
    uint32_t done = 0;
    for (uint32_t word = low / 64; word < 2 && done < room; word++, low = 64 * word) {
        uint64_t bits = block->present[word] >> (low & 63) << (low & 63);
        uint32_t count = count_bits(bits);
        count = count < room - done ? count : (uint32_t)(room - done);
        const uint64_t *from = block->tokens + (is_packed ? block_rank(block, low) : 64 * word);
        read_word(bits, from, is_packed, base + 64 * word, offsets + done,
                  tokens != NULL ? tokens + done : NULL, count);
        done += count;
    }
    return done;
}

/* Move the smallest entries, `count` of more, to `entries`. */
static void block_pop(omq_block *block, int64_t base, omq_entry *entries, uint32_t count) {
    bool is_packed = block_is_packed(block);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t low = take_bit(block->present);
        entries[i] = (omq_entry){base + low, block->tokens[is_packed ? i : low]};
    }
    block->held -= count;
    if (is_packed) {
        memmove(block->tokens, block->tokens + count, block->held * sizeof *block->tokens);
    }
}

/* ---- the directory ---- */

/* The extent of a directory entry: the low bits of its only offset, or this, and then the
 * token is the address of a block, of two offsets at least. */
#define IN_BLOCK ((uint32_t)BLOCK_SPAN)

enum { PREFETCH_GROUP = 16 /* keys */ };

struct omq_offset_map {
    size_t count;
    omq_offset_tree directory;
    omq_block *spare; /* of BLOCK_SPAN tokens, so that a steady flow does not call malloc */
};

static inline omq_block *directory_block(const omq_leaf *leaf, uint32_t at) {
    return (omq_block *)(uintptr_t)leaf->tokens[at];
}

/* ---- blocks in memory ---- */

static omq_block *new_block(omq_offset_map *map, uint32_t capacity) {
    omq_block *block = capacity == BLOCK_SPAN ? map->spare : NULL;
    if (block != NULL) {
        map->spare = NULL;
        return block;
    }
    return malloc(block_bytes(capacity));
}

static void discard_block(omq_offset_map *map, omq_block *block) {
    if (map->spare == NULL && !block_is_packed(block)) {
        map->spare = block;
    } else {
        free(block);
    }
}

static void set_block(omq_leaf *leaf, uint32_t at, const omq_block *block) {
    leaf->tokens[at] = (uintptr_t)block;
    leaf->extents[at] = IN_BLOCK;
}

/* Give the block of an entry another capacity. NO_MEMORY (nothing done). */
static omq_status resize(omq_offset_map *map, omq_leaf *leaf, uint32_t at, uint32_t capacity) {
    omq_block *block = directory_block(leaf, at);
    omq_block *copy = new_block(map, capacity);
    if (copy == NULL) {
        return OMQ_NO_MEMORY;
    }
    block_copy(copy, block, capacity);
    set_block(leaf, at, copy);
    discard_block(map, block);
    return OMQ_OK;
}

/* Give a thinned block less memory; its last offset goes back into the directory entry. */
static void shrink(omq_offset_map *map, omq_leaf *leaf, uint32_t at) {
    omq_block *block = directory_block(leaf, at);
    if (block->held == 1) {
        uint32_t low = block_ceiling(block, 0);
        leaf->extents[at] = low;
        leaf->tokens[at] = block->tokens[block_index(block, low)];
        discard_block(map, block);
    } else {
        uint32_t capacity = block_shrunk(block->capacity, block->held);
        if (resize(map, leaf, at, capacity) != OMQ_OK) {
            block->is_refused = true; /* a removal must not fail; the next one tries again */
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
            if (leaf->extents[at] == IN_BLOCK) {
                discard_block(map, directory_block(leaf, at));
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

static inline int64_t number_of(int64_t offset) { return offset >> BLOCK_BITS; }
static inline uint32_t low_of(int64_t offset) { return offset & (BLOCK_SPAN - 1); }

/* Return the first entry of a leaf whose number is at least this, or end. Where the blocks of a
 * leaf have no gap, as is usual, a subtraction finds it. */
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

/* Start to load what the next offsets need. With random keys each directory leaf and each block is
 * a cache miss; here the misses of a group overlap instead of following each other. */
static void prefetch_group(const omq_offset_map *map, const int64_t *offsets, size_t count) {
    const omq_leaf *leaves[PREFETCH_GROUP];
    uint32_t positions[PREFETCH_GROUP];
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
        if (positions[i] < leaves[i]->end && leaves[i]->extents[positions[i]] == IN_BLOCK) {
            uintptr_t block = (uintptr_t)leaves[i]->tokens[positions[i]];
            size_t token = block_bytes(low_of(offsets[i])); /* unless it is packed */
            OMQ_PREFETCH((const void *)block);
            OMQ_PREFETCH((const void *)(block + token));
        }
    }
}

/* Prefetch every PREFETCH_GROUP keys. Not in a directory of one level above its leaves: it and its
 * blocks lie in the cache, and the extra descents would cost more than they save. */
static void prefetch(const omq_offset_map *map, const int64_t *offsets, size_t at, size_t count) {
    if (at % PREFETCH_GROUP == 0 && map->directory.height > 1) {
        size_t left = count - at;
        prefetch_group(map, offsets + at, left < PREFETCH_GROUP ? left : PREFETCH_GROUP);
    }
}

/* ---- put and remove ---- */

/* Make a block of the only offset of an entry and another one. NO_MEMORY (nothing done). */
static omq_status make_block(omq_offset_map *map, omq_leaf *leaf, uint32_t at, uint32_t low,
                             uint64_t token) {
    omq_block *block = new_block(map, BLOCK_SMALLEST);
    if (block == NULL) {
        return OMQ_NO_MEMORY;
    }
    *block = (omq_block){.capacity = BLOCK_SMALLEST};
    block_add(block, leaf->extents[at], leaf->tokens[at]);
    block_add(block, low, token);
    set_block(leaf, at, block);
    return OMQ_OK;
}

/* Put into the entry of the offset's block. */
static inline omq_status put_into(omq_offset_map *map, omq_leaf *leaf, uint32_t at, uint32_t low,
                                  uint64_t token, bool *is_new) {
    *is_new = false;
    if (leaf->extents[at] != IN_BLOCK) {
        if (leaf->extents[at] == low) {
            leaf->tokens[at] = token;
            return OMQ_OK;
        }
        if (make_block(map, leaf, at, low, token) != OMQ_OK) {
            return OMQ_NO_MEMORY;
        }
    } else {
        omq_block *block = directory_block(leaf, at);
        if (block_has(block, low)) {
            block->tokens[block_index(block, low)] = token;
            return OMQ_OK;
        }
        if (block->held == block->capacity) {
            if (resize(map, leaf, at, block_grown(block->capacity)) != OMQ_OK) {
                return OMQ_NO_MEMORY;
            }
            block = directory_block(leaf, at);
        }
        block_add(block, low, token);
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
    } else if (item.offset == leaf->offsets[at]) { /* the usual put is in the last block */
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
    if (leaf->extents[at] == IN_BLOCK) {
        omq_block *block = directory_block(leaf, at);
        if (!block_has(block, low)) {
            return false;
        }
        block_drop(block, low);
        if (block->held <= block_thin(block->capacity)) {
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
    int64_t base = leaf->offsets[at] * BLOCK_SPAN;
    if (leaf->extents[at] != IN_BLOCK) {
        *entries = (omq_entry){base + leaf->extents[at], leaf->tokens[at]};
        omq_offset_tree_drop_head(&map->directory, 1);
        return 1;
    }
    omq_block *block = directory_block(leaf, at);
    uint32_t count = block->held < limit ? block->held : (uint32_t)limit;
    block_pop(block, base, entries, count);
    if (block->held == 0) {
        discard_block(map, block);
        omq_offset_tree_drop_head(&map->directory, 1);
    } else if (block->held <= block_thin(block->capacity)) {
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
    if (leaf->extents[at] != IN_BLOCK) {
        *token = leaf->tokens[at];
        return leaf->extents[at] == low;
    }
    const omq_block *block = directory_block(leaf, at);
    if (!block_has(block, low)) {
        return false;
    }
    *token = block->tokens[block_index(block, low)];
    return true;
}

/* Write the entry of `low`, which is BLOCK_SPAN if there is none. */
static bool read_low(const omq_leaf *leaf, uint32_t at, uint32_t low, omq_entry *entry) {
    if (low == BLOCK_SPAN) {
        return false;
    }
    const omq_block *block = directory_block(leaf, at);
    entry->offset = leaf->offsets[at] * BLOCK_SPAN + low;
    entry->token = leaf->extents[at] == IN_BLOCK ? block->tokens[block_index(block, low)]
                                                     : leaf->tokens[at];
    return true;
}

/* Write what a directory entry has at or above `low`, or at or below it. */
static bool read_ceiling(const omq_leaf *leaf, uint32_t at, uint32_t low, omq_entry *entry) {
    uint32_t only = leaf->extents[at];
    uint32_t found = only == IN_BLOCK ? block_ceiling(directory_block(leaf, at), low)
                     : only >= low        ? only
                                          : BLOCK_SPAN;
    return read_low(leaf, at, found, entry);
}

static bool read_floor(const omq_leaf *leaf, uint32_t at, uint32_t low, omq_entry *entry) {
    uint32_t only = leaf->extents[at];
    uint32_t found = only == IN_BLOCK ? block_floor(directory_block(leaf, at), low)
                     : only <= low        ? only
                                          : BLOCK_SPAN;
    return read_low(leaf, at, found, entry);
}

bool omq_offset_map_first(const omq_offset_map *map, omq_entry *entry) {
    const omq_leaf *head = map->directory.head;
    return map->count > 0 && read_ceiling(head, head->begin, 0, entry);
}

bool omq_offset_map_last(const omq_offset_map *map, omq_entry *entry) {
    const omq_leaf *tail = map->directory.tail;
    return map->count > 0 && read_floor(tail, tail->end - 1, BLOCK_SPAN - 1, entry);
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
    return leaf != NULL && read_floor(leaf, at - 1, BLOCK_SPAN - 1, entry);
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

/* Start to load the block some entries ahead: thin blocks are read faster than memory delivers
 * them. */
static inline void prefetch_ahead(const omq_leaf *leaf, uint32_t at) {
    at += PREFETCH_GROUP;
    if (at < leaf->end && leaf->extents[at] == IN_BLOCK) {
        OMQ_PREFETCH(directory_block(leaf, at));
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
            int64_t base = leaf->offsets[at] * BLOCK_SPAN;
            uint64_t *to = tokens != NULL ? tokens + copied : NULL;
            if (leaf->extents[at] == IN_BLOCK) {
                copied += block_read(directory_block(leaf, at), base, low,
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

/* ---- check ---- */

static const char *check_block(const omq_block *block) {
    uint32_t capacity = BLOCK_SMALLEST;
    while (capacity < block->capacity) {
        capacity = block_grown(capacity);
    }
    REQUIRE(capacity == block->capacity, "a block of a capacity that none has");
    REQUIRE(block->held <= capacity, "a block holds more than it has room for");
    REQUIRE(block->held > 1, "a block holds what its directory entry could");
    REQUIRE(block->held > block_thin(capacity) || block->is_refused,
            "a thin block did not shrink");
    REQUIRE(count_bits(block->present[0]) + count_bits(block->present[1]) == block->held,
            "the bits of a block differ from its count");
    return NULL;
}

const char *omq_offset_map_check(const omq_offset_map *map) {
    REQUIRE(!map->directory.has_runs, "the directory has runs");
    REQUIRE(map->spare == NULL || map->spare->capacity == BLOCK_SPAN, "the spare is packed");
    const char *broken = omq_offset_tree_check(&map->directory, (INT64_MAX - 1) / BLOCK_SPAN);
    size_t count = 0;
    for (const omq_leaf *leaf = map->directory.head; leaf != NULL; leaf = leaf->next) {
        for (uint32_t i = leaf->begin; broken == NULL && i < leaf->end; i++) {
            bool is_in_block = leaf->extents[i] == IN_BLOCK;
            REQUIRE(is_in_block || leaf->extents[i] < BLOCK_SPAN, "an entry of no kind");
            broken = is_in_block ? check_block(directory_block(leaf, i)) : NULL;
            count += is_in_block ? directory_block(leaf, i)->held : 1;
        }
    }
    REQUIRE(broken != NULL || count == map->count, "the count differs from the blocks' offsets");
    omq_entry last;
    REQUIRE(!omq_offset_map_last(map, &last) || last.offset < INT64_MAX, "an offset out of range");
    return broken;
}
