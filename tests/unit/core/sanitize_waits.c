/* Threads that send through one connection and read its answers in turn, beside the owner's loop
 * and against a broker that answers late, in any order, in pieces, with refusals and requests of
 * its own, and that ends at last. Each request must be written once and whole, and each answer
 * reach its own thread or the owner, once. In every other round the broker puts its bytes into
 * numbered records, which must be opened in turn. */
#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "frame_stream.h"
#include "outbox.h"
#include "reply_header.h"
#include "sanitize.h"

enum { SENDERS = 4, HELD = 6, BODY = 700, MAX_FRAME = 1 << 16, BUFFER = 1 << 15 };
enum { RECORD_HEAD = 5, CONTENT = 23, OTHER = 22, MOST_CONTENT = 300 }; /* of records */

typedef struct {
    omq_frame_stream *stream;
    omq_outbox *outbox;
    int gate;
    int told;   /* an eventfd of the owner's, for what threads leave to it */
    int broker; /* the other end of the socket */
    int socket;
    int requests; /* of each sender */
    uint64_t seed;
    pthread_mutex_t transport; /* as the lock of a connection: of appends and the owner's writes */
    _Atomic int answered;      /* requests, by whomever */
    _Atomic bool is_left; /* a thread is to take its answer from the owner */
    _Atomic uint32_t by_owner[SENDERS]; /* the last request whose answer the owner has had */
    int events[SENDERS];
    bool is_sealed;
    uint8_t sealed; /* records, by the broker */
    uint8_t opened; /* by whoever has the turn */
} scene;

typedef struct {
    scene *scene;
    uint32_t number;
} sender;

static size_t write_frame(uint8_t *frame, uint32_t opaque, int code, int flag, size_t body) {
    int size = snprintf((char *)frame + 8, 256,
                        "{\"code\":%d,\"extFields\":{\"queueOffset\":\"7\"},\"flag\":%d,"
                        "\"opaque\":%u}",
                        code, flag, opaque);
    size_t total = 8 + (size_t)size + body;
    memset(frame + 8 + size, (int)(opaque & 0xFF), body);
    omq_write_u32(frame, (uint32_t)total - 4);
    omq_write_u32(frame + 4, (uint32_t)size);
    return total;
}

/* ---- the broker ---- */

static size_t write_record(scene *at, uint8_t *record, uint8_t type, const uint8_t *bytes,
                           size_t size) {
    record[0] = type;
    record[1] = record[2] = 3;
    record[3] = (uint8_t)((size + 1) >> 8);
    record[4] = (uint8_t)(size + 1);
    record[RECORD_HEAD] = at->sealed++;
    for (size_t i = 0; i < size; i++) {
        record[RECORD_HEAD + 1 + i] = bytes[i] ^ 0x5A;
    }
    return RECORD_HEAD + 1 + size;
}

static void answer_in_pieces(scene *at, uint8_t *bytes, size_t size, uint64_t *seed) {
    static uint8_t records[8 * BUFFER];
    if (at->is_sealed) {
        size_t filled = 0;
        while (size > 0) {
            size_t content = 1 + draw(seed, size < MOST_CONTENT ? (uint32_t)size : MOST_CONTENT);
            if (draw(seed, 10) == 0) {
                filled += write_record(at, records + filled, OTHER, bytes, content);
            }
            filled += write_record(at, records + filled, CONTENT, bytes, content);
            REQUIRE(filled < sizeof records - 3 * MOST_CONTENT);
            bytes += content;
            size -= content;
        }
        bytes = records;
        size = filled;
    }
    while (size > 0) {
        size_t piece = 1 + draw(seed, (uint32_t)size);
        ssize_t sent = send(at->broker, bytes, piece, MSG_NOSIGNAL);
        REQUIRE(sent > 0);
        bytes += sent;
        size -= (size_t)sent;
    }
}

static void *serve(void *context) {
    scene *at = context;
    uint64_t seed = at->seed + 1;
    static uint8_t in[BUFFER];
    static uint8_t out[2 * BUFFER];
    uint32_t held[HELD];
    int holding = 0;
    size_t have = 0;
    int left = SENDERS * at->requests;
    while (left > 0) {
        ssize_t got = recv(at->broker, in + have, sizeof in - have, 0);
        REQUIRE(got > 0);
        have += (size_t)got;
        size_t begin = 0;
        size_t size;
        while (have - begin >= 8 && have - begin >= (size = 4 + omq_read_u32(in + begin))) {
            omq_reply_header header;
            size_t header_size = omq_read_u32(in + begin + 4) & 0xFFFFFF;
            REQUIRE(omq_read_reply_header(OMQ_HEADER_JSON, in + begin + 8, header_size, &header));
            for (size_t i = 8 + header_size; i < size; i++) { /* whole, and not mixed */
                REQUIRE(in[begin + i] == (uint8_t)header.opaque);
            }
            held[holding++] = (uint32_t)header.opaque;
            begin += size;
            size_t filled = 0;
            while (holding > 0 && (holding == HELD || draw(&seed, 3) == 0)) {
                int which = (int)draw(&seed, (uint32_t)holding);
                uint32_t opaque = held[which];
                held[which] = held[--holding];
                if (draw(&seed, 40) == 0) {
                    filled += write_frame(out + filled, 3, 40, 0, 5); /* a request of its own */
                }
                filled += write_frame(out + filled, opaque, draw(&seed, 20) == 0, 1, 20);
                left--;
            }
            answer_in_pieces(at, out, filled, &seed);
        }
        memmove(in, in + begin, have - begin);
        have -= begin;
        /* The senders may all be waiting for what is held. */
        size_t filled = 0;
        while (holding > 0) {
            filled += write_frame(out + filled, held[--holding], 0, 1, 20);
            left--;
        }
        answer_in_pieces(at, out, filled, &seed);
    }
    return NULL;
}

