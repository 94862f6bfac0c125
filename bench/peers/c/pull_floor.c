/* The least that a catch-up can cost: pulls on one blocking socket, in one thread, and drops what
 * comes. `pull_floor IPV4 PORT TOPIC QUEUES PULL_SIZE MESSAGES WARM`; one pull per queue is in
 * flight. Of each answer it reads the header's code, opaque and next offset, and walks the records
 * of the body by their sizes; their number must be that of the offsets. No listener, no group, no
 * locks, no commits. Prints the line of bench/peers/README.md.
 */
#define _GNU_SOURCE /* memmem */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_QUEUES = 4096,
    REQUEST_BYTES = 1024, /* at most, of one pull */
    LEAST_ROOM = 1 << 20, /* for one read */
    PULL_MESSAGE = 11,
    SUCCESS = 0,
    NOT_FOUND = 19,
    RETRY = 20,
    SUBSCRIPTION = 4, /* of sysFlag: the request carries the filter */
};

struct bytes {
    char *at;
    size_t used, room;
};

static int broker;
static const char *topic;
static long pull_size;
static int64_t next_offset[MAX_QUEUES];
static struct bytes requests, answers;

static void fail(const char *what) {
    fprintf(stderr, "pull_floor: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static long argument(const char *text, long least, long most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "pull_floor: %s: expected %ld..%ld\n", text, least, most);
        exit(2);
    }
    return value;
}

static void reserve(struct bytes *bytes, size_t more) {
    if (bytes->used + more <= bytes->room)
        return;
    bytes->room = 2 * (bytes->used + more);
    bytes->at = realloc(bytes->at, bytes->room);
    if (bytes->at == NULL)
        fail("no memory");
}

static uint32_t big_endian(const char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return ntohl(value);
}

static void put_big_endian(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, sizeof value);
}

/* Add the pull of a queue to `requests`; the opaque of a request is its queue. */
static void add_pull(int queue) {
    reserve(&requests, REQUEST_BYTES);
    char *frame = requests.at + requests.used;
    int header = snprintf(
        frame + 8, REQUEST_BYTES - 8,
        "{\"code\":%d,\"language\":\"OTHER\",\"version\":399,\"opaque\":%d,\"flag\":0,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"extFields\":{\"consumerGroup\":\"pull_floor\","
        "\"topic\":\"%s\",\"queueId\":\"%d\",\"queueOffset\":\"%" PRId64 "\",\"maxMsgNums\":\"%ld\","
        "\"sysFlag\":\"%d\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\","
        "\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\"}}",
        PULL_MESSAGE, queue, topic, queue, next_offset[queue], pull_size, SUBSCRIPTION);
    if (header >= REQUEST_BYTES - 8)
        fail("the topic's name is too long");
    put_big_endian(frame, (uint32_t)header + 4);
    put_big_endian(frame + 4, (uint32_t)header);
    requests.used += (size_t)header + 8;
}

static void send_requests(void) {
    for (size_t sent = 0; sent < requests.used;) {
        ssize_t wrote = write(broker, requests.at + sent, requests.used - sent);
        if (wrote > 0)
            sent += (size_t)wrote;
        else if (errno != EINTR)
            fail("write");
    }
    requests.used = 0;
}

/* Return the number behind `name`, with or without quotes around it; the header must have it. */
static int64_t field(const char *header, size_t size, const char *name) {
    size_t length = strlen(name);
    const char *found = memmem(header, size, name, length);
    if (found == NULL) {
        fprintf(stderr, "pull_floor: no %s in %.*s\n", name, (int)size, header);
        exit(1);
    }
    const char *at = found + length, *end = header + size;
    int64_t value = 0;
    while (at < end && (*at == ':' || *at == '"' || *at == ' '))
        at++;
    for (; at < end && *at >= '0' && *at <= '9'; at++)
        value = 10 * value + (*at - '0');
    return value;
}

/* Walk the records of a body; return how many there are. */
static int64_t count_records(const char *body, const char *end) {
    int64_t count = 0;
    while (end - body >= 4) {
        uint32_t size = big_endian(body);
        if (size < 4 || size > (size_t)(end - body))
            fail("an answer ends within a record");
        body += size;
        count++;
    }
    if (body != end)
        fail("an answer ends within a record");
    return count;
}

