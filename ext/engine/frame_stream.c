#define _GNU_SOURCE

#include "frame_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/epoll.h>
#endif

#include "buffer.h"
#include "bytes.h"
#include "platform.h"
#include "reply_header.h"
#include "sockets.h"
#include "tls_record.h"

enum {
    AT_ONCE = 64 * 1024,  /* bytes of one read */
    BUCKETS = 64          /* of awaited answers, a power of two */
};

struct omq_frame_stream {
    size_t max_frame_bytes;

    omq_mutex lock; /* of all that follows, but the bytes belong to whoever has the turn */
    omq_buffer plain;  /* what no frame was dropped of */
    omq_buffer sealed; /* records of TLS, if it is sealed: `plain` is what was in those before */
    bool is_sealed;    /* fixed */
    size_t frame_size; /* of the frame that `next` returned last; 0: none since `drop` */
    bool is_broken;
    uint64_t received; /* bytes, by threads that waited */
    uint64_t answered; /* frames, handed to them */

    int socket;
    int gate;
    int error; /* of the socket, met by a thread: the owner is told by its next `receive` */
    bool is_gate_open;
    bool is_trusted;   /* threads that wait may read */
    bool is_mixed;     /* what comes is the owner's, too: it reads */
    bool is_read;      /* somebody has the turn */
    bool is_stopped;
    omq_awaited *reader; /* of the threads, if one has the turn */
    omq_awaited *heir; /* woken to take the turn; until then the gate stays closed */
    omq_awaited *sleepers;
    omq_awaited *awaited[BUCKETS];
    bool is_one_ahead; /* a thread that is answered will wake the first of the line */
    omq_awaited *line;
    omq_awaited **line_end;
};

omq_frame_stream *omq_frame_stream_new(size_t max_frame_bytes, bool is_sealed) {
    omq_frame_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL || omq_mutex_init(&stream->lock) != 0) {
        free(stream);
        return NULL;
    }
    stream->max_frame_bytes = max_frame_bytes;
    stream->is_sealed = is_sealed;
    stream->socket = stream->gate = -1;
    stream->line_end = &stream->line;
    return stream;
}

void omq_frame_stream_free(omq_frame_stream *stream) {
    if (stream != NULL) {
        omq_mutex_destroy(&stream->lock);
        free(stream->plain.bytes);
        free(stream->sealed.bytes);
        free(stream);
    }
}

/* ---- frames; under the lock ---- */

/* What the socket's bytes are added to. */
static omq_buffer *received(omq_frame_stream *stream) {
    return stream->is_sealed ? &stream->sealed : &stream->plain;
}

static bool next_frame(omq_frame_stream *stream, omq_frame *frame) {
    stream->frame_size = 0;
    const omq_buffer *plain = &stream->plain;
    if (stream->is_broken || plain->begin == plain->end) {
        return false;
    }
    omq_frame_state state = omq_frame_read(plain->bytes + plain->begin, plain->end - plain->begin,
                                           stream->max_frame_bytes, frame);
    stream->is_broken = state == OMQ_FRAME_NONE;
    if (state != OMQ_FRAME_WHOLE) {
        return false;
    }
    stream->frame_size = frame->size;
    return true;
}

static void drop_frame(omq_frame_stream *stream) {
    stream->plain.begin += stream->frame_size;
    stream->frame_size = 0;
}

static omq_awaited **find(omq_frame_stream *stream, uint32_t opaque) {
    omq_awaited **at = &stream->awaited[opaque % BUCKETS];
    while (*at != NULL && (*at)->opaque != opaque) {
        at = &(*at)->next;
    }
    return at;
}

/* Under the lock, which a thread takes before it lets its event go. The descriptor is not full:
 * its thread reads it in each wait. */
static void wake(const omq_awaited *awaited) { omq_event_set(awaited->event); }

static void note_stored(omq_awaited *awaited, const omq_reply_header *header,
                        const omq_frame *frame) {
    awaited->queue_id = omq_offset_of(header->queue_id);
    awaited->queue_offset = omq_offset_of(header->queue_offset);
    if (header->message_id.size > 0 && awaited->queue_id >= 0 && awaited->queue_offset >= 0 &&
        !header->has_recall_handle) {
        const uint8_t *begin = frame->header - 4;
        awaited->message_ids.bytes = awaited->frame + (header->message_id.bytes - begin);
        awaited->message_ids.size = header->message_id.size;
    }
}

