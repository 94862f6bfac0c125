/* Messages of pull answers as columns, laid out as Arrow does, in one block of memory: one pass, no
 * object per message. Pure functions. */
#ifndef OMQ_ANSWER_COLUMNS_H
#define OMQ_ANSWER_COLUMNS_H

#include "answer_queue.h"

/* Buffers, and what selects them. The three of an optional text are validity (a bitmap; empty:
 * there are no nulls), starts (int32, rows + 1) and bytes. */
typedef enum {
    OMQ_BUFFER_OFFSETS = 0,        /* int64 */
    OMQ_BUFFER_SHARDING_KEY = 1,   /* three */
    OMQ_BUFFER_KEYS = 4,           /* three */
    OMQ_BUFFER_TAGS = 7,           /* three */
    OMQ_BUFFER_MESSAGE_ID = 10,    /* starts, bytes */
    OMQ_BUFFER_BODY = 12,          /* starts, bytes, as stored */
    OMQ_BUFFER_SYS_FLAGS = 14,     /* int32, with bodies: which are compressed */
    OMQ_BUFFER_PROPERTIES = 15,    /* starts of rows, starts and bytes of names, and of values */
    OMQ_BUFFER_BORN = 20,          /* int64, microseconds */
    OMQ_BUFFER_STORED = 21,
    OMQ_BUFFER_RECONSUME_TIMES = 22, /* int32 */
    OMQ_BUFFER_END = 23
} omq_column_buffer;

/* One bit per first buffer of a column: 1 << OMQ_BUFFER_... */
typedef uint32_t omq_wanted_columns;

/* Properties that the map goes without. */
typedef struct {
    const omq_text *names; /* ascending by size */
    size_t count;
    omq_text prefix; /* of further names; of size 0: there are none */
} omq_left_out;

typedef struct {
    size_t at; /* from the start of the memory; a multiple of 64 */
    size_t size;
} omq_buffer_span;

typedef struct {
    size_t rows;
    size_t entries; /* of properties, all rows */
    size_t bytes;   /* of memory that was written to */
    bool has_compressed;
    omq_buffer_span spans[OMQ_BUFFER_END];
} omq_answer_columns;

/* Return how many bytes the columns take at most; 0: a buffer may pass INT32_MAX. O(rows). */
size_t omq_answer_columns_most(const omq_answer_rows *parts, size_t count,
                               omq_wanted_columns wanted);

/* Write the columns into memory of that size. False: a text that is wanted is not UTF-8; then
 * *part and *row say of which message. O(bytes). */
bool omq_answer_columns_write(const omq_answer_rows *parts, size_t count,
                              omq_wanted_columns wanted, const omq_left_out *left_out,
                              uint8_t *memory, omq_answer_columns *columns, size_t *part, size_t *row);

#endif
