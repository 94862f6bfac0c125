/* Property text of messages: find, list, UTF-8, Java's hash. */
#include "message_properties.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

bool omq_property_next(const uint8_t *text, size_t size, size_t *at, omq_property *property) {
    while (*at < size) {
        const uint8_t *start = text + *at;
        const uint8_t *separator = memchr(start, 2, size - *at);
        size_t entry = separator == NULL ? size - *at : (size_t)(separator - start);
        *at += entry + 1;
        const uint8_t *middle = entry < 3 ? NULL : memchr(start, 1, entry);
        if (middle != NULL && middle > start && middle + 1 < start + entry) {
            property->name = (omq_text){start, (size_t)(middle - start)};
            property->value = (omq_text){middle + 1, entry - property->name.size - 1};
            return true;
        }
    }
    return false;
}

/* Return whether an entry with this name, and a value, starts at `at`. */
static bool is_entry(const uint8_t *text, size_t size, size_t at, const omq_text *name) {
    size_t value = at + name->size + 1;
    return value < size && text[value] != 2 && text[value - 1] == 1 &&
           (at == 0 || text[at - 1] == 2) && memcmp(text + at, name->bytes, name->size) == 0;
}

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define HIGH_BITS UINT64_C(0x8080808080808080)

/* Return where in the next STEP bytes `first` stands before `second`: a group of GROUP bits per
 * place, lowest first. False places may be among them; is_entry sorts them out. Reads STEP + 1
 * bytes. */
#if defined(__SSE2__)
enum { STEP = 16, GROUP = 1 };
static uint64_t places_of(const uint8_t *text, uint8_t first, uint8_t second) {
    __m128i here = _mm_loadu_si128((const __m128i *)(const void *)text);
    __m128i next = _mm_loadu_si128((const __m128i *)(const void *)(text + 1));
    __m128i both = _mm_and_si128(_mm_cmpeq_epi8(here, _mm_set1_epi8((char)first)),
                                 _mm_cmpeq_epi8(next, _mm_set1_epi8((char)second)));
    return (uint64_t)_mm_movemask_epi8(both);
}
#else
enum { STEP = 8, GROUP = 8 };
static uint64_t places_of(const uint8_t *text, uint8_t first, uint8_t second) {
    uint64_t here;
    uint64_t next;
    memcpy(&here, text, sizeof here);
    memcpy(&next, text + 1, sizeof next);
    uint64_t different = (here ^ first * EACH_BYTE) | (next ^ second * EACH_BYTE);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    different = __builtin_bswap64(different);
#endif
    return (different - EACH_BYTE) & ~different & HIGH_BITS; /* where a byte is 0 */
}
#endif

/* Return the last entry of the name among the STEP places from `at` on; `found` if there is
 * none. */
static size_t find_in_step(const uint8_t *text, size_t size, size_t at, const omq_text *name,
                           size_t found) {
    uint8_t second = name->size > 1 ? name->bytes[1] : 1;
    uint64_t places = places_of(text + at, name->bytes[0], second);
    for (; places != 0; places &= places - 1) {
        size_t place = at + (size_t)__builtin_ctzll(places) / GROUP;
        found = is_entry(text, size, place, name) ? place : found;
    }
    return found;
}

/* Find the last entry of a name. Walking from entry to entry costs two memchr per entry; looking
 * for the first two bytes of the name, many places at once, costs one step per 16 bytes. The scan
 * never ends early, for the last entry of a name counts. */
static bool find(const uint8_t *text, size_t size, const omq_text *name, omq_text *value) {
    size_t found = SIZE_MAX;
    size_t at = 0;
    for (; size - at > STEP; at += STEP) {
        found = find_in_step(text, size, at, name, found);
    }
    if (size > STEP) { /* the rest overlaps the step before it, which does no harm */
        found = find_in_step(text, size, size - STEP - 1, name, found);
        at = size;
    }
    for (; at + name->size + 1 < size; at++) {
        found = is_entry(text, size, at, name) ? at : found;
    }
    if (found == SIZE_MAX) {
        return false;
    }
    value->bytes = text + found + name->size + 1;
    size_t left = size - (size_t)(value->bytes - text);
    const uint8_t *end = memchr(value->bytes, 2, left);
    value->size = end == NULL ? left : (size_t)(end - value->bytes);
    return true;
}