/* Hand a frame to the thread that waits for it; false: it is the owner's. */
static bool hand_over(omq_frame_stream *stream, const omq_frame *frame, const omq_awaited *reader) {
    omq_reply_header header;
    if (!omq_read_reply_header(frame->encoding, frame->header, frame->header_size, &header) ||
        header.is_odd || header.code != 0 || !omq_is_answer(&header)) {
        return false;
    }
    omq_awaited **at = find(stream, (uint32_t)header.opaque);
    omq_awaited *awaited = *at;
    if (awaited == NULL) {
        return false;
    }
    size_t size = stream->frame_size - 4;
    uint8_t *copy = malloc(size);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, frame->header - 4, size);
    *at = awaited->next;
    awaited->frame = copy;
    awaited->size = size;
    note_stored(awaited, &header, frame);
    stream->answered++;
    if (stream->is_one_ahead && awaited != reader) {
        awaited->behind = NULL;
        *stream->line_end = awaited;
        stream->line_end = &awaited->behind;
        return true;
    }
    awaited->is_ahead = !stream->is_one_ahead;
    stream->is_one_ahead = true;
    if (awaited != reader) {
        wake(awaited);
    }
    return true;
}

/* Take a thread that woke by itself out of the line. */
static void leave_line(omq_frame_stream *stream, const omq_awaited *awaited) {
    for (omq_awaited **at = &stream->line; *at != NULL; at = &(*at)->behind) {
        if (*at == awaited) {
            *at = awaited->behind;
            if (stream->line_end == &awaited->behind) {
                stream->line_end = at;
            }
            return;
        }
    }
}

void omq_frame_stream_pass(omq_frame_stream *stream, omq_awaited *awaited) {
    omq_mutex_lock(&stream->lock);
    omq_awaited *next = stream->line;
    awaited->is_ahead = false;
    stream->is_one_ahead = next != NULL;
    if (next != NULL) {
        leave_line(stream, next);
        next->is_ahead = true;
        wake(next);
    }
    omq_mutex_unlock(&stream->lock);
}

/* Hand over the next frames; true: one for the owner follows, or something that is none. */
static bool hand_over_all(omq_frame_stream *stream, omq_frame *frame, const omq_awaited *reader) {
    while (next_frame(stream, frame)) {
        if (!hand_over(stream, frame, reader)) {
            return true;
        }
        drop_frame(stream);
    }
    return stream->is_broken;
}

bool omq_frame_stream_add(omq_frame_stream *stream, const uint8_t *bytes, size_t size) {
    omq_mutex_lock(&stream->lock);
    omq_buffer *in = received(stream);
    bool is_added = omq_buffer_make_room(in, size);
    if (is_added && size > 0) {
        memcpy(in->bytes + in->end, bytes, size);
        in->end += size;
    }
    omq_mutex_unlock(&stream->lock);
    return is_added;
}

bool omq_frame_stream_next(omq_frame_stream *stream, omq_frame *frame) {
    omq_mutex_lock(&stream->lock);
    bool is_there = hand_over_all(stream, frame, NULL) && !stream->is_broken;
    omq_mutex_unlock(&stream->lock);
    return is_there;
}

void omq_frame_stream_drop(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    drop_frame(stream);
    omq_mutex_unlock(&stream->lock);
}

bool omq_frame_stream_is_broken(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    bool is_broken = stream->is_broken;
    omq_mutex_unlock(&stream->lock);
    return is_broken;
}

const uint8_t *omq_frame_stream_rest(omq_frame_stream *stream, size_t *size) {
    omq_mutex_lock(&stream->lock);
    const omq_buffer *plain = &stream->plain;
    const uint8_t *rest = plain->bytes + plain->begin;
    *size = plain->end - plain->begin;
    omq_mutex_unlock(&stream->lock);
    return rest;
}

