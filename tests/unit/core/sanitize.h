/* What the files of the sanitizers' driver share: sanitize_driver.c has it. */
#ifndef OMQ_SANITIZE_H
#define OMQ_SANITIZE_H

#include <stdio.h>
#include <stdlib.h>

#include "ordermq.h"

#define REQUIRE(holds)                                                                   \
    do {                                                                                 \
        if (!(holds)) {                                                                  \
            fprintf(stderr, "%s:%d: %s, seed %s\n", __FILE__, __LINE__, #holds, seed_text); \
            abort();                                                                     \
        }                                                                                \
    } while (0)

enum { BATCH = 300 };

extern const char *seed_text;
extern uint32_t failing; /* of the core's allocations, one in so many finds no memory; 0: none */

/* A number below `below`, and the next state. */
uint32_t draw(uint64_t *state, uint32_t below);

/* Whether a call did what it was asked for, or found no memory while some are meant to. */
bool is_done(omq_status status);

/* Abort with what a check has found. */
void sound(const char *broken);

/* sanitize_lanes.c: one random step, and many with the map's check after each. */
void step_lanes(omq_lane_map *map, uint64_t *seed, bool is_columns);
void drive_lanes(uint64_t *seed, int steps);
void starve_reset(void);

/* sanitize_assigned.c: one random call of an assigned queue, and many with all checks after each. */
void step_assigned(omq_assigned_queue *queue, bool has_lanes, uint64_t *seed);
void drive_assigned(uint64_t *seed, int steps);

/* sanitize_writer.c: write the records of a batch body, if it is one, and read them again. */
void write_exactly(const uint8_t *bytes, size_t size);

/* sanitize_rows.c: rows in columns, in order or not, and batch bodies of them. */
void drive_rows(uint64_t *seed, int steps);

/* sanitize_ids.c: ids noted, found again and forgotten, with the window's check after each step. */
void drive_ids(uint64_t *seed, int steps);

/* sanitize_texts.c: texts that grow, beside a copy of them. */
void drive_texts(uint64_t *seed, int steps);

/* sanitize_answers.c: the answers between an engine and a reader beside a model, and by threads;
 * columns of answers. */
void drive_answers(uint64_t *seed, int steps);
void drive_handover(uint64_t *seed, int rounds);
void read_answer_exactly(const uint8_t *bytes, size_t size);

/* sanitize_engine.c: the pull engine against brokers that misbehave; headers of answers. */
void drive_engine(uint64_t *seed, int rounds);
void read_reply_exactly(const uint8_t *bytes, size_t size);

/* sanitize_waits.c: threads that send through one connection and read its answers in turn. */
void drive_waits(uint64_t *seed, int rounds);

/* sanitize_sends.c: sends to a broker, read, written as records and answered. */
void read_sends_exactly(const uint8_t *bytes, size_t size);

/* sanitize_proxy.c: answers of a proxy, read, and their messages written as records. */
void read_proxied_exactly(const uint8_t *bytes, size_t size);

/* Requests to a proxy, of a batch body and of its bytes as properties. */
void send_to_proxy_exactly(const uint8_t *bytes, size_t size);

#endif
