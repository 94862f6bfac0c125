/* The pull engine against brokers of its own: threads that answer pulls, in pieces, late, with
 * other codes, with garbage, or not at all, plainly or in the records of a stand-in for TLS. Whatever
 * they do, each queue's messages must come once and in order, and every stream and connection must
 * end with one last event. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "bytes.h"
#include "pull_engine.h"
#include "reply_header.h"
#include "sanitize.h"
#include "sanitize_sockets.h"

enum { QUEUES = 4, LAST = 3000, RECORD = 113, ID = 8, MOST = 32, PIECE = 8192, MAX_FRAME = 1 << 16 };

typedef struct {
    int socket;
    uint64_t seed;
    bool is_reliable;
    bool is_sealed; /* speaks the records below */
    uint8_t plain[PIECE]; /* a record that was received, and what is not taken of it */
    size_t begin;
    size_t end;
} broker;

/* What stands for TLS: records with its heads, whose bytes are the plain ones with some bits
 * changed. */
enum { KEY = 0x5A, HEAD = 5, PROGRAM = 0x17, CLOSE_NOTIFY = 0x15 };

static size_t seal_record(uint8_t *into, const uint8_t *bytes, size_t size) {
    const uint8_t head[HEAD] = {PROGRAM, 3, 3, (uint8_t)(size >> 8), (uint8_t)size};
    memcpy(into, head, HEAD);
    for (size_t i = 0; i < size; i++) {
        into[HEAD + i] = bytes[i] ^ KEY;
    }
    return HEAD + size;
}

typedef struct {
    omq_process_queue *queue;
    omq_answer_queue *answers; /* instead of the queue, of a reader; NULL: not so */
    omq_request_template *request;
    int64_t expected; /* the consumer's */
    omq_lane_map *lanes; /* NULL: consumed in the order of the queue */
    omq_id_window *window; /* NULL: copies, of which there are none, are not looked for */
} buffer;

static buffer buffers[QUEUES];
static omq_shared_room *room; /* of two of them */
static _Atomic bool is_all_done;

/* ---- brokers ---- */

static void write_record(uint8_t *at, int32_t queue_id, int64_t offset) {
    memset(at, 0, RECORD);
    omq_write_u32(at, RECORD);
    omq_write_u32(at + 4, 0xDAA320A7u);
    omq_write_u32(at + 12, (uint32_t)queue_id);
    omq_write_u64(at + 20, (uint64_t)offset);
    omq_write_u32(at + 84, 2); /* the body, then a topic of three bytes, and an id */
    at[90] = 3;
    at[95] = 9 + ID;
    char text[9 + ID + 1];
    int size = snprintf(text, sizeof text, "UNIQ_KEY\1%0*" PRId64, ID, offset % 100000000);
    REQUIRE(size == 9 + ID);
    memcpy(at + 96, text, (size_t)size);
}

static size_t write_answer(uint8_t *frame, uint32_t opaque, int32_t queue_id, int64_t offset,
                           int code) {
    int64_t end = offset + MOST < LAST ? offset + MOST : LAST;
    int64_t next = code == 0 ? end : offset;
    int size = snprintf((char *)frame + 8, 512,
                        "{\"code\":%d,\"extFields\":{\"maxOffset\":\"%d\",\"nextBeginOffset\":\"%" PRId64
                        "\",\"suggestWhichBrokerId\":\"0\"},\"flag\":1,\"opaque\":%" PRIu32 "}",
                        code, LAST, next, opaque);
    size_t total = 8 + (size_t)size;
    for (int64_t each = offset; code == 0 && each < end; each++) {
        write_record(frame + total, queue_id, each);
        total += RECORD;
    }
    omq_write_u32(frame, (uint32_t)total - 4);
    omq_write_u32(frame + 4, (uint32_t)size);
    return total;
}

static bool send_all(broker *self, const uint8_t *bytes, size_t size) {
    if (!self->is_sealed) {
        return send_whole(self->socket, bytes, size);
    }
    uint8_t record[HEAD + PIECE];
    while (size > 0) {
        size_t piece = 1 + draw(&self->seed, PIECE);
        piece = piece < size ? piece : size;
        size_t sealed = seal_record(record, bytes, piece);
        size_t first = draw(&self->seed, (uint32_t)sealed);
        if (!send_whole(self->socket, record, first) ||
            !send_whole(self->socket, record + first, sealed - first)) {
            return false;
        }
        bytes += piece;
        size -= piece;
    }
    return true;
}