size_t omq_frame_stream_buffered(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    const omq_buffer *plain = &stream->plain;
    const omq_buffer *sealed = &stream->sealed;
    size_t size = (plain->end - plain->begin) + (sealed->end - sealed->begin);
    omq_mutex_unlock(&stream->lock);
    return size;
}

void omq_frame_stream_counts(omq_frame_stream *stream, uint64_t *bytes, uint64_t *frames) {
    omq_mutex_lock(&stream->lock);
    *bytes = stream->received;
    *frames = stream->answered;
    omq_mutex_unlock(&stream->lock);
}

/* ---- the gate and the turn; under the lock ---- */

static int change_gate(omq_frame_stream *stream, int what, bool is_open) {
#ifdef __linux__
    struct epoll_event event = {.events = is_open ? (uint32_t)EPOLLIN : 0};
    if (epoll_ctl(stream->gate, what, stream->socket, &event) != 0) {
        return errno;
    }
    stream->is_gate_open = is_open;
    return 0;
#else
    (void)stream, (void)what, (void)is_open;
    return ENOSYS;
#endif
}

#ifdef __linux__
enum { ADD = EPOLL_CTL_ADD, CHANGE = EPOLL_CTL_MOD, REMOVE = EPOLL_CTL_DEL };
#else
enum { ADD, CHANGE, REMOVE };
#endif

static bool may_read(const omq_frame_stream *stream) {
    return !stream->is_read && stream->gate >= 0 && stream->is_trusted && !stream->is_mixed && !stream->is_stopped;
}

/* Give the turn to the thread that fell asleep last, for its answer comes last; without one the
 * owner reads. */
static void pass_on(omq_frame_stream *stream) {
    omq_awaited *heir = stream->sleepers;
    while (heir != NULL && heir->frame != NULL) { /* it is about to leave */
        heir = heir->sleeping;
    }
    stream->heir = NULL;
    if (may_read(stream) && heir != NULL && !stream->is_gate_open) {
        stream->heir = heir;
        heir->is_heir = true;
        wake(heir);
    } else if (!stream->is_read && !stream->is_stopped && stream->gate >= 0 &&
               !stream->is_gate_open) {
        (void)change_gate(stream, CHANGE, true);
    }
}

int omq_frame_stream_attach(omq_frame_stream *stream, int socket, int gate) {
    omq_mutex_lock(&stream->lock);
    int error = 0;
    if (!stream->is_stopped) {
        stream->socket = socket;
        stream->gate = gate;
        error = change_gate(stream, ADD, true);
    }
    omq_mutex_unlock(&stream->lock);
    return error;
}

void omq_frame_stream_trust(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    stream->is_trusted = true;
    omq_mutex_unlock(&stream->lock);
}

bool omq_frame_stream_begin(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    bool is_free = !stream->is_read && !stream->is_stopped;
    if (is_free) {
        stream->is_read = true;
        stream->heir = NULL;
    }
    omq_mutex_unlock(&stream->lock);
    return is_free;
}

static ssize_t receive(omq_frame_stream *stream) {
    omq_buffer *in = received(stream);
    if (stream->socket < 0) {
        return OMQ_WOULD_BLOCK;
    }
    if (!omq_buffer_make_room(in, AT_ONCE)) {
        return -ENOMEM;
    }
    ssize_t got = omq_socket_receive(stream->socket, in->bytes + in->end, in->room - in->end);
    if (got > 0) {
        in->end += (size_t)got;
    }
    return got;
}

ssize_t omq_frame_stream_receive(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    ssize_t got = stream->error != 0 ? -stream->error : receive(stream);
    omq_mutex_unlock(&stream->lock);
    return got;
}

void omq_frame_stream_end(omq_frame_stream *stream, bool are_waiters_alone) {
    omq_mutex_lock(&stream->lock);
    stream->is_read = false;
    stream->is_mixed = !are_waiters_alone;
    pass_on(stream);
    omq_mutex_unlock(&stream->lock);
}

