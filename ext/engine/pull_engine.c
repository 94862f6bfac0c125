#define _POSIX_C_SOURCE 200809L

#include "pull_engine.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "buffer.h"
#include "bytes.h"
#include "platform.h"
#include "reply_header.h"
#include "sockets.h"
#include "tls_record.h"

enum {
    FIRST_READ = 256 * 1024,  /* bytes of a connection's first buffer */
    HANDED_BYTES = 64,        /* of garbage, for the error's text */
    FRAME_MS = 30000,         /* as in remoting/connection.py: no frame takes longer */
    ROOM_RECHECK_MS = 1000,   /* as in fetch/fetcher.py: pending messages may all be taken */
    READY_MS = 2,             /* a poller that comes later is slow: the owner is told */
    MOST_STREAMS = 1 << 20    /* of a connection */
};

#define NEVER INT64_MAX

/* What the owner asked for since the engine's thread looked last. */
enum { START = 1, STOP = 2, LIMIT = 4, ROOM = 8, ADD = 16, CLOSE = 32 };

struct omq_pull_stream {
    /* Under the engine's lock. */
    unsigned asked_for;
    omq_fill_limits new_limits;
    omq_pull_stream *next_todo;
    omq_pull_stream *next_event;
    omq_pull_stream *next_ready;
    int64_t ready_ms;
    bool is_told;  /* on the list of events */
    bool is_ready; /* on that of ready ones */
    bool is_dispatched;
    omq_stream_end end;
    uint8_t *frame;
    size_t frame_size;
    int64_t last_offset;

    /* Any thread. */
    _Atomic uint64_t pulls;
    _Atomic uint64_t messages;
    _Atomic uint64_t pull_ms;
    _Atomic uint64_t pull_buckets[OMQ_DURATION_BUCKETS];
    _Atomic int64_t asked_ms;
    _Atomic bool is_asking;

    /* Fixed. */
    omq_pull_connection *connection;
    omq_stream_plan plan; /* its texts point behind the stream */
    uint64_t permit;
    void *owner;

    /* The engine's thread only. */
    omq_fill_limits limits;
    uint32_t index;  /* of the connection's streams */
    uint32_t opaque; /* of the pull in flight; 0: none is */
    omq_pull_stream *next_asked; /* with the same low bits of the request id */
    int64_t offset;
    int64_t deadline_ms; /* of the pull in flight, else NEVER */
    uint64_t heard_bytes;
    bool is_waiting; /* for room */
    bool has_begun; /* an answer was messages */
};

struct omq_pull_connection {
    /* Under the engine's lock. */
    unsigned asked_for;
    omq_pull_connection *next_todo;
    omq_pull_connection *next_event;
    bool is_over;
    omq_connection_end end;
    int error;
    uint8_t *garbage;
    size_t garbage_size;

    /* Fixed. */
    omq_pull_engine *engine;
    void *owner;
    int socket;
    omq_tls tls; /* without TLS its `step` is NULL */

    /* The engine's thread only. */
    omq_pull_connection *next; /* of the engine's */
    omq_pull_stream **streams; /* by index; NULL: free */
    omq_pull_stream **asked;   /* lists of those with a pull in flight, by its id's low bits */
    uint32_t stream_room;      /* of both; a power of two, or 0 */
    uint32_t last_opaque;
    uint32_t stream_count;
    omq_buffer in;         /* of frames; with TLS deciphered */
    omq_buffer out;
    omq_buffer sealed_in;  /* the same two, of the records of TLS */
    omq_buffer sealed_out;
    uint64_t heard_bytes;
    int64_t check_ms; /* a deadline may pass then, and none before */
    int64_t whole_ms; /* when no frame was incomplete, or one became whole */
};

struct omq_pull_engine {
    omq_mutex lock;
    bool is_closing;
    bool is_woken; /* a byte is on its way to the engine's thread */
    omq_pull_stream *todo;
    omq_pull_connection *connections_todo;
    omq_pull_stream *events;
    omq_pull_stream **last_event;
    omq_pull_stream *ready; /* whose queues wait for a consume request, and nothing else is new */
    omq_pull_stream **last_ready;
    bool is_polled;      /* a thread that consumes will ask for them */
    bool is_awaited;     /* one sleeps until there is any */
    bool is_interrupted; /* it shall wake */
    pthread_cond_t has_ready;
    omq_pull_connection *ended;
    bool is_told; /* a byte is on its way to the owner */

    omq_mutex turn; /* held by the engine's thread except while it waits */
    int wake_read;
    int wake_write;
    int tell_write;
    int clock_id;
    size_t max_frame_bytes;
    pthread_t thread;

    /* The engine's thread only. */
    omq_pull_connection *connections;
    size_t connection_count;
    struct pollfd *polled;
    omq_pull_connection **polled_connections;
    size_t polled_room;
    size_t waiting; /* streams that wait for room */
    int64_t recheck_ms;
    int64_t unclaimed_ms; /* when a ready one may have waited too long, less READY_MS; or NEVER */
    int64_t now_ms;
    bool has_news;  /* for the owner, since the last byte to it */
    bool has_waked; /* a thread that waits for ready queues; not signalled yet */
    void (*leave)(void); /* of TLS */
};

/* ---- small things ---- */