bool omq_property_find(const uint8_t *text, size_t size, const omq_text *name, omq_text *value) {
    /* No entry has an empty name, or one with a separator inside. */
    return name->size > 0 && memchr(name->bytes, 1, name->size) == NULL &&
           memchr(name->bytes, 2, name->size) == NULL && find(text, size, name, value);
}

bool omq_find_tag(const uint8_t *text, size_t size, omq_text *tag) {
    static const omq_text name = {(const uint8_t *)"TAGS", 4};
    return find(text, size, &name, tag);
}

/* Return how many bytes after `lead` belong to its character (0: not a lead byte), and write the
 * bounds of the first of them, which exclude overlong forms, surrogates and code points past
 * U+10FFFF. */
static size_t continuation(uint8_t lead, uint8_t *low, uint8_t *high) {
    *low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 1;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        return 2;
    }
    return lead >= 0xF0 && lead <= 0xF4 ? 3 : 0;
}

/* Return whether text is ASCII, as most is: whole words, the last one overlapping the one
 * before. */
static bool is_ascii(const uint8_t *text, size_t size) {
    uint64_t seen = 0;
    uint64_t word;
    size_t at = 0;
    for (; size - at >= sizeof word; at += sizeof word) {
        memcpy(&word, text + at, sizeof word);
        seen |= word;
    }
    if (size >= sizeof word) {
        memcpy(&word, text + size - sizeof word, sizeof word);
        seen |= word;
    } else {
        for (; at < size; at++) {
            seen |= text[at];
        }
    }
    return (seen & HIGH_BITS) == 0;
}

bool omq_is_utf8(const uint8_t *text, size_t size) {
    if (is_ascii(text, size)) {
        return true;
    }
    for (size_t at = 0; at < size;) {
        uint8_t lead = text[at++];
        uint8_t low;
        uint8_t high;
        size_t more = continuation(lead, &low, &high);
        if (lead >= 0x80 && (more == 0 || more > size - at)) {
            return false;
        }
        for (; more > 0; more--, at++, low = 0x80, high = 0xBF) {
            if (text[at] < low || text[at] > high) {
                return false;
            }
        }
    }
    return true;
}

/* Java's String.hashCode (docs/internals/protocol.md#tags) runs over UTF-16 units, so a character
 * past U+FFFF counts as its two surrogates. */
static int32_t wide_hash(const omq_text *text) {
    uint32_t hash = 0;
    if (!omq_is_utf8(text->bytes, text->size)) {
        return 0;
    }
    for (size_t at = 0; at < text->size;) {
        uint32_t lead = text->bytes[at++];
        size_t more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        uint32_t point = more == 0 ? lead : lead & (0x3FU >> more);
        for (; more > 0; more--) {
            point = point << 6 | (text->bytes[at++] & 0x3FU);
        }
        if (point >= 0x10000) { /* a pair of surrogates */
            hash = 31 * hash + (0xD7C0 + (point >> 10));
            point = 0xDC00 + (point & 0x3FF);
        }
        hash = 31 * hash + point;
    }
    return (int32_t)hash;
}

int32_t omq_java_hash(const omq_text *text) {
    uint32_t hash = 0;
    uint8_t seen = 0;
    for (size_t at = 0; at < text->size; at++) {
        seen |= text->bytes[at];
        hash = 31 * hash + text->bytes[at];
    }
    return seen < 0x80 ? (int32_t)hash : wide_hash(text); /* ASCII: bytes are UTF-16 units */
}