bool omq_frame_stream_stop(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    if (!stream->is_stopped) {
        stream->is_stopped = true;
        if (stream->gate >= 0) {
            (void)change_gate(stream, REMOVE, false);
        }
        if (stream->reader != NULL) {
            wake(stream->reader);
        }
    }
    bool is_read = stream->reader != NULL;
    omq_mutex_unlock(&stream->lock);
    return is_read;
}

/* ---- records of TLS ---- */

/* Under the lock. */
static size_t whole_records(const omq_frame_stream *stream, size_t *count) {
    const omq_buffer *sealed = &stream->sealed;
    *count = 0;
    if (sealed->begin == sealed->end) {
        return 0;
    }
    return omq_whole_records(sealed->bytes + sealed->begin, sealed->end - sealed->begin, count);
}

static bool has_records(const omq_frame_stream *stream) {
    size_t count = 0;
    (void)whole_records(stream, &count);
    return count > 0;
}

bool omq_frame_stream_has_records(omq_frame_stream *stream) {
    omq_mutex_lock(&stream->lock);
    bool is_there = has_records(stream);
    omq_mutex_unlock(&stream->lock);
    return is_there;
}

const uint8_t *omq_frame_stream_take_records(omq_frame_stream *stream, size_t *size,
                                             size_t *count) {
    omq_mutex_lock(&stream->lock);
    *size = whole_records(stream, count);
    const uint8_t *records = *count > 0 ? stream->sealed.bytes + stream->sealed.begin : NULL;
    stream->sealed.begin += *size;
    omq_mutex_unlock(&stream->lock);
    return records;
}

uint8_t *omq_frame_stream_room(omq_frame_stream *stream, size_t size) {
    omq_mutex_lock(&stream->lock);
    omq_buffer *plain = &stream->plain;
    uint8_t *room = omq_buffer_make_room(plain, size) ? plain->bytes + plain->end : NULL;
    omq_mutex_unlock(&stream->lock);
    return room;
}

void omq_frame_stream_opened(omq_frame_stream *stream, size_t size) {
    omq_mutex_lock(&stream->lock);
    stream->plain.end += size;
    if (stream->reader != NULL) {
        stream->received += size;
    }
    omq_mutex_unlock(&stream->lock);
}

/* ---- threads that wait ---- */

/* Read, with the turn, until the thread's own answer is here or it must do something else. Under
 * the lock, but for the sleep. */
static omq_waited read_all(omq_frame_stream *stream, omq_awaited *awaited, int timeout_ms) {
    struct pollfd polled[2] = {{stream->socket, POLLIN, 0}, {awaited->event, POLLIN, 0}};
    omq_frame frame;
    for (;;) {
        if (has_records(stream)) {
            return OMQ_SEALED;
        }
        omq_mutex_unlock(&stream->lock);
        int found = omq_sockets_poll(polled, 2, timeout_ms);
        bool is_woken = found <= 0 || polled[1].revents != 0;
        if (found > 0 && polled[1].revents != 0) {
            uint8_t counts[512]; /* a pipe may hold many bytes */
            (void)!omq_event_read(awaited->event, counts, sizeof counts);
        }
        omq_mutex_lock(&stream->lock);
        if (stream->is_stopped) {
            return OMQ_STOPPED;
        }
        if (found > 0 && polled[0].revents != 0) {
            ssize_t got = receive(stream);
            if (got > 0 && !stream->is_sealed) {
                stream->received += (uint64_t)got;
            }
            if (got == 0 || got < OMQ_WOULD_BLOCK) {
                stream->error = (int)-got;
                return OMQ_FOR_OWNER;
            }
            if (hand_over_all(stream, &frame, awaited)) {
                return OMQ_FOR_OWNER;
            }
        }
        if (awaited->frame != NULL) {
            return OMQ_ANSWERED;
        }
        if (is_woken) {
            /* Nothing more tells of records that came with that, and the thread may be done. */
            return has_records(stream) ? OMQ_FOR_OWNER : OMQ_WOKEN;
        }
    }
}

/* Take the turn; false: the owner must read. Under the lock. */
static bool begin_turn(omq_frame_stream *stream, omq_awaited *awaited) {
    if (stream->is_gate_open && change_gate(stream, CHANGE, false) != 0) {
        stream->is_mixed = true; /* as if the owner had to read: it meets the error */
        return false;
    }
    stream->heir = NULL;
    stream->is_read = true;
    stream->reader = awaited;
    return true;
}