static bool receive_all(broker *self, uint8_t *bytes, size_t size) {
    if (!self->is_sealed) {
        return receive_whole(self->socket, bytes, size);
    }
    for (size_t i = 0; i < size; i++) {
        if (self->begin == self->end) {
            uint8_t head[HEAD];
            if (!receive_whole(self->socket, head, HEAD)) {
                return false;
            }
            self->begin = 0;
            self->end = (size_t)head[3] << 8 | head[4];
            REQUIRE(self->end <= sizeof self->plain);
            if (!receive_whole(self->socket, self->plain, self->end)) {
                return false;
            }
        }
        bytes[i] = self->plain[self->begin++] ^ KEY;
    }
    return true;
}

static bool misbehave(broker *self, uint32_t opaque, int32_t queue_id, int64_t offset,
                      uint8_t *frame) {
    switch (draw(&self->seed, 60)) {
    case 0: /* gone */
        return false;
    case 5: { /* gone, with a word; or without TLS no frame */
        const uint8_t record[HEAD] = {CLOSE_NOTIFY, 3, 3, 0, 0};
        return send_whole(self->socket, record, HEAD) && false;
    }
    case 6: /* no record; or without TLS no frame */
        memset(frame, 0xEE, 16);
        return send_whole(self->socket, frame, 16) && false;
    case 1: /* no frame */
        memset(frame, 0xEE, 16);
        return send_all(self, frame, 16) && false;
    case 2: { /* no header */
        size_t size = write_answer(frame, opaque, queue_id, offset, 0);
        frame[8 + draw(&self->seed, 20)] = (uint8_t)draw(&self->seed, 256);
        return send_all(self, frame, size);
    }
    case 3: { /* late, for nobody */
        size_t size = write_answer(frame, opaque ^ 0x10000, queue_id, offset, 0);
        return send_all(self, frame, size);
    }
    case 4: { /* records of another offset */
        size_t size = write_answer(frame, opaque, queue_id, offset, 0);
        frame[size - RECORD + 27] ^= 0x40;
        return send_all(self, frame, size);
    }
    default:
        return true;
    }
}

static void *serve_pulls(void *context) {
    broker *self = context;
    static const char head[] = "{\"q\":";
    uint8_t *frame = malloc(MAX_FRAME);
    uint8_t request[256];
    REQUIRE(frame != NULL);
    while (receive_all(self, request, 8)) {
        size_t size = omq_read_u32(request + 4);
        REQUIRE(size < sizeof request && omq_read_u32(request) == size + 4);
        if (!receive_all(self, request, size)) {
            break;
        }
        request[size] = 0;
        int queue_id;
        int64_t offset;
        uint32_t opaque;
        REQUIRE(memcmp(request, head, sizeof head - 1) == 0);
        REQUIRE(sscanf((char *)request + sizeof head - 1, "%d,%" SCNd64 ",%" SCNu32, &queue_id,
                       &offset, &opaque) == 3);
        if (!self->is_reliable && !misbehave(self, opaque, queue_id, offset, frame)) {
            break;
        }
        int code = offset >= LAST || (!self->is_reliable && draw(&self->seed, 30) == 0) ? 19 : 0;
        size = write_answer(frame, opaque, queue_id, offset, code);
        size_t first = draw(&self->seed, 2) == 0 ? size : draw(&self->seed, (uint32_t)size);
        if (!send_all(self, frame, first) ||
            !send_all(self, frame + first, size - first)) {
            break;
        }
    }
    free(frame);
    close_socket(self->socket);
    free(self);
    return NULL;
}

/* ---- the consumer ---- */

