#include "crc32.h"

#include <stdatomic.h>
#include <stdbool.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

enum { WORD = 8, CHAINS = 5, BLOCK = CHAINS * WORD, BLOCKS_MIN = 4 }; /* below, word by word */

/* What one byte of a word adds to the checksum. tails[p][byte]: as seen where the word ends, with p
 * bytes of the word behind the byte. leaps[p][byte]: as seen where the word one block further
 * starts, with p bytes of the word before the byte. */
static uint32_t tails[WORD][256];
static uint32_t leaps[WORD][256];

enum { ABSENT, BEING_MADE, READY };
static _Atomic int state = ABSENT;
static bool has_instructions; /* published with the tables */

static uint32_t of_byte(uint32_t byte) {
    for (int bit = 0; bit < 8; bit++) {
        byte = byte & 1 ? byte >> 1 ^ UINT32_C(0xEDB88320) : byte >> 1;
    }
    return byte;
}

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        tails[0][byte] = of_byte(byte);
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = tails[0][byte];
        for (int behind = 1; behind < BLOCK; behind++) { /* as many zero bytes follow */
            value = value >> 8 ^ tails[0][value & 0xFF];
            if (behind < WORD) {
                tails[behind][byte] = value;
            } else if (behind >= BLOCK - WORD) {
                leaps[BLOCK - 1 - behind][byte] = value;
            }
        }
    }
}

/* Return 8 bytes with the first one lowest: one load on a little-endian machine. */
static uint64_t word_at(const uint8_t *at) {
    return (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 |
           (uint64_t)at[3] << 24 | (uint64_t)at[4] << 32 | (uint64_t)at[5] << 40 |
           (uint64_t)at[6] << 48 | (uint64_t)at[7] << 56;
}

/* What the CPU does itself. cpu_has_instructions says at run time whether it does, as a wheel runs on
 * any CPU of its architecture; past_many takes the checksum past the first bytes, and returns how
 * many those were. */
#if defined(__x86_64__) && defined(__GNUC__)

static bool cpu_has_instructions(void) {
    unsigned int eax, ebx, ecx = 0, edx;
    unsigned int wanted = bit_PCLMUL | bit_SSE4_1;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & wanted) == wanted;
}

#define CARRYLESS __attribute__((target("pclmul,sse4.1")))
enum { LANE = 16, LANES = 4 };

CARRYLESS static __m128i lane_at(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* Move a lane forward by the distance its two factors are made for, onto the lane there. */
CARRYLESS static __m128i folded(__m128i lane, __m128i factors, __m128i onto) {
    __m128i low = _mm_clmulepi64_si128(lane, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* Carry-less multiplication folds the bytes, four lanes at once, into one lane with the same
 * remainder; two more folds and Barrett's reduction leave that remainder. Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009) has the method and
 * the factors: x^n modulo the polynomial, their bits reversed, for the distances in bits. */
CARRYLESS static size_t past_many(uint32_t *crc, const uint8_t *bytes, size_t size) {
    const __m128i by_512 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i by_128 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x163CD6124);
    const __m128i barrett = _mm_set_epi64x(0x1F7011641, 0x1DB710641);
    const __m128i low_halves = _mm_set_epi32(0, -1, 0, -1);
    if (size < LANE) {
        return 0;
    }
    const uint8_t *at = bytes;
    __m128i lane = _mm_xor_si128(lane_at(at), _mm_cvtsi32_si128((int)*crc));
    at += LANE;
    if (size >= (size_t)2 * LANES * LANE) {
        __m128i second = lane_at(at), third = lane_at(at + LANE), last = lane_at(at + 2 * LANE);
        at += (LANES - 1) * LANE;
        for (; (size_t)(bytes + size - at) >= (size_t)LANES * LANE; at += LANES * LANE) {
            lane = folded(lane, by_512, lane_at(at));
            second = folded(second, by_512, lane_at(at + LANE));
            third = folded(third, by_512, lane_at(at + 2 * LANE));
            last = folded(last, by_512, lane_at(at + 3 * LANE));
        }
        lane = folded(lane, by_128, second);
        lane = folded(lane, by_128, third);
        lane = folded(lane, by_128, last);
    }
    for (; bytes + size - at >= LANE; at += LANE) {
        lane = folded(lane, by_128, lane_at(at));
    }
    lane = _mm_xor_si128(_mm_clmulepi64_si128(lane, by_128, 0x10), _mm_srli_si128(lane, 8));
    lane = _mm_xor_si128(
        _mm_clmulepi64_si128(_mm_and_si128(lane, low_halves), by_64, 0x00), _mm_srli_si128(lane, 4)
    );
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(lane, low_halves), barrett, 0x10);
    __m128i product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_halves), barrett, 0x00);
    *crc = (uint32_t)_mm_extract_epi32(_mm_xor_si128(lane, product), 1);
    return (size_t)(at - bytes);
}

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))