static int64_t clock_ms(const omq_pull_engine *engine) {
    struct timespec now;
    (void)clock_gettime((clockid_t)engine->clock_id, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A full socket holds a byte already, which is all that the reader needs. */
static void signal_to(int descriptor) { (void)omq_socket_send(descriptor, "!", 1); }

static uint8_t *copied(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy != NULL && size > 0) {
        memcpy(copy, bytes, size);
    }
    return copy;
}

/* ---- what the owner asks for; under the lock ---- */

static void wake(omq_pull_engine *engine) {
    if (!engine->is_woken) {
        engine->is_woken = true;
        signal_to(engine->wake_write);
    }
}

static void ask_stream(omq_pull_stream *stream, unsigned what) {
    omq_pull_engine *engine = stream->connection->engine;
    omq_mutex_lock(&engine->lock);
    /* After the end the owner may free the stream, so it must be on no list. */
    if (stream->end == OMQ_STREAM_GOES_ON) {
        if (stream->asked_for == 0) {
            stream->next_todo = engine->todo;
            engine->todo = stream;
        }
        stream->asked_for |= what;
        wake(engine);
    }
    omq_mutex_unlock(&engine->lock);
}

static void ask_connection(omq_pull_connection *connection, unsigned what) {
    omq_pull_engine *engine = connection->engine;
    omq_mutex_lock(&engine->lock);
    if (!connection->is_over) {
        if (connection->asked_for == 0) {
            connection->next_todo = engine->connections_todo;
            engine->connections_todo = connection;
        }
        connection->asked_for |= what;
        wake(engine);
    }
    omq_mutex_unlock(&engine->lock);
}

/* Called by the thread that made room, under the mutex of its queue. */
static void has_room(void *context) { ask_stream(context, ROOM); }

/* ---- events ---- */

static void tell(omq_pull_stream *stream) {
    omq_pull_engine *engine = stream->connection->engine;
    if (!stream->is_told) {
        stream->is_told = true;
        stream->next_event = NULL;
        *engine->last_event = stream;
        engine->last_event = &stream->next_event;
    }
    engine->has_news = true;
}

static void add_ready(omq_pull_stream *stream) {
    omq_pull_engine *engine = stream->connection->engine;
    if (!stream->is_ready) {
        stream->is_ready = true;
        stream->ready_ms = engine->now_ms;
        stream->next_ready = NULL;
        *engine->last_ready = stream;
        engine->last_ready = &stream->next_ready;
    }
    if (!engine->is_polled && !engine->is_awaited) {
        engine->has_news = true;
        return;
    }
    engine->has_waked |= !engine->is_polled;
    if (engine->unclaimed_ms == NEVER) {
        engine->unclaimed_ms = engine->now_ms;
    }
}

static omq_pull_stream *take_ready(omq_pull_engine *engine) {
    omq_pull_stream *stream = engine->ready;
    if (stream != NULL) {
        stream->is_ready = false;
        engine->ready = stream->next_ready;
        if (engine->ready == NULL) {
            engine->last_ready = &engine->ready;
        }
    }
    return stream;
}

static void unlist_ready(omq_pull_engine *engine, omq_pull_stream *stream) {
    omq_pull_stream **at = &engine->ready;
    while (*at != stream) {
        at = &(*at)->next_ready;
    }
    *at = stream->next_ready;
    if (*at == NULL) {
        engine->last_ready = at;
    }
    stream->is_ready = false;
}

/* Tell of messages that were buffered: the first ones, or while the queue had none. */
static void tell_filled(omq_pull_stream *stream, bool is_first, bool is_dispatched) {
    omq_mutex_lock(&stream->connection->engine->lock);
    if (is_first || stream->is_told) {
        stream->is_dispatched |= is_dispatched;
        tell(stream);
    } else {
        add_ready(stream);
    }
    omq_mutex_unlock(&stream->connection->engine->lock);
}

/* Tell another thread of ready queues that none has asked for in time. */
static void tell_unclaimed(omq_pull_engine *engine) {
    if (engine->unclaimed_ms == NEVER || engine->now_ms - engine->unclaimed_ms < READY_MS) {
        return;
    }
    omq_mutex_lock(&engine->lock);
    engine->unclaimed_ms = engine->ready == NULL ? NEVER : engine->ready->ready_ms;
    if (engine->ready != NULL && engine->now_ms - engine->unclaimed_ms >= READY_MS) {
        /* One that was waked already has had its chance. */
        engine->has_waked = engine->is_polled && engine->is_awaited;
        engine->has_news |= !engine->has_waked;
        engine->is_polled = false;
        engine->unclaimed_ms = engine->has_waked ? engine->now_ms : NEVER;
    }
    omq_mutex_unlock(&engine->lock);
}

static void unlist(omq_pull_engine *engine, omq_pull_stream *stream) {
    omq_pull_stream **at = &engine->todo;
    while (*at != NULL && *at != stream) {
        at = &(*at)->next_todo;
    }
    if (*at != NULL) {
        *at = stream->next_todo;
    }
}

static void unlist_connection(omq_pull_engine *engine, omq_pull_connection *connection) {
    omq_pull_connection **at = &engine->connections_todo;
    while (*at != NULL && *at != connection) {
        at = &(*at)->next_todo;
    }
    if (*at != NULL) {
        *at = connection->next_todo;
    }
}

static omq_pull_stream **bucket_of(omq_pull_connection *connection, uint32_t opaque) {
    return connection->asked + (opaque & (connection->stream_room - 1));
}

static void list_asked(omq_pull_stream *stream) {
    omq_pull_stream **bucket = bucket_of(stream->connection, stream->opaque);
    stream->next_asked = *bucket;
    *bucket = stream;
}

/* Return the stream with this pull in flight, which then is none any more; NULL: late. */
static omq_pull_stream *take_asked(omq_pull_connection *connection, uint32_t opaque) {
    if (connection->stream_room == 0) {
        return NULL;
    }
    omq_pull_stream **at = bucket_of(connection, opaque);
    while (*at != NULL && (*at)->opaque != opaque) {
        at = &(*at)->next_asked;
    }
    omq_pull_stream *found = *at;
    if (found != NULL) {
        *at = found->next_asked;
        found->opaque = 0;
        atomic_store_explicit(&found->is_asking, false, memory_order_relaxed);
        found->deadline_ms = NEVER;
    }
    return found;
}

/* End a stream. Nobody may touch it after this: its owner may free it at once. */
static void end_stream(omq_pull_stream *stream, omq_stream_end end, uint8_t *frame,
                       size_t frame_size) {
    omq_pull_connection *connection = stream->connection;
    omq_pull_engine *engine = connection->engine;
    /* First: from here on no other thread asks for anything on behalf of the queue. */
    if (stream->plan.answers != NULL) {
        omq_answer_queue_forget_waiter(stream->plan.answers, stream);
    } else {
        omq_process_queue_forget_waiter(stream->plan.queue, stream);
    }
    engine->waiting -= stream->is_waiting;
    if (stream->opaque != 0) {
        (void)take_asked(connection, stream->opaque);
    }
    if (stream->index < MOST_STREAMS) {
        connection->streams[stream->index] = NULL;
        connection->stream_count--;
    }
    omq_mutex_lock(&engine->lock);
    if (stream->asked_for != 0) {
        unlist(engine, stream);
        stream->asked_for = 0;
    }
    if (stream->is_ready) {
        unlist_ready(engine, stream);
        stream->is_dispatched = true;
    }
    stream->end = end;
    stream->frame = frame;
    stream->frame_size = frame_size;
    stream->last_offset = stream->offset;
    tell(stream);
    omq_mutex_unlock(&engine->lock);
}

/* End a connection and its streams. Nobody may touch it after this, as a stream. */
static void end_connection(omq_pull_connection *connection, omq_connection_end end, int error,
                           const uint8_t *garbage, size_t size) {
    omq_pull_engine *engine = connection->engine;
    for (omq_pull_connection **at = &engine->connections; *at != NULL; at = &(*at)->next) {
        if (*at == connection) {
            *at = connection->next;
            engine->connection_count--;
            break;
        }
    }
    for (uint32_t i = 0; i < connection->stream_room; i++) {
        if (connection->streams[i] != NULL) {
            end_stream(connection->streams[i], OMQ_STREAM_LOST, NULL, 0);
        }
    }
    uint8_t *copy = size > 0 ? copied(garbage, size) : NULL;
    omq_mutex_lock(&engine->lock);
    if (connection->asked_for != 0) {
        unlist_connection(engine, connection);
        connection->asked_for = 0;
    }
    connection->is_over = true;
    connection->end = end;
    connection->error = error;
    connection->garbage = copy;
    connection->garbage_size = copy != NULL ? size : 0;
    connection->next_event = engine->ended;
    engine->ended = connection;
    engine->has_news = true;
    omq_mutex_unlock(&engine->lock);
}

/* ---- requests ---- */

/* The bytes that the socket takes next. */
static omq_buffer *wire_of(omq_pull_connection *connection) {
    return connection->tls.step == NULL ? &connection->out : &connection->sealed_out;
}

static omq_tls_state step_tls(omq_pull_connection *connection, const omq_tls_records *received) {
    /* Not before the first step: the thread has nothing yet that it could give back. */
    connection->engine->leave = connection->tls.leave;
    return connection->tls.step(connection->owner, connection, received);
}

/* End a connection whose TLS cannot continue; false: it can. */
static bool end_tls(omq_pull_connection *connection, omq_tls_state state) {
    switch (state) {
    case OMQ_TLS_OPEN:
        return false;
    case OMQ_TLS_ENDED:
        return true;
    case OMQ_TLS_CLOSED:
        end_connection(connection, OMQ_CONNECTION_CLOSED, -1, NULL, 0);
        return true;
    case OMQ_TLS_NO_MEMORY:
        end_connection(connection, OMQ_CONNECTION_BROKEN, ENOMEM, NULL, 0);
        return true;
    default:
        end_connection(connection, OMQ_CONNECTION_TLS, 0, NULL, 0);
        return true;
    }
}

/* Encipher what no step has enciphered; false: the connection has ended. */
static bool seal(omq_pull_connection *connection) {
    bool is_sealed =
        connection->tls.step == NULL || connection->out.begin == connection->out.end;
    return is_sealed || !end_tls(connection, step_tls(connection, NULL));
}

static bool flush(omq_pull_connection *connection) {
    if (!seal(connection)) {
        return false;
    }
    omq_buffer *out = wire_of(connection);
    while (out->begin < out->end) {
        ssize_t sent =
            omq_socket_send(connection->socket, out->bytes + out->begin, out->end - out->begin);
        if (sent == OMQ_WOULD_BLOCK) {
            return true; /* the rest when the socket takes it */
        }
        if (sent < 0) {
            end_connection(connection, OMQ_CONNECTION_BROKEN, (int)-sent, NULL, 0);
            return false;
        }
        out->begin += (size_t)sent;
    }
    return true;
}

/* Write the next pull of a stream into the connection's buffer. */
static void pull(omq_pull_stream *stream) {
    omq_pull_connection *connection = stream->connection;
    omq_pull_engine *engine = connection->engine;
    const omq_stream_plan *plan = &stream->plan;
    /* A new id for each pull, of all streams: a late answer must never look like that of another
     * pull. 0 is what peers read where there is none. */
    connection->last_opaque = connection->last_opaque == INT32_MAX ? 1 : connection->last_opaque + 1;
    omq_buffer *out = &connection->out;
    if (!omq_buffer_make_room(out, omq_request_template_most(plan->request))) {
        end_stream(stream, OMQ_STREAM_ENDED, NULL, 0); /* its owner tries again */
        return;
    }
    out->end += omq_request_template_write(plan->request, stream->offset, connection->last_opaque,
                                           out->bytes + out->end);
    stream->opaque = connection->last_opaque;
    atomic_store_explicit(&stream->is_asking, true, memory_order_relaxed);
    list_asked(stream);
    stream->heard_bytes = connection->heard_bytes;
    stream->deadline_ms = engine->now_ms + plan->timeout_ms;
    if (stream->deadline_ms < connection->check_ms) {
        connection->check_ms = stream->deadline_ms;
    }
    atomic_store_explicit(&stream->asked_ms, engine->now_ms, memory_order_relaxed);
}

static omq_room_waiter waiter_of(omq_pull_stream *stream) {
    return (omq_room_waiter){has_room, stream};
}

/* Do what the queue said. */
static void go_on(omq_pull_stream *stream, omq_fill_next next) {
    omq_pull_engine *engine = stream->connection->engine;
    engine->waiting -= stream->is_waiting;
    stream->is_waiting = next == OMQ_FILL_WAIT;
    if (next == OMQ_FILL_MORE) {
        pull(stream);
    } else if (next == OMQ_FILL_WAIT) {
        if (engine->waiting++ == 0) {
            engine->recheck_ms = engine->now_ms + ROOM_RECHECK_MS;
        }
    } else {
        end_stream(stream, OMQ_STREAM_ENDED, NULL, 0);
    }
}

static void look_again(omq_pull_stream *stream) {
    const omq_stream_plan *plan = &stream->plan;
    if (plan->answers != NULL) {
        go_on(stream, omq_answer_queue_may_fill(plan->answers, waiter_of(stream)));
    } else {
        go_on(stream, omq_process_queue_may_fill(plan->queue, stream->permit, &stream->limits,
                                                 waiter_of(stream)));
    }
}

/* ---- answers ---- */

static bool is_suggested(const omq_pull_stream *stream, omq_text suggestion) {
    const omq_text *wanted = &stream->plan.suggestion;
    if (suggestion.bytes == NULL) {
        return wanted->size == 1 && wanted->bytes[0] == '0';
    }
    return suggestion.size == wanted->size &&
           memcmp(suggestion.bytes, wanted->bytes, wanted->size) == 0;
}

/* Buffer an answer that is messages and nothing else; false: it is for the owner to judge. */
static bool take_messages(omq_pull_stream *stream, const omq_reply_header *header,
                          const uint8_t *body, size_t size) {
    omq_pull_engine *engine = stream->connection->engine;
    const omq_stream_plan *plan = &stream->plan;
    int64_t next = header->next_offset.bytes == NULL ? -1 : omq_offset_of(header->next_offset);
    int64_t end = header->max_offset.bytes == NULL ? next : omq_offset_of(header->max_offset);
    if (header->code != 0 || header->is_odd || header->has_offset_delta || next < 0 || end < 0 ||
        next > end + plan->most_past_end || !is_suggested(stream, header->suggestion)) {
        return false;
    }
    omq_pulled pulled = {.first = stream->offset, .end = next, .queue_id = plan->queue_id};
    omq_answer *answer;
    if (omq_answer_new(body, size, plan->tags, plan->tag_count, plan->check_crc, &pulled,
                       &answer) != OMQ_OK) {
        return false;
    }
    if (answer->rows.count == 0) {
        omq_answer_release(answer);
        return false;
    }
    size_t count = answer->rows.count;
    int64_t begin = plan->is_filtered ? next : answer->last_offset + 1;
    /* The owner of a queue tells its user what the broker has removed; a reader of a range looks
     * for it itself. */
    if (plan->answers == NULL && !plan->is_filtered &&
        (uint64_t)(begin - stream->offset) != count) {
        omq_answer_release(answer);
        return false;
    }
    bool is_first = !stream->has_begun;
    bool is_dispatched = false;
    omq_fill_next then =
        plan->answers != NULL
            ? omq_answer_queue_fill(plan->answers, answer, stream->offset, begin,
                                    waiter_of(stream))
            : omq_process_queue_fill(plan->queue, stream->permit, answer, begin, end,
                                     &stream->limits, waiter_of(stream), &is_dispatched);
    omq_answer_release(answer);
    if (then == OMQ_FILL_COPIES) {
        return false;
    }
    if (then != OMQ_FILL_REFUSED) {
        int64_t asked_ms = atomic_load_explicit(&stream->asked_ms, memory_order_relaxed);
        stream->offset = begin;
        atomic_fetch_add_explicit(&stream->pulls, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&stream->messages, count, memory_order_relaxed);
        int64_t spent_ms = engine->now_ms - asked_ms;
        unsigned bucket = omq_duration_bucket(spent_ms * 1000000);
        atomic_fetch_add_explicit(&stream->pull_ms, (uint64_t)spent_ms, memory_order_relaxed);
        atomic_fetch_add_explicit(&stream->pull_buckets[bucket], 1, memory_order_relaxed);
        if (is_dispatched || is_first) {
            stream->has_begun = true;
            tell_filled(stream, is_first, is_dispatched);
        }
    }
    if (plan->is_single) {
        end_stream(stream, OMQ_STREAM_ENDED, NULL, 0);
    } else {
        go_on(stream, then);
    }
    return true;
}

/* Take a whole frame; false: it is none. */
static bool take_frame(omq_pull_connection *connection, const omq_frame *frame) {
    omq_reply_header header;
    if (!omq_read_reply_header(frame->encoding, frame->header, frame->header_size, &header)) {
        return false;
    }
    /* Brokers send requests to the connection with the heartbeats: one here is for nobody. */
    omq_pull_stream *stream =
        omq_is_answer(&header) ? take_asked(connection, (uint32_t)header.opaque) : NULL;
    if (stream == NULL) {
        return true;
    }
    if (!take_messages(stream, &header, frame->body, frame->body_size)) {
        uint8_t *copy = copied(frame->header - OMQ_FRAME_HEAD, frame->size);
        end_stream(stream, copy != NULL ? OMQ_STREAM_ANSWERED : OMQ_STREAM_ENDED, copy,
                   frame->size);
    }
    return true;
}

/* Take the frames that are whole; false: the connection has ended, and is its owner's. */
static bool take_frames(omq_pull_connection *connection) {
    omq_buffer *in = &connection->in;
    while (in->end - in->begin >= OMQ_FRAME_HEAD) {
        const uint8_t *bytes = in->bytes + in->begin;
        size_t held = in->end - in->begin;
        omq_frame frame;
        omq_frame_state state =
            omq_frame_read(bytes, held, connection->engine->max_frame_bytes, &frame);
        if (state == OMQ_FRAME_PART) {
            if (!omq_buffer_make_room(in, frame.size - held)) {
                end_connection(connection, OMQ_CONNECTION_BROKEN, ENOMEM, NULL, 0);
                return false;
            }
            return true;
        }
        if (state == OMQ_FRAME_NONE || !take_frame(connection, &frame)) {
            size_t handed = frame.size > 0 ? frame.size : held < HANDED_BYTES ? held : HANDED_BYTES;
            end_connection(connection, OMQ_CONNECTION_GARBAGE, 0, bytes, handed);
            return false;
        }
        connection->whole_ms = connection->engine->now_ms;
        in->begin += frame.size;
    }
    if (in->begin == in->end) {
        connection->whole_ms = connection->engine->now_ms;
        if (in->room > 4 * FIRST_READ) { /* after a large frame */
            free(in->bytes);
            *in = (omq_buffer){NULL, 0, 0, 0};
        }
    }
    return true;
}

/* Return whether a part of a frame, or of a record of TLS, has come. */
static bool has_part(const omq_pull_connection *connection) {
    return connection->in.begin < connection->in.end ||
           connection->sealed_in.begin < connection->sealed_in.end;
}

/* Decipher what was received, take its frames, and encipher the pulls that follow. */
static void open_records(omq_pull_connection *connection) {
    omq_buffer *sealed = &connection->sealed_in;
    omq_tls_records received = {.bytes = sealed->bytes + sealed->begin};
    received.size = omq_whole_records(received.bytes, sealed->end - sealed->begin, &received.count);
    if (received.count == 0) {
        return;
    }
    sealed->begin += received.size; /* first: the step may end the connection */
    omq_tls_state state = step_tls(connection, &received);
    if (state == OMQ_TLS_OPEN || state == OMQ_TLS_ENDED) {
        return;
    }
    if (take_frames(connection)) { /* what came before the end */
        (void)end_tls(connection, state);
    }
}

static void receive(omq_pull_connection *connection) {
    omq_buffer *in = connection->tls.step == NULL ? &connection->in : &connection->sealed_in;
    if (!omq_buffer_make_room(in, in->room == 0 ? FIRST_READ : 1)) {
        end_connection(connection, OMQ_CONNECTION_BROKEN, ENOMEM, NULL, 0);
        return;
    }
    if (!has_part(connection)) {
        connection->whole_ms = connection->engine->now_ms;
    }
    size_t room = in->room - in->end;
    ssize_t got = omq_socket_receive(connection->socket, in->bytes + in->end, room);
    if (got > 0) {
        in->end += (size_t)got;
        connection->heard_bytes += (uint64_t)got;
        if (connection->tls.step == NULL) {
            (void)take_frames(connection);
        } else {
            open_records(connection);
        }
    } else if (got == 0) {
        end_connection(connection, OMQ_CONNECTION_CLOSED, -1, NULL, 0);
    } else if (got != OMQ_WOULD_BLOCK) {
        end_connection(connection, OMQ_CONNECTION_BROKEN, (int)-got, NULL, 0);
    }
}

/* ---- time ---- */

/* End what is due, and note when to look again. */
static void check_deadlines(omq_pull_connection *connection) {
    int64_t now = connection->engine->now_ms;
    bool is_silent = false;
    int64_t next = NEVER;
    for (uint32_t i = 0; i < connection->stream_room; i++) {
        omq_pull_stream *stream = connection->streams[i];
        if (stream == NULL) {
            continue;
        }
        if (stream->deadline_ms <= now) {
            is_silent |= stream->heard_bytes == connection->heard_bytes;
            end_stream(stream, OMQ_STREAM_TIMED_OUT, NULL, 0);
        } else if (stream->deadline_ms < next) {
            next = stream->deadline_ms;
        }
    }
    if (is_silent) {
        /* Not one byte since: a dead connection, which TCP may take minutes to notice. */
        end_connection(connection, OMQ_CONNECTION_SILENT, 0, NULL, 0);
        return;
    }
    if (has_part(connection)) {
        if (now - connection->whole_ms > FRAME_MS) {
            end_connection(connection, OMQ_CONNECTION_STUCK, 0, NULL, 0);
            return;
        }
        int64_t stuck_ms = connection->whole_ms + FRAME_MS + 1;
        next = stuck_ms < next ? stuck_ms : next;
    }
    connection->check_ms = next;
}

static void recheck_room(omq_pull_engine *engine) {
    engine->recheck_ms = engine->now_ms + ROOM_RECHECK_MS;
    for (omq_pull_connection *each = engine->connections; each != NULL; each = each->next) {
        for (uint32_t i = 0; i < each->stream_room; i++) {
            if (each->streams[i] != NULL && each->streams[i]->is_waiting) {
                look_again(each->streams[i]);
            }
        }
    }
}

static int time_to_wait(const omq_pull_engine *engine) {
    int64_t next = engine->waiting > 0 ? engine->recheck_ms : NEVER;
    for (const omq_pull_connection *each = engine->connections; each != NULL; each = each->next) {
        next = each->check_ms < next ? each->check_ms : next;
    }
    if (engine->unclaimed_ms != NEVER && engine->unclaimed_ms + READY_MS < next) {
        next = engine->unclaimed_ms + READY_MS;
    }
    if (next == NEVER) {
        return -1;
    }
    int64_t left = next - engine->now_ms;
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

/* ---- what was asked for ---- */

static bool place_stream(omq_pull_connection *connection, omq_pull_stream *stream) {
    uint32_t index = 0;
    if (connection->stream_count == connection->stream_room) {
        uint32_t room = connection->stream_room == 0 ? 8 : connection->stream_room * 2;
        if (room > MOST_STREAMS) {
            return false;
        }
        omq_pull_stream **grown = calloc(room, sizeof *grown);
        omq_pull_stream **asked = calloc(room, sizeof *asked);
        if (grown == NULL || asked == NULL) {
            free(grown);
            free(asked);
            return false;
        }
        index = connection->stream_room;
        for (uint32_t i = 0; i < index; i++) {
            grown[i] = connection->streams[i];
        }
        free(connection->streams);
        free(connection->asked);
        connection->streams = grown;
        connection->asked = asked;
        connection->stream_room = room;
        for (uint32_t i = 0; i < index; i++) {
            if (grown[i]->opaque != 0) {
                list_asked(grown[i]);
            }
        }
    }
    while (connection->streams[index] != NULL) {
        index++;
    }
    connection->streams[index] = stream;
    connection->stream_count++;
    stream->index = index;
    return true;
}

static void serve_stream(omq_pull_stream *stream, unsigned what, const omq_fill_limits *limits) {
    if (what & LIMIT) {
        stream->limits = *limits;
    }
    if (what & STOP) {
        end_stream(stream, OMQ_STREAM_ENDED, NULL, 0);
    } else if (what & START) {
        /* Its owner keeps the connection's memory, but the connection may have ended. */
        if (stream->connection->is_over) {
            end_stream(stream, OMQ_STREAM_LOST, NULL, 0);
        } else if (!place_stream(stream->connection, stream)) {
            end_stream(stream, OMQ_STREAM_ENDED, NULL, 0);
        } else {
            pull(stream); /* its owner has looked at the limits */
        }
    } else if (stream->is_waiting) {
        look_again(stream);
    }
}

static void serve_connection(omq_pull_connection *connection, unsigned what) {
    omq_pull_engine *engine = connection->engine;
    if (what & ADD) {
        connection->next = engine->connections;
        engine->connections = connection;
        engine->connection_count++;
        connection->whole_ms = engine->now_ms;
    }
    if (what & CLOSE) {
        end_connection(connection, OMQ_CONNECTION_CLOSED, 0, NULL, 0);
    }
}

/* Do what was asked for since the last turn; false: close. */
static bool serve(omq_pull_engine *engine) {
    omq_mutex_lock(&engine->lock);
    engine->is_woken = false;
    omq_pull_connection *connection;
    while ((connection = engine->connections_todo) != NULL) {
        engine->connections_todo = connection->next_todo;
        unsigned what = connection->asked_for;
        connection->asked_for = 0;
        omq_mutex_unlock(&engine->lock);
        serve_connection(connection, what);
        omq_mutex_lock(&engine->lock);
    }
    omq_pull_stream *stream;
    while ((stream = engine->todo) != NULL) {
        engine->todo = stream->next_todo;
        unsigned what = stream->asked_for;
        omq_fill_limits limits = stream->new_limits;
        stream->asked_for = 0;
        omq_mutex_unlock(&engine->lock);
        serve_stream(stream, what, &limits);
        omq_mutex_lock(&engine->lock);
    }
    bool goes_on = !engine->is_closing;
    omq_mutex_unlock(&engine->lock);
    return goes_on;
}

/* ---- the thread ---- */

static size_t prepare_poll(omq_pull_engine *engine) {
    size_t wanted = engine->connection_count + 1;
    if (engine->polled_room < wanted) {
        struct pollfd *polled = realloc(engine->polled, wanted * sizeof *polled);
        if (polled != NULL) {
            engine->polled = polled;
        }
        omq_pull_connection **connections =
            realloc(engine->polled_connections, wanted * sizeof *connections);
        if (connections != NULL) {
            engine->polled_connections = connections;
        }
        if (polled == NULL || connections == NULL) {
            wanted = engine->polled_room; /* the others wait until there is memory */
        } else {
            engine->polled_room = wanted;
        }
    }
    size_t count = 1;
    engine->polled[0] = (struct pollfd){.fd = engine->wake_read, .events = POLLIN};
    for (omq_pull_connection *each = engine->connections; each != NULL && count < wanted;
         each = each->next) {
        const omq_buffer *out = wire_of(each);
        short events = out->begin < out->end ? POLLIN | POLLOUT : POLLIN;
        engine->polled[count] = (struct pollfd){.fd = each->socket, .events = events};
        engine->polled_connections[count++] = each;
    }
    return count;
}

/* Send the pulls of this turn before the owner is told: it wants the interpreter, and the broker
 * shall work meanwhile. */
static void finish_turn(omq_pull_engine *engine) {
    omq_pull_connection *next;
    for (omq_pull_connection *each = engine->connections; each != NULL; each = next) {
        next = each->next;
        (void)flush(each);
    }
    tell_unclaimed(engine);
    if (engine->has_waked) {
        engine->has_waked = false;
        (void)pthread_cond_signal(&engine->has_ready);
    }
    if (engine->has_news) {
        engine->has_news = false;
        omq_mutex_lock(&engine->lock);
        bool tells = !engine->is_told;
        engine->is_told = true;
        omq_mutex_unlock(&engine->lock);
        if (tells) {
            signal_to(engine->tell_write);
        }
    }
}

static void read_wakes(const omq_pull_engine *engine) {
    char bytes[64];
    while (omq_socket_receive(engine->wake_read, bytes, sizeof bytes) > 0) {
    }
}

static void turn(omq_pull_engine *engine, size_t polled) {
    engine->now_ms = clock_ms(engine);
    if (engine->polled[0].revents != 0) {
        read_wakes(engine);
    }
    for (size_t i = 1; i < polled; i++) {
        if (engine->polled[i].revents & ~POLLOUT) {
            receive(engine->polled_connections[i]);
        }
    }
    omq_pull_connection *next;
    for (omq_pull_connection *each = engine->connections; each != NULL; each = next) {
        next = each->next;
        if (has_part(each)) {
            int64_t stuck_ms = each->whole_ms + FRAME_MS + 1;
            each->check_ms = stuck_ms < each->check_ms ? stuck_ms : each->check_ms;
        }
        if (each->check_ms <= engine->now_ms) {
            check_deadlines(each);
        }
    }
    if (engine->waiting > 0 && engine->recheck_ms <= engine->now_ms) {
        recheck_room(engine);
    }
}

static void *run(void *context) {
    omq_pull_engine *engine = context;
#ifdef __linux__
    (void)prctl(PR_SET_NAME, "ordermq-pulls", 0, 0, 0); /* for `top -H` and debuggers */
#endif
    omq_mutex_lock(&engine->turn);
    engine->now_ms = clock_ms(engine);
    while (serve(engine)) {
        finish_turn(engine);
        size_t polled = prepare_poll(engine);
        int timeout = time_to_wait(engine);
        omq_mutex_unlock(&engine->turn);
        int ready = omq_sockets_poll(engine->polled, polled, timeout);
        omq_mutex_lock(&engine->turn);
        turn(engine, ready >= 0 ? polled : 0);
    }
    while (engine->connections != NULL) {
        end_connection(engine->connections, OMQ_CONNECTION_CLOSED, 0, NULL, 0);
    }
    (void)serve(engine); /* what ended streams were asked for meanwhile */
    finish_turn(engine);
    omq_mutex_unlock(&engine->turn);
    if (engine->leave != NULL) {
        engine->leave();
    }
    return NULL;
}

static bool start_thread(omq_pull_engine *engine) {
#ifndef _WIN32
    sigset_t all;
    sigset_t before;
    /* Signals are for the owner's threads. A new thread has the mask of its maker. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    bool is_started = pthread_create(&engine->thread, NULL, run, engine) == 0;
#ifndef _WIN32
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    return is_started;
}

omq_pull_engine *omq_pull_engine_new(int wake_read, int wake_write, int tell_write, int clock_id,
                                     size_t max_frame_bytes) {
    omq_pull_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        return NULL;
    }
    engine->wake_read = wake_read;
    engine->wake_write = wake_write;
    engine->tell_write = tell_write;
    engine->clock_id = clock_id;
    engine->max_frame_bytes = max_frame_bytes;
    engine->last_event = &engine->events;
    engine->last_ready = &engine->ready;
    engine->unclaimed_ms = NEVER;
    engine->polled_room = 1;
    engine->polled = malloc(sizeof *engine->polled);
    engine->polled_connections = malloc(sizeof(omq_pull_connection *));
    if (engine->polled != NULL && engine->polled_connections != NULL &&
        omq_mutex_init(&engine->lock) == 0) {
        if (omq_mutex_init(&engine->turn) == 0) {
            if (pthread_cond_init(&engine->has_ready, NULL) == 0) {
                if (start_thread(engine)) {
                    return engine;
                }
                (void)pthread_cond_destroy(&engine->has_ready);
            }
            omq_mutex_destroy(&engine->turn);
        }
        omq_mutex_destroy(&engine->lock);
    }
    free(engine->polled);
    free(engine->polled_connections);
    free(engine);
    return NULL;
}

void omq_pull_engine_close(omq_pull_engine *engine) {
    omq_mutex_lock(&engine->lock);
    engine->is_closing = true;
    (void)pthread_cond_broadcast(&engine->has_ready);
    wake(engine);
    omq_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
}

void omq_pull_engine_free(omq_pull_engine *engine) {
    if (engine != NULL) {
        (void)pthread_cond_destroy(&engine->has_ready);
        omq_mutex_destroy(&engine->turn);
        omq_mutex_destroy(&engine->lock);
        free(engine->polled);
        free(engine->polled_connections);
        free(engine);
    }
}

void omq_pull_engine_rest(omq_pull_engine *engine) { omq_mutex_lock(&engine->turn); }

void omq_pull_engine_resume(omq_pull_engine *engine) { omq_mutex_unlock(&engine->turn); }

/* ---- connections and streams, for their owner ---- */

omq_pull_connection *omq_pull_connection_new(omq_pull_engine *engine, int socket,
                                             const omq_tls *tls, void *owner) {
    omq_pull_connection *connection = calloc(1, sizeof *connection);
    if (connection != NULL) {
        connection->engine = engine;
        connection->socket = socket;
        if (tls != NULL) {
            connection->tls = *tls;
        }
        connection->owner = owner;
        connection->check_ms = NEVER;
        ask_connection(connection, ADD);
    }
    return connection;
}

void omq_pull_connection_close(omq_pull_connection *connection) {
    ask_connection(connection, CLOSE);
}

void omq_pull_connection_free(omq_pull_connection *connection) {
    if (connection != NULL) {
        free(connection->streams);
        free(connection->asked);
        free(connection->in.bytes);
        free(connection->out.bytes);
        free(connection->sealed_in.bytes);
        free(connection->sealed_out.bytes);
        free(connection->garbage);
        free(connection);
    }
}

uint8_t *omq_pull_connection_room(omq_pull_connection *connection, size_t size) {
    omq_buffer *in = &connection->in;
    bool has_room = omq_buffer_make_room(in, in->room == 0 ? FIRST_READ : size);
    return has_room ? in->bytes + in->end : NULL;
}

void omq_pull_connection_add(omq_pull_connection *connection, size_t size) {
    connection->in.end += size;
}

bool omq_pull_connection_take(omq_pull_connection *connection) { return take_frames(connection); }

const uint8_t *omq_pull_connection_frames(omq_pull_connection *connection, size_t *size) {
    omq_buffer *out = &connection->out;
    const uint8_t *frames = out->bytes + out->begin;
    *size = out->end - out->begin;
    out->begin = out->end = 0;
    return frames;
}

bool omq_pull_connection_send(omq_pull_connection *connection, const uint8_t *bytes, size_t size) {
    omq_buffer *out = &connection->sealed_out;
    if (!omq_buffer_make_room(out, size)) {
        return false;
    }
    memcpy(out->bytes + out->end, bytes, size);
    out->end += size;
    return true;
}

omq_pull_stream *omq_pull_stream_new(omq_pull_connection *connection, const omq_stream_plan *plan,
                                     void *owner) {
    size_t texts = plan->suggestion.size;
    for (size_t i = 0; i < plan->tag_count; i++) {
        texts += plan->tags[i].size;
    }
    size_t tags = plan->tag_count * sizeof(omq_text);
    omq_pull_stream *stream = calloc(1, sizeof *stream + tags + texts);
    if (stream == NULL) {
        return NULL;
    }
    omq_text *kept_tags = (omq_text *)(stream + 1);
    uint8_t *at = (uint8_t *)(stream + 1) + tags;
    stream->connection = connection;
    stream->owner = owner;
    stream->plan = *plan;
    stream->plan.suggestion = omq_keep_text(&at, plan->suggestion);
    for (size_t i = 0; i < plan->tag_count; i++) {
        kept_tags[i] = omq_keep_text(&at, plan->tags[i]);
    }
    stream->plan.tags = kept_tags;
    stream->limits = stream->new_limits = plan->limits;
    stream->offset = plan->offset;
    stream->deadline_ms = NEVER;
    stream->index = MOST_STREAMS;
    return stream;
}

void omq_pull_stream_permit(omq_pull_stream *stream) {
    if (stream->plan.queue != NULL) {
        stream->permit = omq_process_queue_permit(stream->plan.queue);
    }
}

void omq_pull_stream_forbid(omq_pull_stream *stream) {
    if (stream->permit != 0) {
        omq_process_queue_forbid(stream->plan.queue, stream->permit);
    }
}

void omq_pull_stream_start(omq_pull_stream *stream) { ask_stream(stream, START); }

void omq_pull_stream_stop(omq_pull_stream *stream) { ask_stream(stream, STOP); }

void omq_pull_stream_free(omq_pull_stream *stream) {
    if (stream != NULL) {
        free(stream->frame);
        free(stream);
    }
}

void omq_pull_stream_limit(omq_pull_stream *stream, const omq_fill_limits *limits) {
    omq_mutex_lock(&stream->connection->engine->lock);
    stream->new_limits = *limits;
    omq_mutex_unlock(&stream->connection->engine->lock);
    ask_stream(stream, LIMIT);
}

omq_pull_counts omq_pull_stream_take_counts(omq_pull_stream *stream) {
    omq_pull_counts counts = {
        .pulls = atomic_exchange_explicit(&stream->pulls, 0, memory_order_relaxed),
        .messages = atomic_exchange_explicit(&stream->messages, 0, memory_order_relaxed),
        .pull_ms = atomic_exchange_explicit(&stream->pull_ms, 0, memory_order_relaxed),
    };
    for (unsigned i = 0; i < OMQ_DURATION_BUCKETS; i++) {
        counts.buckets[i] =
            atomic_exchange_explicit(&stream->pull_buckets[i], 0, memory_order_relaxed);
    }
    return counts;
}

bool omq_pull_stream_is_asking(const omq_pull_stream *stream) {
    return atomic_load_explicit(&stream->is_asking, memory_order_relaxed);
}

int64_t omq_pull_stream_asked_ms(const omq_pull_stream *stream) {
    return atomic_load_explicit(&stream->asked_ms, memory_order_relaxed);
}

static void take_stream_event(omq_pull_engine *engine, omq_pull_event *event) {
    omq_pull_stream *stream = engine->events;
    engine->events = stream->next_event;
    if (engine->events == NULL) {
        engine->last_event = &engine->events;
    }
    stream->is_told = false;
    event->owner = stream->owner;
    event->is_dispatched = stream->is_dispatched;
    event->end = stream->end;
    event->offset = stream->last_offset;
    event->bytes = stream->frame;
    event->size = stream->frame_size;
    stream->is_dispatched = false;
    stream->frame = NULL;
}

bool omq_pull_engine_next(omq_pull_engine *engine, omq_pull_event *event) {
    *event = (omq_pull_event){.connection = NULL};
    omq_mutex_lock(&engine->lock);
    omq_pull_connection *ended = engine->ended;
    bool is_found = true;
    if (ended != NULL) {
        engine->ended = ended->next_event;
        event->connection = ended;
        event->owner = ended->owner;
        event->connection_end = ended->end;
        event->error = ended->error;
        event->bytes = ended->garbage;
        event->size = ended->garbage_size;
        ended->garbage = NULL;
    } else if (engine->events != NULL) {
        take_stream_event(engine, event);
    } else if (engine->ready != NULL) {
        event->owner = take_ready(engine)->owner;
        event->is_dispatched = true;
    } else {
        engine->is_told = false;
        is_found = false;
    }
    omq_mutex_unlock(&engine->lock);
    return is_found;
}

void *omq_pull_engine_take_ready(omq_pull_engine *engine) {
    omq_mutex_lock(&engine->lock);
    const omq_pull_stream *stream = take_ready(engine);
    void *owner = stream == NULL ? NULL : stream->owner;
    engine->is_polled = stream != NULL;
    omq_mutex_unlock(&engine->lock);
    return owner;
}

bool omq_pull_engine_wait_ready(omq_pull_engine *engine) {
    omq_mutex_lock(&engine->lock);
    while (engine->ready == NULL && !engine->is_interrupted && !engine->is_closing) {
        engine->is_awaited = true;
        (void)pthread_cond_wait(&engine->has_ready, &engine->lock);
    }
    engine->is_awaited = engine->is_interrupted = false;
    engine->is_polled = engine->ready != NULL;
    bool is_open = !engine->is_closing;
    omq_mutex_unlock(&engine->lock);
    return is_open;
}

void omq_pull_engine_interrupt(omq_pull_engine *engine) {
    omq_mutex_lock(&engine->lock);
    engine->is_interrupted = true;
    (void)pthread_cond_signal(&engine->has_ready);
    omq_mutex_unlock(&engine->lock);
}
