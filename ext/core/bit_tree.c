#include "bit_tree.h"

#include <stdlib.h>
#include <string.h>

static uint32_t words_for(uint32_t bits) { return bits / 64 + (bits % 64 != 0); }

omq_status omq_bit_tree_open(omq_bit_tree *tree, uint32_t capacity) {
    omq_bit_tree made = {.height = 0};
    size_t words = 0;
    uint32_t bits = capacity;
    do {
        made.bits[made.height++] = bits;
        bits = words_for(bits);
        words += bits;
    } while (bits > 1);
    uint64_t *memory = malloc(words * sizeof *memory);
    if (memory == NULL) {
        return OMQ_NO_MEMORY;
    }
    memset(memory, 0, words * sizeof *memory);
    for (int level = 0; level < made.height; level++) {
        made.levels[level] = memory;
        memory += words_for(made.bits[level]);
    }
    *tree = made;
    return OMQ_OK;
}

void omq_bit_tree_close(omq_bit_tree *tree) {
    free(tree->levels[0]);
    *tree = (omq_bit_tree){.height = 0};
}

void omq_bit_tree_set(omq_bit_tree *tree, uint32_t position) {
    for (int level = 0; level < tree->height; level++) {
        uint64_t *word = tree->levels[level] + position / 64;
        bool is_known = *word != 0;
        *word |= UINT64_C(1) << (position % 64);
        if (is_known) { /* then the levels above know it, too */
            return;
        }
        position /= 64;
    }
}

void omq_bit_tree_clear(omq_bit_tree *tree, uint32_t position) {
    for (int level = 0; level < tree->height; level++) {
        uint64_t *word = tree->levels[level] + position / 64;
        *word &= ~(UINT64_C(1) << (position % 64));
        if (*word != 0) { /* others are left: the levels above stay as they are */
            return;
        }
        position /= 64;
    }
}

bool omq_bit_tree_next(const omq_bit_tree *tree, uint32_t start, uint32_t *position) {
    uint32_t at = start;
    for (int level = 0; level < tree->height && at < tree->bits[level]; level++) {
        uint64_t word = tree->levels[level][at / 64] & UINT64_MAX << (at % 64);
        if (word == 0) {
            at = at / 64 + 1; /* the words after this one are the next level's bits */
            continue;
        }
        at = at / 64 * 64 + (uint32_t)__builtin_ctzll(word);
        /* Down again: every word below has a bit, for the level above says so. */
        while (level-- > 0) {
            at = at * 64 + (uint32_t)__builtin_ctzll(tree->levels[level][at]);
        }
        *position = at;
        return true;
    }
    return false;
}