static bool cpu_has_instructions(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return true; /* every 64-bit CPU of Apple's Macs */
#endif
}

/* Assembler, because <arm_acle.h> offers it only to files that are compiled for such CPUs alone. */
static size_t past_many(uint32_t *crc, const uint8_t *bytes, size_t size) {
    uint32_t value = *crc;
    size_t words = size / WORD;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = word_at(bytes + WORD * i);
        __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(value) : "r"(word));
    }
    *crc = value;
    return words * WORD;
}

#else

static bool cpu_has_instructions(void) { return false; }

static size_t past_many(uint32_t *crc, const uint8_t *bytes, size_t size) {
    (void)crc, (void)bytes, (void)size;
    return 0;
}

#endif

/* Return whether the tables can be read; the first caller makes them. The release store publishes
 * the tables, the acquire load sees them whole. Not pthread_once: it would tie the wheels to a C
 * library of 2021 or later. */
static bool have_tables(void) {
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (seen == ABSENT && atomic_compare_exchange_strong(&state, &seen, BEING_MADE)) {
        make_tables();
        has_instructions = cpu_has_instructions();
        atomic_store_explicit(&state, READY, memory_order_release);
        return true;
    }
    return seen == READY;
}

/* Only the first half of a word waits for the checksum before it; the look-ups of the other half
 * run meanwhile. */
static uint32_t past_word(uint32_t crc, const uint8_t *at) {
    crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    return tails[7][crc & 0xFF] ^ tails[6][crc >> 8 & 0xFF] ^ tails[5][crc >> 16 & 0xFF] ^
           tails[4][crc >> 24] ^ tails[3][at[4]] ^ tails[2][at[5]] ^ tails[1][at[6]] ^
           tails[0][at[7]];
}

static uint32_t past_block(uint64_t word) {
    return leaps[0][word & 0xFF] ^ leaps[1][word >> 8 & 0xFF] ^ leaps[2][word >> 16 & 0xFF] ^
           leaps[3][word >> 24 & 0xFF] ^ leaps[4][word >> 32 & 0xFF] ^ leaps[5][word >> 40 & 0xFF] ^
           leaps[6][word >> 48 & 0xFF] ^ leaps[7][word >> 56];
}

/* The five words of a block are five independent chains, so that their look-ups do not wait for
 * each other. The last block is gone through word by word, which joins the chains. */
static uint32_t past_blocks(uint32_t crc, const uint8_t *bytes, size_t blocks) {
    uint32_t chains[CHAINS] = {crc};
    for (; blocks > 1; blocks--, bytes += BLOCK) {
        for (int i = 0; i < CHAINS; i++) {
            chains[i] = past_block(chains[i] ^ word_at(bytes + WORD * i));
        }
    }
    crc = 0;
    for (int i = 0; i < CHAINS; i++) {
        crc = past_word(crc ^ chains[i], bytes + WORD * i);
    }
    return crc;
}

static uint32_t past_all(bool uses_instructions, const uint8_t *bytes, size_t size) {
    uint32_t crc = UINT32_MAX;
    if (size == 0) { /* nothing may be NULL, to which C lets nobody add even 0 */
        return 0;
    }
    bool is_ready = have_tables();
    if (is_ready && uses_instructions && has_instructions) {
        size_t past = past_many(&crc, bytes, size);
        bytes += past;
        size -= past;
    }
    size_t blocks = size / BLOCK;
    if (is_ready && blocks >= BLOCKS_MIN) {
        crc = past_blocks(crc, bytes, blocks);
        bytes += blocks * BLOCK;
        size -= blocks * BLOCK;
    }
    for (; is_ready && size >= WORD; size -= WORD, bytes += WORD) {
        crc = past_word(crc, bytes);
    }
    for (; size > 0; size--, bytes++) {
        uint32_t byte = (crc ^ *bytes) & 0xFF;
        /* A thread that finds another one making the tables goes on without them: slower once,
         * but nobody waits. */
        crc = crc >> 8 ^ (is_ready ? tails[0][byte] : of_byte(byte));
    }
    return ~crc;
}

uint32_t omq_crc32(const uint8_t *bytes, size_t size) { return past_all(true, bytes, size); }

uint32_t omq_crc32_by_tables(const uint8_t *bytes, size_t size) {
    return past_all(false, bytes, size);
}
