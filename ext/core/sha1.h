/* HMAC-SHA1 (RFC 2104, FIPS 180-4), which RocketMQ's accounts sign requests with. Pure functions on
 * the caller's memory, any thread. */
#ifndef OMQ_SHA1_H
#define OMQ_SHA1_H

#include <stddef.h>
#include <stdint.h>

enum { OMQ_SHA1_SIZE = 20, OMQ_SHA1_BLOCK = 64 }; /* bytes */

typedef struct {
    uint32_t state[5];
    uint64_t size; /* bytes so far */
    uint8_t block[OMQ_SHA1_BLOCK];
} omq_sha1;

/* A signature in the making: a copy of one continues from the same bytes, so that what many texts
 * begin with is hashed once. */
typedef struct {
    omq_sha1 inner;
    omq_sha1 outer;
} omq_hmac;

/* Begin a signature with a key of any size. */
void omq_hmac_begin(omq_hmac *hmac, const uint8_t *key, size_t size);

/* Add bytes to the signed text. O(size). */
void omq_hmac_add(omq_hmac *hmac, const uint8_t *bytes, size_t size);

/* Write the signature; nothing can be added after this. */
void omq_hmac_end(omq_hmac *hmac, uint8_t digest[OMQ_SHA1_SIZE]);

#endif
