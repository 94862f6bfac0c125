#include "shared_room.h"

#include <stdlib.h>

#include "platform.h"

struct omq_shared_room {
    omq_mutex mutex; /* guards all of it */
    size_t holders;
    size_t most;
    size_t pending;
    omq_room_share *waiting;
};

omq_shared_room *omq_shared_room_new(size_t messages) {
    omq_shared_room *room = calloc(1, sizeof *room);
    if (room != NULL && omq_mutex_init(&room->mutex) != 0) {
        free(room);
        return NULL;
    }
    if (room != NULL) {
        room->holders = 1;
        room->most = messages;
    }
    return room;
}

void omq_shared_room_release(omq_shared_room *room) {
    omq_mutex_lock(&room->mutex);
    bool is_last = --room->holders == 0;
    omq_mutex_unlock(&room->mutex);
    if (is_last) {
        omq_mutex_destroy(&room->mutex);
        free(room);
    }
}

size_t omq_shared_room_pending(omq_shared_room *room) {
    omq_mutex_lock(&room->mutex);
    size_t pending = room->pending;
    omq_mutex_unlock(&room->mutex);
    return pending;
}

/* The next two under the mutex. */

static void unlink_waiter(omq_room_share *share) {
    if (share->link != NULL) {
        *share->link = share->next;
        if (share->next != NULL) {
            share->next->link = share->link;
        }
        share->link = NULL;
        share->next = NULL;
    }
}

static void tell_waiters(omq_shared_room *room) {
    /* Half empty first: to wake them for each message costs more than it gives. */
    while (room->waiting != NULL && room->pending < room->most / 2 + 1) {
        omq_room_waiter waiter = room->waiting->waiter;
        unlink_waiter(room->waiting);
        waiter.notify(waiter.context);
    }
}

void omq_room_share_join(omq_room_share *share, omq_shared_room *room) {
    if (share->room == room) {
        return;
    }
    omq_room_share_leave(share);
    omq_mutex_lock(&room->mutex);
    room->holders++;
    omq_mutex_unlock(&room->mutex);
    share->room = room;
}

void omq_room_share_leave(omq_room_share *share) {
    if (share->room != NULL) {
        omq_room_share_count(share, 0);
        omq_room_share_forget_waiter(share);
        omq_shared_room_release(share->room);
        share->room = NULL;
    }
}

void omq_room_share_count(omq_room_share *share, size_t pending) {
    omq_shared_room *room = share->room;
    if (pending != share->pending) {
        omq_mutex_lock(&room->mutex);
        room->pending = room->pending - share->pending + pending;
        tell_waiters(room);
        omq_mutex_unlock(&room->mutex);
        share->pending = pending;
    }
}

bool omq_room_share_wait(omq_room_share *share, omq_room_waiter waiter) {
    omq_shared_room *room = share->room;
    omq_mutex_lock(&room->mutex);
    bool waits = room->pending > room->most;
    if (waits) {
        unlink_waiter(share);
        share->waiter = waiter;
        share->next = room->waiting;
        share->link = &room->waiting;
        if (share->next != NULL) {
            share->next->link = &share->next;
        }
        room->waiting = share;
    }
    omq_mutex_unlock(&room->mutex);
    return waits;
}

void omq_room_share_forget_waiter(omq_room_share *share) {
    omq_mutex_lock(&share->room->mutex);
    unlink_waiter(share);
    omq_mutex_unlock(&share->room->mutex);
}
