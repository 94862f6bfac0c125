/* Pairs of connected sockets for the drivers, on POSIX and on Windows, which has none ready made. */
#ifndef OMQ_SANITIZE_SOCKETS_H
#define OMQ_SANITIZE_SOCKETS_H

#include "sanitize.h"
#include "sockets.h"

#ifdef _WIN32

static inline void socket_pair(int pair[2]) {
    static bool is_begun;
    WSADATA data;
    REQUIRE(is_begun || WSAStartup(MAKEWORD(2, 2), &data) == 0);
    is_begun = true;
    struct sockaddr_in address = {.sin_family = AF_INET};
    int size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SOCKET listening = socket(AF_INET, SOCK_STREAM, 0);
    SOCKET first = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listening, (struct sockaddr *)&address, size) == 0 && listen(listening, 1) == 0);
    REQUIRE(getsockname(listening, (struct sockaddr *)&address, &size) == 0);
    REQUIRE(connect(first, (struct sockaddr *)&address, size) == 0);
    pair[0] = (int)first;
    pair[1] = (int)accept(listening, NULL, NULL);
    REQUIRE(pair[1] >= 0);
    (void)closesocket(listening);
}

static inline void let_not_block(int socket) {
    u_long is_on = 1;
    REQUIRE(ioctlsocket((SOCKET)socket, FIONBIO, &is_on) == 0);
}

static inline void close_socket(int socket) { (void)closesocket((SOCKET)socket); }

#else

#include <fcntl.h>

static inline void socket_pair(int pair[2]) {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
}

static inline void let_not_block(int socket) { REQUIRE(fcntl(socket, F_SETFL, O_NONBLOCK) == 0); }

static inline void close_socket(int socket) { (void)close(socket); }

#endif

/* Block until all of it is sent, or received; false at the end of the connection. */
static inline bool send_whole(int socket, const uint8_t *bytes, size_t size) {
#ifdef _WIN32
    enum { FLAGS = 0 };
#else
    enum { FLAGS = MSG_NOSIGNAL };
#endif
    while (size > 0) {
        ssize_t sent = send(socket, (const char *)bytes, size, FLAGS);
        if (sent <= 0) {
            return false;
        }
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

static inline bool receive_whole(int socket, uint8_t *bytes, size_t size) {
    while (size > 0) {
        ssize_t got = recv(socket, (char *)bytes, size, 0);
        if (got <= 0) {
            return false;
        }
        bytes += got;
        size -= (size_t)got;
    }
    return true;
}

#endif
