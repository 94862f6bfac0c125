/* Growing texts under the sanitizers, beside a copy made byte by byte. */
#include "text_buffer.h"

#include <inttypes.h>
#include <string.h>

#include "sanitize.h"

void *__real_malloc(size_t size); /* that never fails on purpose */

enum { MOST = 1 << 16, PIECE = 300, ESCAPE = 6 };

typedef struct {
    omq_text_buffer buffer;
    uint8_t copy[MOST];
    size_t size;
} texts;

static void put(texts *side, const void *bytes, size_t size) {
    memcpy(side->copy + side->size, bytes, size);
    side->size += size;
}

static void put_json(texts *side, const uint8_t *text, size_t size) {
    static const char *const words[] = {"\"\\\"", "\\\\\\", "\bb", "\ff", "\nn", "\rr", "\tt"};
    char escape[ESCAPE + 1];
    put(side, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        const char *found = NULL;
        for (size_t word = 0; word < sizeof words / sizeof *words; word++) {
            found = (uint8_t)words[word][0] == text[i] ? words[word] : found;
        }
        if (found != NULL) {
            snprintf(escape, sizeof escape, "\\%c", found[strlen(found) - 1]);
        } else if (text[i] < ' ') {
            snprintf(escape, sizeof escape, "\\u%04x", text[i]);
        }
        if (found != NULL || text[i] < ' ') {
            put(side, escape, strlen(escape));
        } else {
            put(side, text + i, 1);
        }
    }
    put(side, "\"", 1);
}

/* Add a random piece, exactly as long as its memory, to both. */
static void add_piece(texts *side, uint64_t *seed) {
    size_t size = draw(seed, PIECE);
    uint8_t *piece = __real_malloc(size > 0 ? size : 1);
    REQUIRE(piece != NULL);
    for (size_t i = 0; i < size; i++) {
        piece[i] = (uint8_t)draw(seed, draw(seed, 2) == 0 ? 256 : 100);
    }
    int64_t number = (int64_t)((uint64_t)draw(seed, UINT32_MAX) << 32 | draw(seed, UINT32_MAX));
    char digits[24];
    switch (draw(seed, 3)) {
    case 0:
        omq_buffer_add(&side->buffer, piece, size);
        put(side, piece, size);
        break;
    case 1:
        omq_buffer_add_json(&side->buffer, piece, size);
        put_json(side, piece, size);
        break;
    default:
        omq_buffer_add_decimal(&side->buffer, number);
        snprintf(digits, sizeof digits, "%" PRId64, number);
        put(side, digits, strlen(digits));
        break;
    }
    free(piece);
}

void drive_texts(uint64_t *seed, int steps) {
    texts side = {.size = 0};
    for (int step = 0; step < steps; step++) {
        size_t before = side.size;
        for (uint32_t pieces = draw(seed, 6); pieces > 0; pieces--) {
            add_piece(&side, seed);
        }
        bool was_short = side.buffer.was_short;
        REQUIRE(!was_short || failing > 0);
        if (was_short || draw(seed, 4) == 0) { /* as of a line that finds no room */
            REQUIRE(omq_buffer_cut(&side.buffer, before) == was_short);
            side.size = before;
        }
        REQUIRE(side.buffer.size == side.size);
        REQUIRE(side.size == 0 || memcmp(side.buffer.bytes, side.copy, side.size) == 0);
        if (side.size > MOST - 6 * (PIECE * ESCAPE + 2)) {
            omq_buffer_clear(&side.buffer, draw(seed, 2) * (size_t)MOST);
            side.size = 0;
        }
    }
    omq_buffer_clear(&side.buffer, 0);
    failing = 0;
}