/* Give it back. Under the lock. */
static void end_turn(omq_frame_stream *stream, omq_waited said) {
    stream->is_read = false;
    stream->reader = NULL;
    if (said == OMQ_FOR_OWNER) {
        stream->is_mixed = true;
    }
    pass_on(stream);
}

/* Take a thread off all lists, and return how its wait ended. Under the lock. */
static omq_waited end_wait(omq_frame_stream *stream, omq_awaited *awaited, omq_waited said) {
    if (awaited->frame == NULL) {
        omq_awaited **at = &stream->awaited[awaited->opaque % BUCKETS];
        while (*at != awaited) {
            at = &(*at)->next;
        }
        *at = awaited->next;
    } else {
        said = said == OMQ_WOKEN ? OMQ_ANSWERED : said;
        if (!awaited->is_ahead) {
            leave_line(stream, awaited);
        }
    }
    if (stream->heir == awaited) {
        pass_on(stream);
    }
    return said;
}

/* Sleep until woken; under the lock, but for the sleep. Returns whether that was only to take the
 * turn: an eventfd counts how often it was set. */
static bool sleep_until_woken(omq_frame_stream *stream, omq_awaited *awaited) {
    uint64_t count = 0;
    awaited->is_heir = false;
    awaited->sleeping = stream->sleepers;
    stream->sleepers = awaited;
    omq_mutex_unlock(&stream->lock);
    ssize_t size = omq_event_read(awaited->event, &count, sizeof count);
    omq_mutex_lock(&stream->lock);
    omq_awaited **at = &stream->sleepers;
    while (*at != awaited) {
        at = &(*at)->sleeping;
    }
    *at = awaited->sleeping;
    return awaited->is_heir && size == sizeof count && count == 1;
}

omq_waited omq_frame_stream_wait(omq_frame_stream *stream, omq_awaited *awaited, int timeout_ms) {
    omq_waited said = OMQ_WOKEN;
    omq_mutex_lock(&stream->lock);
    bool has_turn = stream->reader == awaited; /* since it deciphered what came before */
    if (!has_turn) {
        omq_awaited **bucket = &stream->awaited[awaited->opaque % BUCKETS];
        awaited->next = *bucket;
        *bucket = awaited;
        bool is_woken = false;
        while (!is_woken && !may_read(stream)) {
            is_woken = !sleep_until_woken(stream, awaited) || awaited->frame != NULL;
        }
        if (!is_woken) {
            has_turn = begin_turn(stream, awaited);
            said = has_turn ? said : OMQ_FOR_OWNER;
        }
    }
    if (has_turn) {
        said = read_all(stream, awaited, timeout_ms);
    }
    if (said != OMQ_SEALED) {
        if (has_turn) {
            end_turn(stream, said);
        }
        said = end_wait(stream, awaited, said);
    }
    omq_mutex_unlock(&stream->lock);
    return said;
}

omq_waited omq_frame_stream_hand_over(omq_frame_stream *stream, omq_awaited *awaited,
                                      bool is_over) {
    omq_frame frame;
    omq_waited said = OMQ_SEALED;
    omq_mutex_lock(&stream->lock);
    if (stream->is_stopped) {
        said = OMQ_STOPPED;
    } else if (hand_over_all(stream, &frame, awaited) || is_over) {
        said = OMQ_FOR_OWNER;
    } else if (awaited->frame != NULL) {
        said = OMQ_ANSWERED;
    }
    if (said != OMQ_SEALED) {
        end_turn(stream, said);
        said = end_wait(stream, awaited, said);
    }
    omq_mutex_unlock(&stream->lock);
    return said;
}

void omq_frame_stream_leave(omq_frame_stream *stream, omq_awaited *awaited) {
    omq_mutex_lock(&stream->lock);
    end_turn(stream, OMQ_FOR_OWNER);
    (void)end_wait(stream, awaited, OMQ_FOR_OWNER);
    omq_mutex_unlock(&stream->lock);
}