static bool consume_some(buffer *held, int32_t queue_id) {
    omq_segment segments[8];
    size_t count;
    uint32_t slot;
    REQUIRE(is_done(omq_process_queue_take_segments(held->queue, segments, 8, &count)));
    for (size_t i = 0; i < count; i++) {
        omq_answer *answer = omq_process_queue_answer(held->queue, segments[i].slot);
        REQUIRE(answer != NULL);
        REQUIRE(omq_process_queue_has_answer(held->queue, segments[i].slot, answer));
        for (uint32_t at = 0; at < segments[i].count; at++) {
            size_t row = segments[i].first + at;
            REQUIRE(omq_message_offset(answer->body, &answer->rows, row) == held->expected++);
            omq_message message;
            omq_message_read(answer->body, &answer->rows, row, &message);
            REQUIRE(message.queue_id == queue_id);
        }
        omq_answer_release(answer);
    }
    if (count > 0) {
        int64_t next = omq_process_queue_commit(held->queue, &slot);
        REQUIRE(next == held->expected);
        while (omq_process_queue_collect(held->queue, &slot)) {
        }
    }
    return held->expected < LAST;
}

/* The same by key; its messages have none, so one may run at a time. */
static bool consume_lanes(buffer *held, int32_t queue_id) {
    int64_t offset;
    uint64_t token;
    size_t taken;
    int64_t done;
    for (int i = 0; i < 50; i++) {
        REQUIRE(is_done(omq_lane_map_take(held->lanes, &offset, &token, 1, &taken)));
        if (taken == 0) {
            break;
        }
        omq_answer *answer =
            omq_process_queue_lane_answer(held->queue, (uint32_t)(token >> 32));
        REQUIRE(answer != NULL && offset == held->expected++);
        omq_message message;
        omq_message_read(answer->body, &answer->rows, (uint32_t)token, &message);
        REQUIRE(message.queue_id == queue_id);
        omq_answer_release(answer);
        REQUIRE(omq_lane_map_done(held->lanes, offset) == OMQ_FLIGHT_OWN);
        REQUIRE(is_done(omq_process_queue_remove(held->queue, &offset, 1, &done)));
    }
    return held->expected < LAST;
}

/* The same of a reader, which leaves answers until they fill the queue. */
static bool read_some(buffer *held, int32_t queue_id, uint64_t *seed) {
    omq_answer_rows rows;
    int64_t first;
    while (omq_answer_queue_take(held->answers, 1 + draw(seed, MOST), 0, &rows) == OMQ_TAKEN_SOME) {
        for (size_t row = rows.first_row; row < rows.end_row; row++) {
            omq_message message;
            omq_message_read(rows.answer->body, &rows.answer->rows, row, &message);
            REQUIRE(message.queue_offset == held->expected++ && message.queue_id == queue_id);
        }
        omq_answer_release(rows.answer);
    }
    REQUIRE(omq_answer_queue_lost(held->answers, &first) == 0);
    return held->expected < LAST;
}

static bool take_some(buffer *held, int32_t queue_id, uint64_t *seed) {
    if (held->answers != NULL) {
        return read_some(held, queue_id, seed);
    }
    return held->lanes == NULL ? consume_some(held, queue_id) : consume_lanes(held, queue_id);
}

static void *consume(void *context) {
    uint64_t seed = *(uint64_t *)context;
    bool is_left = true;
    while (is_left) {
        is_left = false;
        for (int32_t i = 0; i < QUEUES; i++) {
            is_left |= take_some(buffers + i, i, &seed);
        }
        if (draw(&seed, 8) == 0) { /* let a buffer fill */
            struct timespec pause = {0, 200000};
            (void)nanosleep(&pause, NULL);
        }
    }
    atomic_store(&is_all_done, true);
    return NULL;
}

/* Take ready streams as a worker does: until there is none, then sleep; sometimes too late. */
static void *serve_ready(void *context) {
    omq_pull_engine *engine = context;
    uint64_t seed = 7;
    while (omq_pull_engine_wait_ready(engine)) {
        const buffer *held;
        while ((held = omq_pull_engine_take_ready(engine)) != NULL) {
            REQUIRE(held >= buffers && held < buffers + QUEUES);
            if (draw(&seed, 40) == 0) {
                struct timespec pause = {0, 3000000};
                (void)nanosleep(&pause, NULL);
            }
        }
    }
    return NULL;
}

/* ---- the owner ---- */

typedef struct {
    omq_pull_connection *connection; /* NULL: closed */
    omq_pull_connection *ended[64];  /* kept until their streams have ended */
    int ended_sockets[64];
    int ended_count;
    int socket;
    omq_pull_stream *streams[QUEUES];
    omq_pull_connection *used[QUEUES];
    pthread_t threads[256];
    int thread_count;
    int open_connections;
    bool has_tls;
    uint64_t seed;
} owner;

