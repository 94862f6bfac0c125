/* Every invariant of offset trees and offset maps, for tests. */
#include "check.h"
#include "offset_map.h"

/* ---- offset tree ---- */

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

/* ---- offset map ---- */

static const char *check_block(const omq_block *block) {
    uint32_t capacity = OMQ_BLOCK_SMALLEST;
    while (capacity < block->capacity) {
        capacity = omq_block_grown(capacity);
    }
    REQUIRE(capacity == block->capacity, "a block of a capacity that none has");
    REQUIRE(block->held <= capacity, "a block holds more than it has room for");
    REQUIRE(block->held > 1, "a block holds what its directory entry could");
    REQUIRE(block->held > omq_block_thin(capacity) || block->is_refused,
            "a thin block did not shrink");
    REQUIRE(omq_count_bits(block->present[0]) + omq_count_bits(block->present[1]) == block->held,
            "the bits of a block differ from its count");
    return NULL;
}

const char *omq_offset_map_check(const omq_offset_map *map) {
    REQUIRE(!map->directory.has_runs, "the directory has runs");
    REQUIRE(map->spare == NULL || map->spare->capacity == OMQ_BLOCK_SPAN, "the spare is packed");
    const char *broken = omq_offset_tree_check(&map->directory, (INT64_MAX - 1) / OMQ_BLOCK_SPAN);
    size_t count = 0;
    for (const omq_leaf *leaf = map->directory.head; leaf != NULL; leaf = leaf->next) {
        for (uint32_t i = leaf->begin; broken == NULL && i < leaf->end; i++) {
            bool is_in_block = leaf->extents[i] == OMQ_IN_BLOCK;
            REQUIRE(is_in_block || leaf->extents[i] < OMQ_BLOCK_SPAN, "an entry of no kind");
            broken = is_in_block ? check_block(omq_directory_block(leaf, i)) : NULL;
            count += is_in_block ? omq_directory_block(leaf, i)->held : 1;
        }
    }
    REQUIRE(broken != NULL || count == map->count, "the count differs from the blocks' offsets");
    omq_entry last;
    REQUIRE(!omq_offset_map_last(map, &last) || last.offset < INT64_MAX, "an offset out of range");
    return broken;
}
