/* Sockets of POSIX and of Windows, and what wakes a thread: the calls that the engine makes.
 *
 * On Windows a descriptor is the number of a SOCKET, which fits an int, and its owner has made it not
 * block, as asyncio does: there is no flag for one call. What wakes a thread is a socket there, too,
 * and may block. Errors are those of errno, or WSA's numbers. */
#ifndef OMQ_SOCKETS_H
#define OMQ_SOCKETS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef _WIN32
#include <winsock2.h>
#else
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* there Python ignores SIGPIPE */
#endif
#endif

/* No socket call fails with EPERM, which is 1. */
enum { OMQ_WOULD_BLOCK = -1 };

#ifdef _WIN32

static inline ssize_t omq_socket_result(int done) {
    if (done >= 0) {
        return done;
    }
    int error = WSAGetLastError();
    return error == WSAEWOULDBLOCK ? OMQ_WOULD_BLOCK : -(ssize_t)error;
}

static inline int omq_at_most(size_t size) { return size > 1 << 30 ? 1 << 30 : (int)size; }

static inline ssize_t omq_socket_receive(int descriptor, void *bytes, size_t room) {
    return omq_socket_result(recv((SOCKET)descriptor, bytes, omq_at_most(room), 0));
}

static inline ssize_t omq_socket_send(int descriptor, const void *bytes, size_t size) {
    return omq_socket_result(send((SOCKET)descriptor, bytes, omq_at_most(size), 0));
}

static inline int omq_sockets_poll(struct pollfd *polled, size_t count, int timeout_ms) {
    return WSAPoll(polled, (ULONG)count, timeout_ms);
}

static inline ssize_t omq_event_read(int event, void *bytes, size_t room) {
    return recv((SOCKET)event, bytes, omq_at_most(room), 0);
}

static inline void omq_event_set(int event) {
    static const uint64_t one = 1;
    (void)send((SOCKET)event, (const char *)&one, sizeof one, 0);
}

#else

/* Return how many bytes came, 0 at the end, OMQ_WOULD_BLOCK, or an error as a negative number. */
static inline ssize_t omq_socket_receive(int descriptor, void *bytes, size_t room) {
    ssize_t got;
    do {
        got = recv(descriptor, bytes, room, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got >= 0) {
        return got;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? OMQ_WOULD_BLOCK : -errno;
}

/* Return how many bytes were taken, OMQ_WOULD_BLOCK, or an error as a negative number. */
static inline ssize_t omq_socket_send(int descriptor, const void *bytes, size_t size) {
    ssize_t sent;
    do {
        sent = send(descriptor, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        return sent;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? OMQ_WOULD_BLOCK : -errno;
}

static inline int omq_sockets_poll(struct pollfd *polled, size_t count, int timeout_ms) {
    return poll(polled, (nfds_t)count, timeout_ms);
}

/* Read what an event was set to: a number of an eventfd, or many bytes of a pipe. May block. */
static inline ssize_t omq_event_read(int event, void *bytes, size_t room) {
    return read(event, bytes, room);
}

static inline void omq_event_set(int event) {
    static const uint64_t one = 1;
    while (write(event, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

#endif
#endif