static omq_tls_state open_records(omq_pull_connection *connection, const omq_tls_records *received) {
    const uint8_t *at = received->bytes;
    for (size_t i = 0; i < received->count; i++) {
        size_t size = (size_t)at[3] << 8 | at[4];
        if (at[0] != PROGRAM) {
            return at[0] == CLOSE_NOTIFY ? OMQ_TLS_CLOSED : OMQ_TLS_FAILED;
        }
        uint8_t *room = omq_pull_connection_room(connection, size);
        if (room == NULL) {
            return OMQ_TLS_NO_MEMORY;
        }
        for (size_t byte = 0; byte < size; byte++) {
            room[byte] = at[HEAD + byte] ^ KEY;
        }
        omq_pull_connection_add(connection, size);
        at += HEAD + size;
    }
    REQUIRE(at <= received->bytes + received->size);
    return omq_pull_connection_take(connection) ? OMQ_TLS_OPEN : OMQ_TLS_ENDED;
}

static omq_tls_state step_tls(void *context, omq_pull_connection *connection,
                              const omq_tls_records *received) {
    uint8_t record[HEAD + PIECE];
    (void)context;
    omq_tls_state state = received == NULL ? OMQ_TLS_OPEN : open_records(connection, received);
    if (state != OMQ_TLS_OPEN) {
        return state;
    }
    size_t size;
    const uint8_t *frames = omq_pull_connection_frames(connection, &size);
    for (size_t done = 0; done < size;) {
        size_t piece = size - done < PIECE ? size - done : PIECE;
        size_t sealed = seal_record(record, frames + done, piece);
        if (!omq_pull_connection_send(connection, record, sealed)) {
            return OMQ_TLS_NO_MEMORY;
        }
        done += piece;
    }
    return OMQ_TLS_OPEN;
}

static _Atomic int left_engines;

static void leave_engine(void) { atomic_fetch_add(&left_engines, 1); }

static const omq_tls TLS = {step_tls, leave_engine};

static bool has_room(int32_t queue_id) { return queue_id % 2 != 0; }

static omq_fill_limits limits_of(int32_t queue_id) {
    return (omq_fill_limits){.fills_if_none_pending = !has_room(queue_id),
                             .counts_pending = has_room(queue_id),
                             .messages = has_room(queue_id) ? 80 : 200,
                             .bytes = 1 << 20,
                             .span = INT64_MAX};
}

static void connect_to_broker(owner *self, omq_pull_engine *engine) {
    int pair[2];
    socket_pair(pair);
    let_not_block(pair[0]);
    broker *made = malloc(sizeof *made);
    REQUIRE(made != NULL && self->thread_count < 256);
    /* In the end one that does what it should, so that the run ends. */
    *made = (broker){.socket = pair[1],
                     .seed = self->seed + (uint64_t)self->thread_count,
                     .is_reliable = self->thread_count > 30,
                     .is_sealed = draw(&self->seed, 2) == 0};
    self->socket = pair[0];
    const omq_tls *tls = made->is_sealed ? &TLS : NULL;
    self->has_tls |= tls != NULL;
    REQUIRE(pthread_create(&self->threads[self->thread_count++], NULL, serve_pulls, made) == 0);
    self->connection = omq_pull_connection_new(engine, pair[0], tls, self);
    REQUIRE(self->connection != NULL);
    self->open_connections++;
}

/* Return the request of a queue's pulls; signed, for the signature shall be computed, too. */
static omq_request_template *request_of(int32_t queue_id) {
    char first[32];
    int size = snprintf(first, sizeof first, "{\"q\":%" PRId32 ",", queue_id);
    omq_text text = {(const uint8_t *)first, (size_t)size};
    omq_text texts[] = {text, {(const uint8_t *)",", 1}, {(const uint8_t *)" ", 1},
                        {(const uint8_t *)"}", 1}};
    const uint8_t gaps[] = {OMQ_GAP_OFFSET, OMQ_GAP_REQUEST_ID, OMQ_GAP_SIGNATURE};
    omq_request_plan plan = {texts, gaps, 3, false, true, text, text, text};
    return omq_request_template_new(&plan);
}

