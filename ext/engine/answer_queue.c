#define _POSIX_C_SOURCE 200809L

#include "answer_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "platform.h"

typedef struct omq_kept_answer omq_kept_answer;
struct omq_kept_answer {
    omq_kept_answer *next;
    omq_answer_rows rows;
};

struct omq_answer_queue {
    omq_mutex lock;
    pthread_cond_t has_news;
    omq_kept_answer *first;
    omq_kept_answer **last;
    int64_t next; /* offset of the next pull */
    int64_t end;
    uint64_t bytes;
    uint64_t most_bytes;
    uint64_t lost;
    int64_t first_lost;
    bool is_whole;
    bool is_ended;
    omq_room_waiter waiter;
};

omq_answer_queue *omq_answer_queue_new(int64_t start, int64_t end, uint64_t most_bytes,
                                       bool is_whole) {
    omq_answer_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return NULL;
    }
    pthread_condattr_t monotonic;
    if (omq_mutex_init(&queue->lock) != 0) {
        free(queue);
        return NULL;
    }
    (void)pthread_condattr_init(&monotonic);
#ifndef __APPLE__ /* which has no such clock for conditions: there a wait may be longer or shorter */
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
#endif
    int status = pthread_cond_init(&queue->has_news, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (status != 0) {
        omq_mutex_destroy(&queue->lock);
        free(queue);
        return NULL;
    }
    queue->last = &queue->first;
    queue->next = start;
    queue->end = end;
    queue->most_bytes = most_bytes;
    queue->is_whole = is_whole;
    queue->first_lost = -1;
    return queue;
}

void omq_answer_queue_free(omq_answer_queue *queue) {
    if (queue == NULL) {
        return;
    }
    while (queue->first != NULL) {
        omq_kept_answer *kept = queue->first;
        queue->first = kept->next;
        omq_answer_release(kept->rows.answer);
        free(kept);
    }
    (void)pthread_cond_destroy(&queue->has_news);
    omq_mutex_destroy(&queue->lock);
    free(queue);
}

/* The rest is called with the lock held, where it is static. */

static void notify_waiter(omq_answer_queue *queue) {
    omq_room_waiter waiter = queue->waiter;
    queue->waiter = (omq_room_waiter){NULL, NULL};
    if (waiter.notify != NULL) {
        waiter.notify(waiter.context);
    }
}

static omq_fill_next next_step(omq_answer_queue *queue, omq_room_waiter waiter) {
    if (queue->is_ended) {
        return OMQ_FILL_REFUSED;
    }
    if (queue->next >= queue->end) {
        return OMQ_FILL_END;
    }
    if (queue->bytes > queue->most_bytes) {
        queue->waiter = waiter;
        return OMQ_FILL_WAIT;
    }
    return OMQ_FILL_MORE;
}

