/* Bytes received from one connection, the frames they make, and the threads that wait for them.
 *
 * Of a sealed stream records of TLS are received. Whoever has the turn to read has them deciphered,
 * which takes the interpreter, and adds what was in them.
 *
 * Each waiting thread has an event, a descriptor that it sleeps on. One of the threads has the
 * turn to read: it sleeps on the socket as well, takes what comes and wakes whoever an answer is
 * for. The owner, a loop with a thread of its own, reads while nobody waits, and handles all that
 * is not just a success for a thread that waits. It watches the gate, an epoll that has the
 * socket: opening and closing it takes a system call, but wakes nobody.
 *
 * Threads: any thread may call omq_frame_stream_wait, _add, _buffered and _has_records; those of
 * records belong to whoever has the turn, the other functions to the owner. */
#ifndef OMQ_FRAME_STREAM_H
#define OMQ_FRAME_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"
#include "ordermq.h"

typedef struct omq_frame_stream omq_frame_stream;

/* is_sealed: what is received is TLS. NULL without memory. */
omq_frame_stream *omq_frame_stream_new(size_t max_frame_bytes, bool is_sealed);
void omq_frame_stream_free(omq_frame_stream *stream);

/* ---- frames, for the owner ---- */

/* Add bytes that somebody else has received, of a sealed stream before `attach`; false without
 * memory. */
bool omq_frame_stream_add(omq_frame_stream *stream, const uint8_t *bytes, size_t size);

/* Wake the threads whose answers come next, and return the frame that follows, again until `drop`.
 * False: there is none, or the bytes are no frame (`is_broken`). */
bool omq_frame_stream_next(omq_frame_stream *stream, omq_frame *frame);
void omq_frame_stream_drop(omq_frame_stream *stream);
bool omq_frame_stream_is_broken(omq_frame_stream *stream);

/* Return what is buffered, valid until the stream is used again. */
const uint8_t *omq_frame_stream_rest(omq_frame_stream *stream, size_t *size);

/* Any thread: the bytes of no dropped frame, and of no deciphered record; all bytes of frames that
 * threads received, and frames that were handed to them. */
size_t omq_frame_stream_buffered(omq_frame_stream *stream);
void omq_frame_stream_counts(omq_frame_stream *stream, uint64_t *bytes, uint64_t *frames);

/* ---- the socket ---- */

/* Begin to read: open the gate. Before, and until the owner has seen the connection's first bytes
 * (`trust`), threads that wait do not read. Returns 0 or an errno. */
int omq_frame_stream_attach(omq_frame_stream *stream, int socket, int gate);
void omq_frame_stream_trust(omq_frame_stream *stream);

/* Take the turn, if no thread has it. */
bool omq_frame_stream_begin(omq_frame_stream *stream);

/* Receive what is there; with the turn. Returns its size, 0 at the end, -1 for nothing or before
 * `attach`, and else an errno as a negative number. */
ssize_t omq_frame_stream_receive(omq_frame_stream *stream);

/* Give the turn back. are_waiters_alone: all that came was for threads that wait, so one of them
 * may read from now on. */
void omq_frame_stream_end(omq_frame_stream *stream, bool are_waiters_alone);

/* Read no more, and close the gate; returns whether a thread is still reading: its wait ends, and
 * until then socket and gate must stay open. */
bool omq_frame_stream_stop(omq_frame_stream *stream);

/* ---- records of TLS, with the turn ---- */

/* Any thread: whether a whole record waits to be deciphered. */
bool omq_frame_stream_has_records(omq_frame_stream *stream);

/* Take the whole records that came, and their number: they are valid until the turn ends, or
 * `receive`, and must be deciphered by then. NULL: there are none. */
const uint8_t *omq_frame_stream_take_records(omq_frame_stream *stream, size_t *size, size_t *count);

/* Return room for deciphered bytes, valid until the turn ends, and say how many were put there. NULL
 * without memory. */
uint8_t *omq_frame_stream_room(omq_frame_stream *stream, size_t size);
void omq_frame_stream_opened(omq_frame_stream *stream, size_t size);

/* ---- threads that wait ---- */

/* The answer to one request, for the thread that wrote it; of a caller who sets what is fixed. */
typedef struct omq_awaited {
    uint32_t opaque; /* fixed: of the request */
    int event;       /* fixed: an eventfd or a pipe, which anybody may set to end the wait */
    uint8_t *frame;  /* once it is here: all behind its length; the caller's to free */
    size_t size;
    /* In the answer to a send, what its receipt is made of; bytes NULL if the frame lacks some of
     * that, or has a handle to recall the message by. The text lies in the frame. */
    omq_text message_ids;
    int64_t queue_id;
    int64_t queue_offset;
    struct omq_awaited *next;     /* with the same low bits */
    struct omq_awaited *sleeping; /* the one that fell asleep before */
    bool is_heir;                 /* woken to take the turn */
    struct omq_awaited *behind;   /* in the line of those that are answered */
    bool is_ahead; /* answered and woken: the thread must call omq_frame_stream_pass */
} omq_awaited;

typedef enum {
    OMQ_ANSWERED = 0,
    OMQ_WOKEN = 1,     /* by its event, a signal or the time */
    OMQ_FOR_OWNER = 2, /* it gave the turn back: the owner must look at what came */
    OMQ_STOPPED = 3,   /* the same, and socket and gate may be closed now */
    OMQ_SEALED = 4     /* it has the turn, and records to decipher, or to leave by `leave` */
} omq_waited;

/* Wait for an answer, and read meanwhile for all, if nobody else does. An answer that is no
 * success (code 0, a header in JSON) is the owner's, as is one that comes before or after. After
 * OMQ_SEALED call one of the two below. */
omq_waited omq_frame_stream_wait(omq_frame_stream *stream, omq_awaited *awaited, int timeout_ms);

/* Hand over what was deciphered. is_over: the owner must look in any case. Returns as `wait`, but for
 * OMQ_SEALED: the answer is not there yet, and the thread, which has the turn, must wait again. */
omq_waited omq_frame_stream_hand_over(omq_frame_stream *stream, omq_awaited *awaited, bool is_over);

/* End the wait and give the turn back; the owner must look at the records that are left. */
void omq_frame_stream_leave(omq_frame_stream *stream, omq_awaited *awaited);

/* Wake the next thread that is answered. Called by the one before it, `is_ahead`, when it has the
 * interpreter lock: of many threads that are answered together all but one would wake only to fall
 * asleep again, waiting for that lock. */
void omq_frame_stream_pass(omq_frame_stream *stream, omq_awaited *awaited);

#endif