/* ---- records, with the turn ---- */

static void open_records(scene *at) {
    size_t size;
    size_t count;
    const uint8_t *record = omq_frame_stream_take_records(at->stream, &size, &count);
    REQUIRE((record != NULL) == (count > 0));
    for (; count > 0; count--) {
        size_t content = ((size_t)record[3] << 8 | record[4]) - 1;
        REQUIRE(record[RECORD_HEAD] == at->opened++);
        if (record[0] == CONTENT) {
            uint8_t *room = omq_frame_stream_room(at->stream, content);
            REQUIRE(room != NULL);
            for (size_t i = 0; i < content; i++) {
                room[i] = record[RECORD_HEAD + 1 + i] ^ 0x5A;
            }
            omq_frame_stream_opened(at->stream, content);
        }
        record += RECORD_HEAD + 1 + content;
    }
}

/* ---- the owner ---- */

static void look(scene *at) {
    if (!omq_frame_stream_begin(at->stream)) {
        return;
    }
    ssize_t got = omq_frame_stream_receive(at->stream);
    REQUIRE(got >= -1);
    open_records(at);
    omq_frame frame;
    bool are_waiters_alone = true;
    while (omq_frame_stream_next(at->stream, &frame)) {
        omq_reply_header header;
        REQUIRE(omq_read_reply_header(frame.encoding, frame.header, frame.header_size, &header));
        omq_frame_stream_drop(at->stream);
        are_waiters_alone = false;
        if (header.flag == 1) {
            uint32_t number = (uint32_t)header.opaque % SENDERS;
            at->by_owner[number] = (uint32_t)header.opaque;
            uint64_t one = 1;
            REQUIRE(write(at->events[number], &one, sizeof one) == sizeof one);
        }
    }
    REQUIRE(!omq_frame_stream_is_broken(at->stream));
    omq_frame_stream_end(at->stream, are_waiters_alone);
}

static void write_rest(scene *at) {
    size_t size;
    uint8_t *rest = omq_outbox_take(at->outbox, &size);
    REQUIRE(rest != NULL || size == 0);
    for (size_t begin = 0; begin < size;) {
        ssize_t sent = send(at->socket, rest + begin, size - begin, MSG_NOSIGNAL);
        REQUIRE(sent > 0);
        begin += (size_t)sent;
    }
    free(rest);
}

static void *own(void *context) {
    scene *at = context;
    struct pollfd polled[2] = {{at->gate, POLLIN, 0}, {at->told, POLLIN, 0}};
    uint64_t turns = 0;
    while (at->answered < SENDERS * at->requests) {
        REQUIRE(poll(polled, 2, 20) >= 0);
        uint64_t count;
        if (polled[1].revents != 0) {
            REQUIRE(read(at->told, &count, sizeof count) == sizeof count);
        }
        if (polled[1].revents != 0 || ++turns % 16 == 0) { /* as its own writes do */
            pthread_mutex_lock(&at->transport);
            write_rest(at);
            pthread_mutex_unlock(&at->transport);
        }
        look(at);
    }
    return NULL;
}

/* ---- senders ---- */

static void tell_owner(scene *at) {
    uint64_t one = 1;
    REQUIRE(write(at->told, &one, sizeof one) == sizeof one);
}

