/* Frames that the threads of one connection write to its socket, whole and in turn.
 *
 * Threads: any thread may call any function. A thread that finds another one writing leaves its
 * bytes to that one, which writes until there are none: many requests then leave in one system
 * call, and nobody waits. */
#ifndef OMQ_OUTBOX_H
#define OMQ_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct omq_outbox omq_outbox;

/* socket: non-blocking or not, open until omq_outbox_close. NULL without memory. */
omq_outbox *omq_outbox_new(int socket);
void omq_outbox_free(omq_outbox *outbox);

/* Add bytes behind those that wait. The caller has seen that nothing waits elsewhere to be written
 * to the socket. False without memory, or if it is closed. */
bool omq_outbox_append(omq_outbox *outbox, const uint8_t *bytes, size_t size);

typedef enum {
    OMQ_FLUSHED = 0, /* or left to the thread that writes */
    OMQ_FULL = 1,    /* the owner must take the rest; said once until it does */
    OMQ_FAILED = 2   /* the connection broke */
} omq_flushed;

/* Write what waits, without blocking. error: an errno, of OMQ_FAILED. */
omq_flushed omq_outbox_flush(omq_outbox *outbox, int *error);

/* Take what waits, for the owner to write it: nothing else is written before the next append. The
 * bytes are the caller's to free; NULL: none, or without memory, and then *size says which. */
uint8_t *omq_outbox_take(omq_outbox *outbox, size_t *size);

/* Drop what waits and write nothing more; returns when no thread uses the socket. */
void omq_outbox_close(omq_outbox *outbox);

#endif
