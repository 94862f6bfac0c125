/* The least that a load of sends can cost: requests that are ready, on one blocking socket, in one
 * thread. `ready_sender IPV4 PORT FILE REQUESTS WARM IN_FLIGHT`; the file has the requests' frames,
 * one after the other. IN_FLIGHT of them are unanswered at a time; each answer, which must be a
 * success, lets the next one go. The clock starts behind WARM of them, when none is in flight.
 * Prints the line of bench/peers/README.md.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 20, HEAD = 8 };
static const char success[] = "{\"code\":0,"; /* as ordermq's broker and Java's begin a header */

static int broker;
static char *requests;
static size_t *begins; /* of each request, and the end of the last */
static char answers[ROOM];
static size_t held;

static void fail(const char *what) {
    fprintf(stderr, "ready_sender: %s%s%s\n", what, errno ? ": " : "",
            errno ? strerror(errno) : "");
    exit(1);
}

static size_t argument(const char *text, long least) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least) {
        fprintf(stderr, "ready_sender: %s: expected %ld or more\n", text, least);
        exit(2);
    }
    return (size_t)value;
}

static uint32_t length_at(const char *at) {
    uint32_t length;
    memcpy(&length, at, sizeof length);
    return ntohl(length);
}

static void load(const char *path, size_t count) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        fail(path);
    size_t size = (size_t)ftell(file), at = 0;
    rewind(file);
    requests = malloc(size);
    begins = malloc((count + 1) * sizeof *begins);
    if (requests == NULL || begins == NULL || fread(requests, 1, size, file) != size)
        fail(path);
    (void)fclose(file);
    for (size_t i = 0; i < count; i++) {
        begins[i] = at;
        if (size - at < 4 || size - at - 4 < length_at(requests + at))
            fail("the file has fewer requests");
        at += 4 + length_at(requests + at);
    }
    begins[count] = at;
}

static void send_some(size_t first, size_t end) {
    for (size_t at = begins[first]; at < begins[end];) {
        ssize_t sent = write(broker, requests + at, begins[end] - at);
        if (sent <= 0)
            fail("write");
        at += (size_t)sent;
    }
}

/* Wait for answers; return how many came whole. */
static size_t receive(void) {
    ssize_t got = read(broker, answers + held, ROOM - held);
    size_t at = 0, count = 0;
    if (got <= 0)
        fail(got == 0 ? "the broker closed the connection" : "read");
    held += (size_t)got;
    while (held - at >= HEAD && held - at - 4 >= length_at(answers + at)) {
        if (memcmp(answers + at + HEAD, success, sizeof success - 1) != 0)
            fail("not stored as it should be");
        at += 4 + length_at(answers + at);
        count++;
    }
    held -= at;
    memmove(answers, answers + at, held);
    return count;
}

static void run(size_t first, size_t end, size_t in_flight) {
    size_t sent = end - first < in_flight ? end : first + in_flight, done = first;
    send_some(first, sent);
    while (done < end) {
        size_t count = receive();
        done += count;
        size_t more = end - sent < count ? end : sent + count;
        send_some(sent, more);
        sent = more;
    }
}

static double seconds(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 7) {
        fprintf(stderr, "usage: ready_sender IPV4 PORT FILE REQUESTS WARM IN_FLIGHT\n");
        return 2;
    }
    size_t port = argument(words[2], 1), all = argument(words[4], 1), warm = argument(words[5], 0);
    size_t in_flight = argument(words[6], 1);
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (warm > all || inet_pton(AF_INET, words[1], &address.sin_addr) != 1)
        fail("not a warm-up or an address");
    load(words[3], all);
    broker = socket(AF_INET, SOCK_STREAM, 0);
    if (broker < 0 || connect(broker, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(broker, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        fail("connect");
    run(0, warm, in_flight);
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    run(warm, all, in_flight);
    printf("{\"peer\": \"requests that are ready\", \"messages\": %zu, \"seconds\": %.6f, "
           "\"cpu_seconds\": %.6f, \"detail\": {}}\n",
           all - warm, seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    return 0;
}