static void start_stream(owner *self, int32_t queue_id) {
    const buffer *filled = buffers + queue_id;
    omq_process_queue_state state;
    if (filled->queue != NULL) {
        omq_process_queue_read(filled->queue, &state);
    }
    omq_stream_plan plan = {
        .queue = filled->queue,
        .answers = filled->answers,
        .request = filled->request,
        .suggestion = {(const uint8_t *)"0", 1},
        .check_crc = false,
        .queue_id = queue_id,
        .offset = filled->queue == NULL ? omq_answer_queue_next(filled->answers) : state.next_pull,
        .timeout_ms = 10000,
        .most_past_end = 10,
        .limits = limits_of(queue_id),
    };
    self->streams[queue_id] = omq_pull_stream_new(self->connection, &plan, buffers + queue_id);
    self->used[queue_id] = self->connection;
    REQUIRE(self->streams[queue_id] != NULL);
    omq_pull_stream_permit(self->streams[queue_id]);
    omq_pull_stream_start(self->streams[queue_id]);
}

static void free_ended(owner *self) {
    int kept = 0;
    for (int i = 0; i < self->ended_count; i++) {
        bool is_used = false;
        for (int q = 0; q < QUEUES; q++) {
            is_used |= self->streams[q] != NULL && self->used[q] == self->ended[i];
        }
        if (is_used) {
            self->ended[kept] = self->ended[i];
            self->ended_sockets[kept++] = self->ended_sockets[i];
        } else {
            close_socket(self->ended_sockets[i]);
            omq_pull_connection_free(self->ended[i]);
        }
    }
    self->ended_count = kept;
}

static void take_event(owner *self, omq_pull_engine *engine, bool goes_on) {
    omq_pull_event event;
    while (omq_pull_engine_next(engine, &event)) {
        free(event.bytes);
        if (event.connection != NULL) {
            REQUIRE(self->ended_count < 64);
            self->ended[self->ended_count] = event.connection;
            self->ended_sockets[self->ended_count++] = self->socket;
            REQUIRE(event.connection == self->connection);
            self->connection = NULL;
            self->open_connections--;
        } else if (event.end != OMQ_STREAM_GOES_ON) {
            int32_t queue_id = (int32_t)((buffer *)event.owner - buffers);
            omq_pull_counts counts = omq_pull_stream_take_counts(self->streams[queue_id]);
            REQUIRE(counts.messages <= LAST);
            omq_pull_stream_free(self->streams[queue_id]);
            self->streams[queue_id] = NULL;
        }
        free_ended(self);
    }
    if (goes_on && self->connection == NULL) {
        connect_to_broker(self, engine);
    }
    for (int32_t i = 0; goes_on && i < QUEUES; i++) {
        if (self->streams[i] == NULL) {
            start_stream(self, i);
        }
    }
}

/* What may happen to a stream at any time. */
static void disturb(owner *self, omq_pull_engine *engine) {
    int32_t queue_id = (int32_t)draw(&self->seed, QUEUES);
    omq_pull_stream *stream = self->streams[queue_id];
    omq_fill_limits limits = limits_of(queue_id);
    switch (draw(&self->seed, 12)) {
    case 0:
        omq_pull_stream_forbid(stream);
        break;
    case 1:
        omq_pull_stream_forbid(stream);
        omq_pull_stream_stop(stream);
        break;
    case 2:
        omq_pull_stream_limit(stream, &limits);
        break;
    case 3:
        if (draw(&self->seed, 20) == 0) {
            omq_pull_connection_close(self->connection);
        }
        break;
    case 4:
        omq_pull_engine_rest(engine);
        omq_pull_engine_resume(engine);
        break;
    case 5:
        omq_pull_engine_interrupt(engine);
        break;
    default:
        break;
    }
}

