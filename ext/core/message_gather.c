#include <string.h>

#include "message_properties.h"
#include "ordermq.h"

size_t omq_message_count_properties(const uint8_t *body, const omq_message_rows *rows) {
    size_t count = 0;
    for (size_t row = 0; row < rows->count; row++) {
        omq_message_parts parts;
        omq_property property;
        size_t at = 0;
        omq_message_locate(body, rows, row, &parts);
        while (omq_property_next(body + parts.property_at, parts.property_size, &at, &property)) {
            count++;
        }
    }
    return count;
}

size_t omq_message_list_properties(const uint8_t *body, const omq_message_rows *rows,
                                   int32_t *starts, uint32_t *name_positions,
                                   uint32_t *name_sizes, uint32_t *value_sizes) {
    size_t count = 0;
    for (size_t row = 0; row < rows->count; row++) {
        omq_message_parts parts;
        omq_property property;
        omq_text later;
        size_t at = 0;
        omq_message_locate(body, rows, row, &parts);
        const uint8_t *text = body + parts.property_at;
        starts[row] = (int32_t)count; /* a property has 3 bytes and more: 4 GiB hold fewer */
        while (omq_property_next(text, parts.property_size, &at, &property)) {
            /* Of a name that comes twice the last counts. */
            if (at < parts.property_size && omq_property_find(text + at, parts.property_size - at,
                                                              &property.name, &later)) {
                continue;
            }
            name_positions[count] = (uint32_t)(property.name.bytes - body);
            name_sizes[count] = (uint32_t)property.name.size;
            value_sizes[count] = (uint32_t)property.value.size;
            count++;
        }
    }
    starts[rows->count] = (int32_t)count;
    return count;
}

omq_status omq_gather_measure(size_t body_size, const uint32_t *positions, const uint32_t *sizes,
                              size_t count, int32_t *starts) {
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        starts[i] = (int32_t)total;
        total += sizes[i];
        if ((uint64_t)positions[i] + sizes[i] > body_size || total > INT32_MAX) {
            return OMQ_OUT_OF_RANGE;
        }
    }
    starts[count] = (int32_t)total;
    return OMQ_OK;
}

size_t omq_gather_copy(const uint8_t *body, const uint32_t *positions, const int32_t *starts,
                       size_t count, bool is_text, uint8_t *bytes) {
    size_t first_wrong = count;
    for (size_t i = 0; i < count; i++) {
        size_t size = (size_t)(starts[i + 1] - starts[i]);
        memcpy(bytes + starts[i], body + positions[i], size);
        if (is_text && first_wrong == count && !omq_is_utf8(body + positions[i], size)) {
            first_wrong = i;
        }
    }
    return first_wrong;
}
