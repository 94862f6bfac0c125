/* The id window of ordermq.h: a ring of the newest ids, each with its body's size and checksum, and
 * chains of it by hash. The links of the chains lie beside the ring: a search walks past ids of other
 * hashes, and those of a whole window stay in the cache, as the ids do not. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "crc32.h"
#include "key_lanes.h"
#include "queue_filling.h"

enum {
    FIRST_IDS = 64,
    INLINE_ID = 32 /* the ids of IPv4 producers; the 56 characters of IPv6 ones lie elsewhere */
};

/* What is compared of a message besides its id: a producer may give one id to other bodies. */
typedef struct {
    uint32_t size;
    uint32_t crc;
} omq_window_body;

/* One id. Of equal messages only the newest is in a chain: else a producer that gives all its messages
 * one id would make one long chain. */
typedef struct {
    int64_t offset;
    union {
        uint8_t here[INLINE_ID];
        uint8_t *elsewhere;
    } id;
    omq_window_body body;
    uint16_t size;
    bool is_chained;
} omq_window_id;

typedef struct {
    uint32_t hash;
    uint32_t next; /* in the chain: index + 1 in the ring, 0 at its end */
} omq_window_link;

struct omq_id_window {
    omq_window_id *ring;
    omq_window_link *links; /* of each id of the ring, at its index */
    uint32_t *chains;     /* first of each: index + 1, 0 if empty */
    uint32_t capacity;    /* of the ring; at most `size` */
    uint32_t chain_count; /* a power of two, at least the capacity; 0 before the first id */
    uint32_t first;       /* the oldest id in the ring */
    uint32_t count;
    uint32_t size;
    int64_t newest; /* the offset noted last, -1 at first */
    uint64_t seed;
};

/* ---- life ---- */

omq_id_window *omq_id_window_new(uint32_t size, uint64_t seed) {
    omq_id_window *window = malloc(sizeof *window);
    if (window != NULL) {
        *window = (omq_id_window){.size = size, .newest = -1, .seed = seed};
    }
    return window;
}

static uint32_t index_at_age(const omq_id_window *window, uint32_t number) {
    uint32_t left = window->capacity - window->first;
    return number < left ? window->first + number : number - left;
}

static omq_window_id *at_age(const omq_id_window *window, uint32_t number) {
    return window->ring + index_at_age(window, number);
}

static const uint8_t *bytes_of(const omq_window_id *id) {
    return id->size > INLINE_ID ? id->id.elsewhere : id->id.here;
}

static void free_id(omq_window_id *id) {
    if (id->size > INLINE_ID) {
        free(id->id.elsewhere);
    }
}

void omq_id_window_clear(omq_id_window *window) {
    for (uint32_t i = 0; i < window->count; i++) {
        free_id(at_age(window, i));
    }
    free(window->ring);
    free(window->links);
    free(window->chains);
    *window = (omq_id_window){.size = window->size, .newest = -1, .seed = window->seed};
}

void omq_id_window_free(omq_id_window *window) {
    if (window != NULL) {
        omq_id_window_clear(window);
        free(window);
    }
}

size_t omq_id_window_count(const omq_id_window *window) { return window->count; }

/* ---- chains ---- */

static uint32_t hash_of(const omq_id_window *window, const uint8_t *bytes, size_t size,
                        omq_window_body body) {
    /* With the body: else messages of one id would make one long chain. */
    return (uint32_t)omq_key_hash(bytes, size, window->seed ^ body.crc ^ body.size);
}

static uint32_t *chain_of(const omq_id_window *window, uint32_t hash) {
    return window->chains + (hash & (window->chain_count - 1));
}

/* Put an id of the ring, whose link has its hash, into its chain. */
static void enchain(omq_id_window *window, uint32_t index) {
    uint32_t *chain = chain_of(window, window->links[index].hash);
    window->links[index].next = *chain;
    *chain = index + 1;
    window->ring[index].is_chained = true;
}

/* Take an id out of its chain; `place` is what names it there. */
static void unchain(omq_id_window *window, uint32_t *place) {
    uint32_t index = *place - 1;
    *place = window->links[index].next;
    window->ring[index].is_chained = false;
}

