/* The pull engine: one thread that pulls messages into process queues of members and answer queues of
 * readers, without an interpreter.
 *
 * A connection is a socket to a broker that the engine alone reads and writes. A stream is the
 * pulls of one queue through a connection: as long as each answer is messages and the queue has
 * room for more, the engine buffers them and asks for the next ones. Any other answer ends the
 * stream, and is handed over as it came.
 *
 * Threads: one owner calls all functions, except that omq_pull_stream_* may be called by any
 * thread. The engine's thread calls nobody, except for TLS (omq_tls); it writes a byte to the
 * owner's socket when there are events. Memory: streams and connections belong to the owner, who
 * frees a stream after its last event and a connection after its end and the last events of its
 * streams. */
#ifndef OMQ_PULL_ENGINE_H
#define OMQ_PULL_ENGINE_H

#include "answer_queue.h"
#include "durations.h"
#include "queue_filling.h"

typedef struct omq_pull_engine omq_pull_engine;
typedef struct omq_pull_connection omq_pull_connection;
typedef struct omq_pull_stream omq_pull_stream;

/* ---- the engine ---- */

/* Start the thread. wake_read and wake_write: the two ends of a socket pair of the
 * engine's own, tell_write: where it tells the owner of events; all non-blocking, owned by the
 * caller, open until omq_pull_engine_close. clock_id: of clock_gettime, for times in ms.
 * NULL: no memory, or no thread. */
omq_pull_engine *omq_pull_engine_new(int wake_read, int wake_write, int tell_write, int clock_id,
                                     size_t max_frame_bytes);

/* End every stream and connection, and the thread. Their last events can still be taken. */
void omq_pull_engine_close(omq_pull_engine *engine);

/* Free a closed engine. */
void omq_pull_engine_free(omq_pull_engine *engine);

/* Keep the engine's thread from holding any lock, of queues too, until `resume`: for a fork. */
void omq_pull_engine_rest(omq_pull_engine *engine);
void omq_pull_engine_resume(omq_pull_engine *engine);

/* ---- connections ---- */

/* TLS of a connection. The engine reads and writes the socket, and leaves the cipher to a library of
 * the owner's: it passes whole TLS records, because a library says with an error that a record is
 * incomplete, which costs more than to decipher one. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
    size_t count;
} omq_tls_records;

typedef enum {
    OMQ_TLS_OPEN = 0,
    OMQ_TLS_CLOSED = 1, /* by the peer, properly */
    OMQ_TLS_FAILED = 2, /* the owner knows why */
    OMQ_TLS_NO_MEMORY = 3,
    OMQ_TLS_ENDED = 4 /* omq_pull_connection_take has said so */
} omq_tls_state;

typedef struct {
    /* Decipher what was received, have its frames taken, and encipher those to be sent: one step for
     * all of it, for the library may have to wait for a lock each time. received: NULL: nothing. On
     * the engine's thread, which holds no lock but that of omq_pull_engine_rest. */
    omq_tls_state (*step)(void *owner, omq_pull_connection *connection,
                          const omq_tls_records *received);
    void (*leave)(void); /* called once, before the engine's thread ends; NULL: not */
} omq_tls;

/* Return room for deciphered bytes, and add what was put there. NULL without memory. */
uint8_t *omq_pull_connection_room(omq_pull_connection *connection, size_t size);
void omq_pull_connection_add(omq_pull_connection *connection, size_t size);

/* Take the frames that were deciphered, and write what follows from them. False: the connection has
 * ended, and nobody may touch it. The queues' mutexes are taken meanwhile. */
bool omq_pull_connection_take(omq_pull_connection *connection);

/* Take the frames to be sent: they are valid until omq_pull_connection_take. */
const uint8_t *omq_pull_connection_frames(omq_pull_connection *connection, size_t *size);

/* Send enciphered bytes, which are copied. False without memory. */
bool omq_pull_connection_send(omq_pull_connection *connection, const uint8_t *bytes, size_t size);

/* Add a connected, non-blocking socket, which stays the caller's. tls: after its handshake; NULL
 * speaks plainly. NULL without memory. */
omq_pull_connection *omq_pull_connection_new(omq_pull_engine *engine, int socket,
                                             const omq_tls *tls, void *owner);

/* End a connection and its streams. */
void omq_pull_connection_close(omq_pull_connection *connection);
void omq_pull_connection_free(omq_pull_connection *connection);