static void *send_all_of(void *context) {
    sender *self = context;
    scene *at = self->scene;
    uint64_t seed = at->seed + 100 + self->number;
    uint8_t frame[1024 + BODY];
    for (int turn = 1; turn <= at->requests; turn++) {
        omq_awaited awaited = {.opaque = (uint32_t)turn * SENDERS + self->number,
                               .event = at->events[self->number]};
        size_t size = write_frame(frame, awaited.opaque, 310, 0, draw(&seed, BODY));
        pthread_mutex_lock(&at->transport);
        REQUIRE(omq_outbox_append(at->outbox, frame, size));
        pthread_mutex_unlock(&at->transport);
        while (awaited.frame == NULL && at->by_owner[self->number] != awaited.opaque) {
            int error = 0;
            omq_flushed flushed = omq_outbox_flush(at->outbox, &error);
            REQUIRE(flushed != OMQ_FAILED);
            if (flushed == OMQ_FULL) {
                tell_owner(at);
            }
            /* Sometimes a caller stays away for a moment, as one that a signal interrupts. */
            if (draw(&seed, 30) == 0) {
                sched_yield();
            }
            omq_waited said;
            while ((said = omq_frame_stream_wait(at->stream, &awaited, 50)) == OMQ_SEALED) {
                /* Sometimes it is interrupted before it has taken them. */
                if (draw(&seed, 30) == 0) {
                    omq_frame_stream_leave(at->stream, &awaited);
                    said = OMQ_FOR_OWNER;
                    break;
                }
                open_records(at);
                said = omq_frame_stream_hand_over(at->stream, &awaited, draw(&seed, 30) == 0);
                if (said != OMQ_SEALED) {
                    break;
                }
            }
            REQUIRE(said != OMQ_STOPPED);
            if (awaited.is_ahead) {
                omq_frame_stream_pass(at->stream, &awaited);
            }
            if (said == OMQ_FOR_OWNER) {
                tell_owner(at);
            }
            REQUIRE((said == OMQ_ANSWERED) <= (awaited.frame != NULL));
        }
        if (awaited.frame != NULL) {
            omq_reply_header header;
            size_t header_size = omq_read_u32(awaited.frame) & 0xFFFFFF;
            REQUIRE(omq_read_reply_header(OMQ_HEADER_JSON, awaited.frame + 4, header_size, &header));
            REQUIRE(header.opaque == awaited.opaque && header.code == 0);
            REQUIRE(at->by_owner[self->number] != awaited.opaque);
            free(awaited.frame);
        }
        if (++at->answered == SENDERS * at->requests) {
            tell_owner(at);
        }
    }
    return NULL;
}

static void *wait_for_the_end(void *context) {
    sender *self = context;
    scene *at = self->scene;
    omq_awaited awaited = {.opaque = 1 + self->number, .event = at->events[self->number]};
    omq_waited said;
    do {
        said = omq_frame_stream_wait(at->stream, &awaited, 50);
    } while (said == OMQ_WOKEN && !at->is_left);
    REQUIRE(said == OMQ_STOPPED || at->is_left);
    REQUIRE(awaited.frame == NULL);
    return NULL;
}

void drive_waits(uint64_t *seed, int rounds) {
    for (int round = 0; round < rounds; round++) {
        scene at = {.requests = 200, .seed = (uint64_t)draw(seed, 1u << 30) + 1};
        at.is_sealed = round % 2 == 1;
        sender senders[SENDERS];
        pthread_t threads[SENDERS + 2];
        int ends[2];
        int small = 4096;
        failing = 0;
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        REQUIRE(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
        at.socket = ends[0];
        at.broker = ends[1];
        at.gate = epoll_create1(0);
        at.told = eventfd(0, 0);
        at.stream = omq_frame_stream_new(MAX_FRAME, at.is_sealed);
        at.outbox = omq_outbox_new(at.socket);
        REQUIRE(at.gate >= 0 && at.told >= 0 && at.stream != NULL && at.outbox != NULL);
        REQUIRE(pthread_mutex_init(&at.transport, NULL) == 0);
        REQUIRE(omq_frame_stream_attach(at.stream, at.socket, at.gate) == 0);
        omq_frame_stream_trust(at.stream);
        for (uint32_t i = 0; i < SENDERS; i++) {
            senders[i] = (sender){&at, i};
            at.events[i] = eventfd(0, 0);
            REQUIRE(at.events[i] >= 0);
            REQUIRE(pthread_create(&threads[i], NULL, send_all_of, &senders[i]) == 0);
        }
        REQUIRE(pthread_create(&threads[SENDERS], NULL, serve, &at) == 0);
        REQUIRE(pthread_create(&threads[SENDERS + 1], NULL, own, &at) == 0);
        for (int i = 0; i < SENDERS + 2; i++) {
            REQUIRE(pthread_join(threads[i], NULL) == 0);
        }
        /* The end, while threads wait: whoever reads is told, the others by their events. */
        REQUIRE(omq_frame_stream_buffered(at.stream) == 0);
        for (int i = 0; i < SENDERS; i++) {
            REQUIRE(pthread_create(&threads[i], NULL, wait_for_the_end, &senders[i]) == 0);
        }
        while (draw(seed, 4) > 0) {
            sched_yield();
        }
        (void)omq_frame_stream_stop(at.stream);
        omq_outbox_close(at.outbox);
        at.is_left = true;
        for (int i = 0; i < SENDERS; i++) {
            uint64_t one = 1;
            REQUIRE(write(at.events[i], &one, sizeof one) == sizeof one);
        }
        for (int i = 0; i < SENDERS; i++) {
            REQUIRE(pthread_join(threads[i], NULL) == 0);
            (void)close(at.events[i]);
        }
        REQUIRE(!omq_frame_stream_stop(at.stream));
        omq_frame_stream_free(at.stream);
        omq_outbox_free(at.outbox);
        (void)pthread_mutex_destroy(&at.transport);
        (void)close(ends[0]);
        (void)close(ends[1]);
        (void)close(at.gate);
        (void)close(at.told);
    }
}