/* Return the place in a chain that names this message, or the chain's end, which holds 0. */
static uint32_t *find(const omq_id_window *window, const omq_text *text, omq_window_body body,
                      uint32_t hash) {
    uint32_t *place = chain_of(window, hash);
    while (*place != 0) {
        omq_window_link *link = window->links + (*place - 1);
        if (link->hash == hash) {
            /* Equal hashes are not enough: a message that is no copy would be lost. */
            const omq_window_id *id = window->ring + (*place - 1);
            if (id->size == text->size && id->body.size == body.size &&
                id->body.crc == body.crc &&
                memcmp(bytes_of(id), text->bytes, text->size) == 0) {
                break;
            }
        }
        place = &link->next;
    }
    return place;
}

static void drop_oldest(omq_id_window *window) {
    omq_window_id *oldest = window->ring + window->first;
    if (oldest->is_chained) {
        uint32_t *place = chain_of(window, window->links[window->first].hash);
        while (*place != window->first + 1) {
            place = &window->links[*place - 1].next;
        }
        unchain(window, place);
    }
    free_id(oldest);
    window->first = window->first + 1 == window->capacity ? 0 : window->first + 1;
    window->count--;
}

/* Make room for one more id, in a ring that is full and may grow. NO_MEMORY. */
static omq_status grow(omq_id_window *window) {
    uint32_t capacity = window->capacity < FIRST_IDS ? FIRST_IDS : window->capacity;
    if (window->capacity > 0) {
        capacity = capacity > window->size / 2 ? window->size : capacity * 2;
    }
    capacity = capacity < window->size ? capacity : window->size;
    uint32_t chain_count = FIRST_IDS;
    while (chain_count < capacity) {
        chain_count *= 2;
    }
    uint32_t *chains = calloc(chain_count, sizeof *chains);
    omq_window_link *links =
        chains == NULL ? NULL : realloc(window->links, capacity * sizeof *links);
    /* Kept where the ring finds no memory: it has more room than the ring then, and no harm. */
    window->links = links == NULL ? window->links : links;
    omq_window_id *ring = links == NULL ? NULL : realloc(window->ring, capacity * sizeof *ring);
    if (ring == NULL) {
        free(chains);
        return OMQ_NO_MEMORY;
    }
    /* The older part moves to the end of the ring, so that the newer one has room behind it. */
    uint32_t older = window->first > 0 ? window->capacity - window->first : 0;
    if (older > 0) {
        memmove(ring + (capacity - older), ring + window->first, older * sizeof *ring);
        memmove(links + (capacity - older), links + window->first, older * sizeof *links);
        window->first = capacity - older;
    }
    free(window->chains);
    window->ring = ring;
    window->chains = chains;
    window->capacity = capacity;
    window->chain_count = chain_count;
    for (uint32_t i = 0; i < window->count; i++) {
        if (at_age(window, i)->is_chained) {
            enchain(window, index_at_age(window, i));
        }
    }
    return OMQ_OK;
}

/* ---- copies ---- */

/* Note the message at an offset above all noted ones. Writes whether it is a copy, which with
 * `wants_new` changes nothing. NO_MEMORY. */
static omq_status note(omq_id_window *window, int64_t offset, const omq_text *text,
                       omq_window_body body, bool wants_new, bool *is_copy) {
    uint32_t hash = hash_of(window, text->bytes, text->size, body);
    if (window->count > 0) {
        uint32_t *place = find(window, text, body, hash);
        if (*place != 0) {
            omq_window_id *same = window->ring + (*place - 1);
            *is_copy = offset - same->offset <= (int64_t)window->size;
            if (*is_copy && wants_new) {
                return OMQ_OK;
            }
            unchain(window, place);
        }
    }
    /* After the search: the next message may still be a copy of one `size` offsets before it. */
    while (window->count > 0 &&
           offset - window->ring[window->first].offset >= (int64_t)window->size) {
        drop_oldest(window);
    }
    if (window->count == window->capacity && grow(window) != OMQ_OK) {
        return OMQ_NO_MEMORY;
    }
    uint32_t index = index_at_age(window, window->count);
    omq_window_id *id = window->ring + index;
    *id = (omq_window_id){.offset = offset, .body = body, .size = (uint16_t)text->size};
    uint8_t *bytes = id->id.here;
    if (text->size > INLINE_ID) {
        bytes = id->id.elsewhere = malloc(text->size);
        if (bytes == NULL) {
            return OMQ_NO_MEMORY;
        }
    }
    memcpy(bytes, text->bytes, text->size);
    window->links[index].hash = hash;
    enchain(window, index);
    window->count++;
    return OMQ_OK;
}