/* Take one answer, and ask for more of its queue; return its messages, or -1 at the queue's end. */
static int64_t take(const char *frame, size_t size, int queues) {
    size_t header_size = big_endian(frame) & 0xffffff;
    if (header_size + 4 > size)
        fail("an answer's header is longer than it");
    const char *header = frame + 4, *body = header + header_size;
    int64_t code = field(header, header_size, "\"code\"");
    int64_t queue = field(header, header_size, "\"opaque\"");
    if (queue >= queues)
        fail("an answer to no request");
    if (code == NOT_FOUND)
        return -1;
    if (code != SUCCESS && code != RETRY) {
        fprintf(stderr, "pull_floor: refused: %.*s\n", (int)header_size, header);
        exit(1);
    }
    int64_t next = field(header, header_size, "\"nextBeginOffset\"");
    int64_t count = code == SUCCESS ? count_records(body, frame + size) : 0;
    if (code == SUCCESS && count != next - next_offset[queue])
        fail("an answer has other messages than its offsets say");
    next_offset[queue] = next;
    add_pull((int)queue);
    return count;
}

/* Return the most memory this program held, in KiB: getrusage would count its parent's, too. */
static long peak_kib(void) {
    char line[256];
    long peak = -1;
    FILE *status = fopen("/proc/self/status", "r");
    if (status == NULL)
        fail("/proc/self/status");
    while (peak < 0 && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            peak = strtol(line + 6, NULL, 10);
    fclose(status);
    return peak;
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now))
        fail("clock_gettime");
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void connect_to(const char *address, uint16_t port) {
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1;
    if (inet_pton(AF_INET, address, &where.sin_addr) != 1)
        fail("expected an IPv4 address");
    broker = socket(AF_INET, SOCK_STREAM, 0);
    if (broker < 0 || setsockopt(broker, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
        connect(broker, (struct sockaddr *)&where, sizeof where))
        fail("connect");
}

int main(int count, char **given) {
    if (count != 8) {
        fprintf(stderr, "usage: pull_floor IPV4 PORT TOPIC QUEUES PULL_SIZE MESSAGES WARM\n");
        return 2;
    }
    connect_to(given[1], (uint16_t)argument(given[2], 1, 65535));
    topic = given[3];
    int queues = (int)argument(given[4], 1, MAX_QUEUES), open_queues = queues;
    pull_size = argument(given[5], 1, 65535);
    int64_t wanted = argument(given[6], 1, INT32_MAX), warm = argument(given[7], 0, wanted - 1);
    int64_t received = 0, answered = 0, reads = 0;
    double wall = 0, cpu = 0;
    for (int queue = 0; queue < queues; queue++)
        add_pull(queue);
    while (received < wanted) {
        if (open_queues == 0) {
            fprintf(stderr, "pull_floor: only %" PRId64 " of %" PRId64 " messages\n", received,
                    wanted);
            return 1;
        }
        send_requests();
        reserve(&answers, LEAST_ROOM);
        ssize_t got = read(broker, answers.at + answers.used, answers.room - answers.used);
        if (got == 0)
            fail("the broker closed the connection");
        if (got < 0) {
            if (errno == EINTR)
                continue;
            fail("read");
        }
        answers.used += (size_t)got;
        reads++;
        size_t done = 0;
        while (answers.used - done >= 4) {
            size_t size = big_endian(answers.at + done);
            if (size < 4)
                fail("a frame without a header");
            if (answers.used - done - 4 < size)
                break;
            int64_t messages = take(answers.at + done + 4, size, queues);
            if (messages < 0) {
                open_queues--;
                messages = 0;
            }
            if (received <= warm && warm < received + messages) {
                wall = seconds_of(CLOCK_MONOTONIC);
                cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
            }
            received += messages;
            answered++;
            done += 4 + size;
        }
        answers.used -= done;
        memmove(answers.at, answers.at + done, answers.used);
    }
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"peer\": \"pull loop in C\", \"messages\": %" PRId64 ", \"seconds\": %.6f, "
           "\"cpu_seconds\": %.6f, \"peak_mib\": %.1f, \"detail\": {\"pulls\": %" PRId64 ", \"reads\": %" PRId64 "}}\n",
           received - warm, wall, cpu, (double)peak_kib() / 1024, answered, reads);
    return 0;
}