/* Return how many rows lie before an offset. Offsets ascend. */
static size_t rows_before(const omq_answer *answer, int64_t offset) {
    size_t low = 0;
    size_t high = answer->rows.count;
    if (high == 0 || omq_message_offset(answer->body, &answer->rows, high - 1) < offset) {
        return high; /* all but the last answer of a part */
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (omq_message_offset(answer->body, &answer->rows, middle) < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void note_lost(omq_answer_queue *queue, int64_t offset, int64_t count) {
    if (count > 0 && queue->is_whole) {
        if (queue->lost == 0) {
            queue->first_lost = offset;
        }
        queue->lost += (uint64_t)count;
    }
}

/* Count the offsets first .. next - 1 that an answer has no message for. */
static void count_lost(omq_answer_queue *queue, const omq_answer_rows *rows, int64_t first,
                       int64_t next) {
    if (!queue->is_whole || (int64_t)rows->end_row == next - first) {
        return;
    }
    int64_t wanted = first;
    for (size_t row = 0; row < rows->end_row; row++) {
        int64_t offset = omq_message_offset(rows->answer->body, &rows->answer->rows, row);
        note_lost(queue, wanted, offset - wanted);
        wanted = offset + 1;
    }
    note_lost(queue, wanted, next - wanted);
}

omq_fill_next omq_answer_queue_fill(omq_answer_queue *queue, omq_answer *answer, int64_t first,
                                    int64_t next, omq_room_waiter waiter) {
    omq_kept_answer *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        return OMQ_FILL_REFUSED;
    }
    omq_mutex_lock(&queue->lock);
    if (queue->is_ended || first != queue->next || next <= first) {
        omq_mutex_unlock(&queue->lock);
        free(kept);
        return OMQ_FILL_REFUSED;
    }
    *kept = (omq_kept_answer){NULL, {answer, 0, rows_before(answer, queue->end)}};
    count_lost(queue, &kept->rows, first, next < queue->end ? next : queue->end);
    queue->next = next;
    if (kept->rows.end_row > 0) {
        omq_answer_hold(answer);
        *queue->last = kept;
        queue->last = &kept->next;
        queue->bytes += answer->size;
    } else {
        free(kept);
    }
    omq_fill_next then = next_step(queue, waiter);
    (void)pthread_cond_signal(&queue->has_news);
    omq_mutex_unlock(&queue->lock);
    return then;
}

omq_fill_next omq_answer_queue_may_fill(omq_answer_queue *queue, omq_room_waiter waiter) {
    omq_mutex_lock(&queue->lock);
    omq_fill_next then = next_step(queue, waiter);
    omq_mutex_unlock(&queue->lock);
    return then;
}

void omq_answer_queue_forget_waiter(omq_answer_queue *queue, const void *context) {
    omq_mutex_lock(&queue->lock);
    if (queue->waiter.context == context) {
        queue->waiter = (omq_room_waiter){NULL, NULL};
    }
    omq_mutex_unlock(&queue->lock);
}

void omq_answer_queue_skip(omq_answer_queue *queue, int64_t next) {
    omq_mutex_lock(&queue->lock);
    queue->next = next > queue->next ? next : queue->next;
    (void)pthread_cond_signal(&queue->has_news);
    omq_mutex_unlock(&queue->lock);
}

int64_t omq_answer_queue_next(omq_answer_queue *queue) {
    omq_mutex_lock(&queue->lock);
    int64_t next = queue->next;
    omq_mutex_unlock(&queue->lock);
    return next;
}

void omq_answer_queue_end(omq_answer_queue *queue) {
    omq_mutex_lock(&queue->lock);
    queue->is_ended = true;
    notify_waiter(queue);
    (void)pthread_cond_signal(&queue->has_news);
    omq_mutex_unlock(&queue->lock);
}

static struct timespec deadline_in(int64_t wait_ms) {
    struct timespec at;
#ifdef __APPLE__
    (void)clock_gettime(CLOCK_REALTIME, &at);
#else
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
#endif
    at.tv_sec += (time_t)(wait_ms / 1000);
    at.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

omq_taken omq_answer_queue_take(omq_answer_queue *queue, size_t most, int64_t wait_ms,
                                omq_answer_rows *rows) {
    struct timespec deadline = deadline_in(wait_ms);
    int status = 0;
    omq_mutex_lock(&queue->lock);
    while (queue->first == NULL && !queue->is_ended && queue->next < queue->end &&
           status != ETIMEDOUT) {
        status = wait_ms > 0 ? pthread_cond_timedwait(&queue->has_news, &queue->lock, &deadline)
                             : ETIMEDOUT;
    }
    omq_kept_answer *kept = queue->first;
    omq_taken taken = OMQ_TAKEN_SOME;
    if (kept == NULL) {
        bool is_over = queue->is_ended || queue->next >= queue->end;
        taken = is_over ? OMQ_TAKEN_ALL : OMQ_TAKEN_NONE;
    } else if (kept->rows.end_row - kept->rows.first_row > most) {
        *rows = kept->rows;
        rows->end_row = rows->first_row + most;
        kept->rows.first_row = rows->end_row;
        omq_answer_hold(rows->answer);
        kept = NULL;
    } else {
        *rows = kept->rows; /* with its hold */
        queue->first = kept->next;
        if (queue->first == NULL) {
            queue->last = &queue->first;
        }
        queue->bytes -= kept->rows.answer->size;
        if (queue->waiter.notify != NULL && queue->bytes <= queue->most_bytes / 2) {
            notify_waiter(queue);
        }
    }
    omq_mutex_unlock(&queue->lock);
    free(kept);
    return taken;
}

uint64_t omq_answer_queue_lost(omq_answer_queue *queue, int64_t *first) {
    omq_mutex_lock(&queue->lock);
    uint64_t lost = queue->lost;
    *first = queue->first_lost;
    omq_mutex_unlock(&queue->lock);
    return lost;
}