/* Read what is compared of a message; false: it has no id. */
static bool read_row(const uint8_t *body, const omq_message_rows *rows, size_t row, omq_text *id,
                     omq_window_body *stored) {
    static const omq_text name = {(const uint8_t *)"UNIQ_KEY", 8};
    omq_message_parts parts;
    omq_message_locate(body, rows, row, &parts);
    if (!omq_property_find(body + parts.property_at, parts.property_size, &name, id)) {
        return false;
    }
    *stored = (omq_window_body){parts.body_size,
                                omq_crc32(body + parts.body_at, parts.body_size)};
    return true;
}

static omq_status note_row(omq_id_window *window, const uint8_t *body,
                           const omq_message_rows *rows, size_t row, int64_t offset,
                           bool *is_copy) {
    omq_text id;
    omq_window_body stored;
    if (offset <= window->newest) {
        return OMQ_OK;
    }
    window->newest = offset;
    return read_row(body, rows, row, &id, &stored)
               ? note(window, offset, &id, stored, false, is_copy)
               : OMQ_OK;
}

omq_status omq_id_window_note_new(omq_id_window *window, const uint8_t *body,
                                  const omq_message_rows *rows, bool *has_copy) {
    *has_copy = false;
    for (size_t row = 0; row < rows->count; row++) {
        int64_t offset = omq_message_offset(body, rows, row);
        omq_text id;
        omq_window_body stored;
        if (offset <= window->newest) {
            continue;
        }
        if (read_row(body, rows, row, &id, &stored)) {
            if (note(window, offset, &id, stored, true, has_copy) != OMQ_OK) {
                omq_id_window_clear(window);
                return OMQ_NO_MEMORY;
            }
            if (*has_copy) {
                return OMQ_OK;
            }
        }
        window->newest = offset;
    }
    return OMQ_OK;
}

static void move_row(omq_message_rows *rows, size_t to, size_t from) {
    rows->positions[to] = rows->positions[from];
    rows->body_sizes[to] = rows->body_sizes[from];
    if (rows->outers != NULL) {
        rows->outers[to] = rows->outers[from];
        rows->numbers[to] = rows->numbers[from];
    }
}

omq_status omq_id_window_drop_copies(omq_id_window *window, const uint8_t *body, int64_t end,
                                     omq_message_rows *rows, size_t *dropped) {
    omq_status status = OMQ_OK;
    size_t kept = 0;
    int64_t first_offset = 0;
    bool is_run = true;
    for (size_t row = 0; row < rows->count; row++) {
        int64_t offset = omq_message_offset(body, rows, row);
        bool is_copy = false;
        if (status == OMQ_OK && offset < end) {
            status = note_row(window, body, rows, row, offset, &is_copy);
        }
        if (is_copy) {
            rows->size_bytes -= rows->body_sizes[row];
            continue;
        }
        first_offset = kept == 0 ? offset : first_offset;
        is_run &= offset - first_offset == (int64_t)kept;
        /* Rows behind are still read through their own place: only lower ones are overwritten. */
        move_row(rows, kept++, row);
    }
    *dropped = rows->count - kept;
    rows->count = kept;
    rows->first_offset = first_offset;
    rows->is_run = is_run;
    if (status != OMQ_OK) {
        omq_id_window_clear(window);
    }
    return status;
}

/* ---- check ---- */

const char *omq_id_window_check(const omq_id_window *window) {
    uint32_t chained = 0;
    uint32_t found = 0;
    REQUIRE(window->count <= window->capacity, "more ids than room");
    REQUIRE(window->capacity <= window->size, "room for more ids than the window has offsets");
    for (uint32_t i = 0; i < window->count; i++) {
        const omq_window_id *id = at_age(window, i);
        chained += id->is_chained;
        REQUIRE(id->offset <= window->newest, "an id past the newest offset");
        REQUIRE(i == 0 || at_age(window, i - 1)->offset < id->offset, "ids out of order");
        REQUIRE(window->links[index_at_age(window, i)].hash ==
                    hash_of(window, bytes_of(id), id->size, id->body),
                "an id with another hash");
    }
    for (uint32_t chain = 0; chain < window->chain_count; chain++) {
        for (uint32_t at = window->chains[chain]; at != 0; at = window->links[at - 1].next) {
            REQUIRE(++found <= chained, "a chain with a foreign id, or a circle");
            REQUIRE(window->ring[at - 1].is_chained, "a chain with an id that is in none");
            REQUIRE(chain_of(window, window->links[at - 1].hash) == window->chains + chain,
                    "an id in another's chain");
        }
    }
    REQUIRE(found == chained, "a chained id in no chain");
    return NULL;
}
