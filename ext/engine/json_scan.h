/* The parts of JSON that headers are read with: no values are kept, no escapes are undone.
 * Pure functions, any thread. */
#ifndef OMQ_JSON_SCAN_H
#define OMQ_JSON_SCAN_H

#include "ordermq.h"

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} omq_json;

void omq_json_skip_blanks(omq_json *json);

/* Take a byte, and blanks before it. False, at another one: only the blanks are taken. */
bool omq_json_take_byte(omq_json *json, uint8_t byte);

/* Take a string, its escapes left as they are. False: there is none, or it is not ended. */
bool omq_json_take_string(omq_json *json, omq_text *text, bool *is_escaped);

/* Return whether a text is this one. */
bool omq_text_is(const omq_text *text, const char *other);

#endif