typedef enum {
    OMQ_CONNECTION_CLOSED = 0,  /* by its owner, or by the peer if `error` is -1 */
    OMQ_CONNECTION_BROKEN = 1,  /* `error` is an errno */
    OMQ_CONNECTION_GARBAGE = 2, /* no frame, or no header: `bytes` are the first of it */
    OMQ_CONNECTION_SILENT = 3,  /* not a byte came since a pull that timed out */
    OMQ_CONNECTION_STUCK = 4,   /* a frame never became whole */
    OMQ_CONNECTION_TLS = 5      /* its owner knows why */
} omq_connection_end;

/* ---- streams ---- */

/* A stream, copied by omq_pull_stream_new. */
typedef struct {
    omq_process_queue *queue;              /* outlives the stream */
    omq_answer_queue *answers;             /* filled instead of `queue`, which is NULL then */
    const omq_request_template *request;   /* of its pulls; outlives it, too */
    omq_text suggestion; /* the broker id that answers name while this replica is right */
    const omq_text *tags;
    size_t tag_count;
    bool check_crc;
    bool is_filtered; /* the broker passes messages over */
    int32_t queue_id;
    int64_t offset; /* of the first pull */
    int64_t timeout_ms;
    int64_t most_past_end; /* offsets that the next pull may lie behind the end of the queue */
    bool is_single;        /* end after one answer: its owner waits between two pulls */
    omq_fill_limits limits;
} omq_stream_plan;

/* Make a stream; NULL without memory. Its owner lets it have the queue's permit, then starts it,
 * once. */
omq_pull_stream *omq_pull_stream_new(omq_pull_connection *connection, const omq_stream_plan *plan,
                                     void *owner);
void omq_pull_stream_permit(omq_pull_stream *stream);
void omq_pull_stream_start(omq_pull_stream *stream);

/* Take the permit back: from here on nothing is buffered. */
void omq_pull_stream_forbid(omq_pull_stream *stream);

/* End a stream soon; the event of its end follows, unless it has come. */
void omq_pull_stream_stop(omq_pull_stream *stream);
void omq_pull_stream_free(omq_pull_stream *stream);

/* Use other limits from now on. */
void omq_pull_stream_limit(omq_pull_stream *stream, const omq_fill_limits *limits);

typedef struct {
    uint64_t pulls;    /* with messages */
    uint64_t messages;
    uint64_t pull_ms;  /* from asking to answering, all pulls */
    uint64_t buckets[OMQ_DURATION_BUCKETS]; /* pulls by that time */
} omq_pull_counts;

/* Return what was counted since the last call. */
omq_pull_counts omq_pull_stream_take_counts(omq_pull_stream *stream);

/* Return whether a pull waits for its answer. */
bool omq_pull_stream_is_asking(const omq_pull_stream *stream);

/* Return the time of the last pull; 0 before the first. */
int64_t omq_pull_stream_asked_ms(const omq_pull_stream *stream);

/* ---- events, for the owner ---- */

typedef enum {
    OMQ_STREAM_GOES_ON = 0,
    OMQ_STREAM_ENDED = 1,     /* no room, no permit, or stopped */
    OMQ_STREAM_ANSWERED = 2,  /* by something else than messages: `bytes` is the frame */
    OMQ_STREAM_TIMED_OUT = 3,
    OMQ_STREAM_LOST = 4       /* with its connection */
} omq_stream_end;

typedef struct {
    omq_pull_connection *connection; /* NULL: the event of a stream */
    omq_connection_end connection_end;
    int error;
    void *owner;       /* of the connection or the stream */
    omq_stream_end end;
    bool is_dispatched; /* the queue's dispatch flag was set: a consume request must follow */
    int64_t offset;    /* of the last pull, if the stream ended */
    uint8_t *bytes;    /* the caller's to free; NULL: none */
    size_t size;
} omq_pull_event;

/* Take the next event; false: there is none. */
bool omq_pull_engine_next(omq_pull_engine *engine, omq_pull_event *event);

/* ---- ready streams: nothing is new of them but that their queues need a consume request ---- */

/* A thread that consumes takes these itself, where it can: to wake the owner, which then wakes that
 * thread, costs more than to serve a queue. The owner gets them as events where no thread waits for
 * them, or is expected: who has taken one is, until it finds none. One that does not come within
 * READY_MS is waited for no longer. */

/* Any thread: take the next one and return its owner; NULL: there is none. */
void *omq_pull_engine_take_ready(omq_pull_engine *engine);

/* Sleep until there may be one to take, or `interrupt`; one thread at a time. False: the engine is
 * closed. */
bool omq_pull_engine_wait_ready(omq_pull_engine *engine);

/* Any thread: end that sleep, or the next one if none is. */
void omq_pull_engine_interrupt(omq_pull_engine *engine);

#endif
