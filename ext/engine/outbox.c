#define _POSIX_C_SOURCE 200809L

#include "outbox.h"

#include <stdlib.h>
#include <string.h>

#include "platform.h"
#include "sockets.h"

enum { FIRST_ROOM = 4096 };

typedef struct {
    uint8_t *bytes;
    size_t begin;
    size_t end;
    size_t room;
} omq_bytes;

struct omq_outbox {
    omq_mutex writing; /* held while the socket is used; taken before `lock` */
    int socket;
    omq_bytes leaving; /* being written, or the rest that the socket did not take */

    omq_mutex lock; /* of what follows */
    omq_bytes waiting;
    bool is_writing; /* a thread will look at `waiting` again */
    bool is_owners;  /* the owner writes, or is about to: the rest must leave first */
    bool is_closed;
};

omq_outbox *omq_outbox_new(int socket) {
    omq_outbox *outbox = calloc(1, sizeof *outbox);
    if (outbox == NULL) {
        return NULL;
    }
    if (omq_mutex_init(&outbox->writing) != 0) {
        free(outbox);
        return NULL;
    }
    if (omq_mutex_init(&outbox->lock) != 0) {
        omq_mutex_destroy(&outbox->writing);
        free(outbox);
        return NULL;
    }
    outbox->socket = socket;
    return outbox;
}

void omq_outbox_free(omq_outbox *outbox) {
    if (outbox != NULL) {
        omq_mutex_destroy(&outbox->writing);
        omq_mutex_destroy(&outbox->lock);
        free(outbox->leaving.bytes);
        free(outbox->waiting.bytes);
        free(outbox);
    }
}

bool omq_outbox_append(omq_outbox *outbox, const uint8_t *bytes, size_t size) {
    omq_bytes *waiting = &outbox->waiting;
    bool is_added = false;
    omq_mutex_lock(&outbox->lock);
    if (!outbox->is_closed) {
        if (waiting->room - waiting->end < size) {
            size_t wanted = waiting->room > 0 ? 2 * waiting->room : FIRST_ROOM;
            if (wanted < waiting->end + size) {
                wanted = waiting->end + size;
            }
            uint8_t *grown = realloc(waiting->bytes, wanted);
            if (grown != NULL) {
                waiting->bytes = grown;
                waiting->room = wanted;
            }
        }
        if (waiting->room - waiting->end >= size) {
            memcpy(waiting->bytes + waiting->end, bytes, size);
            waiting->end += size;
            is_added = true;
            /* With a rest left over, only the owner can go on. */
            outbox->is_owners = outbox->is_owners && outbox->leaving.begin < outbox->leaving.end;
        }
    }
    omq_mutex_unlock(&outbox->lock);
    return is_added;
}

static bool has_waiting(const omq_outbox *outbox) {
    return !outbox->is_closed && !outbox->is_owners && outbox->waiting.begin < outbox->waiting.end;
}

omq_flushed omq_outbox_flush(omq_outbox *outbox, int *error) {
    omq_flushed said = OMQ_FLUSHED;
    omq_mutex_lock(&outbox->lock);
    if (outbox->is_writing || !has_waiting(outbox)) {
        omq_mutex_unlock(&outbox->lock);
        return said;
    }
    outbox->is_writing = true;
    omq_mutex_unlock(&outbox->lock);
    omq_mutex_lock(&outbox->writing);
    omq_mutex_lock(&outbox->lock);
    /* Asked again: the owner may have taken all meanwhile. */
    while (said == OMQ_FLUSHED && has_waiting(outbox)) {
        omq_bytes empty = outbox->leaving;
        outbox->leaving = outbox->waiting;
        empty.begin = empty.end = 0;
        outbox->waiting = empty;
        omq_mutex_unlock(&outbox->lock);
        omq_bytes *leaving = &outbox->leaving;
        ssize_t sent = omq_socket_send(outbox->socket, leaving->bytes + leaving->begin,
                                       leaving->end - leaving->begin);
        int failed = sent < OMQ_WOULD_BLOCK ? (int)-sent : 0;
        omq_mutex_lock(&outbox->lock);
        leaving->begin += sent > 0 ? (size_t)sent : 0;
        if (failed != 0) {
            *error = failed;
            said = OMQ_FAILED;
        } else if (leaving->begin < leaving->end) {
            said = OMQ_FULL;
        }
        /* Also after a failure: the connection ends, and nothing may follow half a frame. */
        outbox->is_owners = said != OMQ_FLUSHED;
    }
    outbox->is_writing = false;
    omq_mutex_unlock(&outbox->lock);
    omq_mutex_unlock(&outbox->writing);
    return said;
}

uint8_t *omq_outbox_take(omq_outbox *outbox, size_t *size) {
    uint8_t *taken = NULL;
    omq_mutex_lock(&outbox->writing);
    omq_mutex_lock(&outbox->lock);
    omq_bytes *leaving = &outbox->leaving;
    omq_bytes *waiting = &outbox->waiting;
    size_t rest = leaving->end - leaving->begin;
    *size = rest + waiting->end;
    if (*size > 0) {
        taken = malloc(*size);
    }
    if (taken != NULL) {
        if (rest > 0) {
            memcpy(taken, leaving->bytes + leaving->begin, rest);
        }
        if (waiting->end > 0) {
            memcpy(taken + rest, waiting->bytes, waiting->end);
        }
        leaving->begin = leaving->end = waiting->end = 0;
    }
    outbox->is_owners = true;
    omq_mutex_unlock(&outbox->lock);
    omq_mutex_unlock(&outbox->writing);
    return taken;
}

void omq_outbox_close(omq_outbox *outbox) {
    omq_mutex_lock(&outbox->writing);
    omq_mutex_lock(&outbox->lock);
    outbox->is_closed = true;
    omq_mutex_unlock(&outbox->lock);
    omq_mutex_unlock(&outbox->writing);
}
