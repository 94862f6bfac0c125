/* The request template of ordermq.h: a request that is encoded, named and signed once, and then
 * written again and again with another offset and request id. */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "ordermq.h"
#include "sha1.h"

enum {
    FRAME_HEAD = 8,       /* bytes: length, and encoding and size of the header */
    SIGNATURE_SIZE = 28,  /* characters of 20 bytes in base64 */
    GAP_MOST = 4 + OMQ_DECIMAL_MAX > SIGNATURE_SIZE ? 4 + OMQ_DECIMAL_MAX : SIGNATURE_SIZE
};

struct omq_request_template {
    omq_text texts[OMQ_REQUEST_GAPS_MOST + 1]; /* point behind the template */
    uint8_t gaps[OMQ_REQUEST_GAPS_MOST];
    size_t gap_count;
    size_t most; /* bytes of a frame */
    bool is_binary;
    bool is_signed;
    omq_hmac signed_before; /* has the key and what is signed before the offset */
    omq_text signed_after;
};

omq_request_template *omq_request_template_new(const omq_request_plan *plan) {
    size_t size = plan->is_signed ? plan->signed_after.size : 0;
    if (plan->gap_count > OMQ_REQUEST_GAPS_MOST) {
        return NULL;
    }
    for (size_t i = 0; i <= plan->gap_count; i++) {
        size += plan->texts[i].size;
    }
    omq_request_template *made = calloc(1, sizeof *made + size);
    if (made == NULL) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)(made + 1);
    for (size_t i = 0; i <= plan->gap_count; i++) {
        made->texts[i] = omq_keep_text(&at, plan->texts[i]);
    }
    if (plan->gap_count > 0) {
        memcpy(made->gaps, plan->gaps, plan->gap_count);
    }
    made->gap_count = plan->gap_count;
    made->is_binary = plan->is_binary;
    made->is_signed = plan->is_signed;
    made->most = FRAME_HEAD + size + plan->gap_count * GAP_MOST;
    if (plan->is_signed) {
        omq_hmac_begin(&made->signed_before, plan->secret_key.bytes, plan->secret_key.size);
        omq_hmac_add(&made->signed_before, plan->signed_before.bytes, plan->signed_before.size);
        made->signed_after = omq_keep_text(&at, plan->signed_after);
    }
    return made;
}

void omq_request_template_free(omq_request_template *made) { free(made); }

size_t omq_request_template_most(const omq_request_template *made) { return made->most; }

static void write_base64(uint8_t *text, const uint8_t digest[OMQ_SHA1_SIZE]) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < OMQ_SHA1_SIZE; i += 3) {
        /* 20 bytes: the last group has two, and a sign in place of the third. */
        bool is_whole = i + 2 < OMQ_SHA1_SIZE;
        uint32_t group = (uint32_t)digest[i] << 16 | (uint32_t)digest[i + 1] << 8 |
                         (is_whole ? digest[i + 2] : 0);
        *text++ = (uint8_t)letters[group >> 18];
        *text++ = (uint8_t)letters[group >> 12 & 63];
        *text++ = (uint8_t)letters[group >> 6 & 63];
        *text++ = is_whole ? (uint8_t)letters[group & 63] : '=';
    }
}

static void write_signature(const omq_request_template *made, const uint8_t *offset, size_t size,
                            uint8_t *text) {
    uint8_t digest[OMQ_SHA1_SIZE];
    omq_hmac hmac = made->signed_before;
    omq_hmac_add(&hmac, offset, size);
    omq_hmac_add(&hmac, made->signed_after.bytes, made->signed_after.size);
    omq_hmac_end(&hmac, digest);
    write_base64(text, digest);
}

size_t omq_request_template_write(const omq_request_template *made, int64_t offset,
                                  uint32_t request_id, uint8_t *frame) {
    uint8_t digits[OMQ_DECIMAL_MAX];
    size_t digit_count = omq_write_decimal(digits, offset);
    uint8_t *fields_size = NULL;
    uint8_t *at = omq_put_bytes(frame + FRAME_HEAD, made->texts[0].bytes, made->texts[0].size);
    for (size_t i = 0; i < made->gap_count; i++) {
        switch ((omq_request_gap)made->gaps[i]) {
        case OMQ_GAP_OFFSET:
            if (made->is_binary) {
                omq_write_u32(at, (uint32_t)digit_count);
                at += 4;
            }
            at = omq_put_bytes(at, digits, digit_count);
            break;
        case OMQ_GAP_REQUEST_ID:
            if (made->is_binary) {
                omq_write_u32(at, request_id);
                at += 4;
            } else {
                at += omq_write_decimal(at, request_id);
            }
            break;
        case OMQ_GAP_SIGNATURE:
            write_signature(made, digits, digit_count, at);
            at += SIGNATURE_SIZE;
            break;
        case OMQ_GAP_FIELDS_SIZE:
            fields_size = at; /* known at the end */
            at += 4;
            break;
        }
        at = omq_put_bytes(at, made->texts[i + 1].bytes, made->texts[i + 1].size);
    }
    if (fields_size != NULL) {
        omq_write_u32(fields_size, (uint32_t)(at - fields_size - 4));
    }
    uint32_t header = (uint32_t)(at - frame - FRAME_HEAD);
    omq_write_u32(frame, header + 4);
    omq_write_u32(frame + 4, (uint32_t)made->is_binary << 24 | header);
    return (size_t)(at - frame);
}