static void run_engine(uint64_t seed) {
    int wakes[2];
    int tells[2];
    owner self = {.seed = seed};
    pthread_t consumer;
    pthread_t server;
    atomic_store(&is_all_done, false);
    socket_pair(wakes);
    socket_pair(tells);
    for (int i = 0; i < 2; i++) {
        let_not_block(wakes[i]);
        let_not_block(tells[i]);
    }
    room = omq_shared_room_new(100);
    REQUIRE(room != NULL);
    for (int32_t i = 0; i < QUEUES; i++) {
        buffers[i] = (buffer){.request = request_of((int32_t)i)};
        if (i == 2) {
            buffers[i].answers = omq_answer_queue_new(0, LAST, 4 * MOST * RECORD, true);
        } else {
            buffers[i].queue = omq_process_queue_new();
        }
        REQUIRE(buffers[i].queue != NULL || buffers[i].answers != NULL);
        REQUIRE(buffers[i].request != NULL);
        if (i == 1) {
            buffers[i].window = omq_id_window_new(500, seed);
            REQUIRE(buffers[i].window != NULL);
            omq_process_queue_fill_new_only(buffers[i].queue, buffers[i].window);
        }
        if (has_room(i)) {
            omq_process_queue_fill_within(buffers[i].queue, room);
        }
        if (i == 0) {
            buffers[i].lanes = omq_lane_map_new(8, 1000, false, seed);
            REQUIRE(buffers[i].lanes != NULL);
            omq_process_queue_fill_lanes(buffers[i].queue, buffers[i].lanes);
        }
    }
    omq_pull_engine *engine =
        omq_pull_engine_new(wakes[0], wakes[1], tells[1], CLOCK_MONOTONIC, MAX_FRAME);
    REQUIRE(engine != NULL);
    REQUIRE(pthread_create(&consumer, NULL, consume, &seed) == 0);
    REQUIRE(pthread_create(&server, NULL, serve_ready, engine) == 0);
    while (!atomic_load(&is_all_done)) {
        char told[16];
        struct pollfd polled = {.fd = tells[0], .events = POLLIN};
        take_event(&self, engine, true);
        if (omq_sockets_poll(&polled, 1, 1) > 0) {
            (void)omq_socket_receive(tells[0], told, sizeof told);
        }
        take_event(&self, engine, true);
        disturb(&self, engine);
    }
    REQUIRE(pthread_join(consumer, NULL) == 0);
    atomic_store(&left_engines, 0);
    omq_pull_engine_close(engine);
    REQUIRE(atomic_load(&left_engines) == (self.has_tls ? 1 : 0));
    REQUIRE(pthread_join(server, NULL) == 0);
    take_event(&self, engine, false);
    for (int i = 0; i < QUEUES; i++) {
        REQUIRE(self.streams[i] == NULL && buffers[i].expected == LAST);
        if (buffers[i].queue != NULL) {
            sound(omq_process_queue_check(buffers[i].queue));
        }
        omq_answer_queue_free(buffers[i].answers);
        omq_process_queue_free(buffers[i].queue);
        omq_lane_map_free(buffers[i].lanes);
        omq_id_window_free(buffers[i].window);
        omq_request_template_free(buffers[i].request);
    }
    REQUIRE(omq_shared_room_pending(room) == 0);
    omq_shared_room_release(room);
    REQUIRE(self.open_connections == 0 && self.ended_count == 0);
    for (int i = 0; i < self.thread_count; i++) {
        REQUIRE(pthread_join(self.threads[i], NULL) == 0);
    }
    omq_pull_engine_free(engine);
    for (int i = 0; i < 2; i++) {
        close_socket(wakes[i]);
        close_socket(tells[i]);
    }
}

void drive_engine(uint64_t *seed, int rounds) {
    for (int i = 0; i < rounds; i++) {
        run_engine(*seed + (uint64_t)i);
    }
}

/* Read a header in a block of its own size, so that a byte too far is seen. */
void read_reply_exactly(const uint8_t *bytes, size_t size) {
    omq_reply_header header;
    uint8_t *exact = malloc(size > 0 ? size : 1);
    REQUIRE(exact != NULL);
    if (size > 0) {
        memcpy(exact, bytes, size);
    }
    for (uint32_t encoding = OMQ_HEADER_JSON; encoding <= OMQ_HEADER_BINARY; encoding++) {
        if (!omq_read_reply_header(encoding, exact, size, &header)) {
            continue;
        }
        REQUIRE(header.code >= INT32_MIN && header.code <= INT32_MAX);
        const omq_text *texts[] = {&header.next_offset, &header.max_offset, &header.suggestion};
        for (size_t i = 0; i < 3; i++) {
            const omq_text *text = texts[i];
            REQUIRE(text->bytes == NULL ||
                    (text->bytes >= exact && text->bytes + text->size <= exact + size));
            (void)omq_offset_of(text->bytes == NULL ? (omq_text){NULL, 0} : *text);
        }
    }
    free(exact);
}
