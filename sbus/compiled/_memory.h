/* The shared memory of a bus as the compiled step sees it: critical sections, the ordered log and
 * the accounts. No Python here: everything below runs without the interpreter's lock.
 *
 * The rules are those of sbus/shared (shared_memory, ordered_log, log_share, accounts), which say
 * why; function names are the same. `LAYOUT` in _step.c exports the places below, so that a module
 * that was compiled for another layout is refused.
 *
 * Whatever is not ordinary (no room, a late destination, a rate that is exceeded) abandons the
 * critical section: the spare copy of the control words is not made valid, and Python begins anew.
 * The words of accounts have one copy, so they are written here only where Python would write the
 * same again.
 */
#ifndef SBUS_MEMORY_H
#define SBUS_MEMORY_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { /* places in a copy of the control words */
    LOG_HEAD = 0,
    TABLE_EPOCH = 1,
    TABLE_GENERATION = 3,
    ALIVE = 6,
    SLEEPING = 7,
    WAITING = 8,
    LAST_PLACE = 10,
    LOG_LOW = 11,
    WORKER_WORDS = 16,
};
enum { /* places in the words of one worker */
    LOG_START = 0,
    LOG_END = 1,
    LOG_CURSOR = 2,
    LOG_WINDOW = 3,
    LOG_WAITERS = 4,
    LOG_ROUND = 5,
    LOG_SHARE = 6,
    LOG_CONTENDERS = 7,
    EPOCH_SEEN = 8,
    LOG_ENTRIES = 9,
    LOG_WALKED = 10,
    LOG_ENTRY_BYTES = 11,
    STEP_BATCH = 12,
    WORDS_PER_WORKER = 15,
};
enum { /* places before the copies, and where these begin */
    SELECTOR = 0,
    COPIES = 8,
};
enum { /* places in an account, and in its share of the log for one worker */
    NS_PER_MESSAGE = 2,
    PAID_UNTIL_NS = 4,
    SHARE_ROUND = 0,
    SHARE_BYTES = 1,
    SHARE_PRICE = 3,
    WORDS_PER_DESTINATION = 4,
};
enum { /* places in a client's slot, and sizes */
    PENDING = 2,
    WAITING_MESSAGES = 3,
    REQUEST = 10,
    SLOT_WORDS = 32,
    LONG_REQUEST_WORDS = 776, /* of a client, behind all slots */
    REQUEST_SHIFT = 32,
    COUNT_BITS = 29, /* of the pending packets, in their word */
};
enum { /* places in what a worker has in flight */
    WALKED = 0,
    WALK_PROGRESS = 1,
    BATCH = 2,
    BUT_FOR = 3,
    BATCH_PROGRESS = 4,
    KEYS = 5,
    FIRST_KEY = 6,
    IN_FLIGHT_WORDS = 2048,
    SEQUENCE_BITS = 6,
    SEQUENCE_SHIFT = 58,
    NUMBER_SHIFT = 32,
};
#define DONE UINT64_MAX
#define NOBODY UINT32_MAX
enum {
    RATE_BURST_NS = 50000000,
    MODEST_PART = 4,
    PRICE_UNIT = 256,
    DEBT_WINDOWS_MAX = 16,
    BLOCK_ALIGN_BYTES = 64,
    WORKERS_MAX = 64,
};

typedef struct { /* of a block of the log */
    uint64_t mask;
    uint32_t length;
    uint32_t count;
    uint64_t client;
    uint32_t uid;
    uint32_t received_us;
    uint64_t place; /* of the first message of its batch */
    uint32_t gid;
    uint32_t pid;
    uint64_t receipt; /* Python walks over messages that have one */
    uint32_t account; /* the place of that of its publisher's user */
    uint32_t unused;
} BlockHeader;

typedef struct { /* of an entry of a block; not aligned in the log */
    uint64_t mask;
    uint32_t packet_bytes;
    uint16_t key_bytes;
    uint16_t number; /* of the message in its batch */
} EntryHeader;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ordered_log is little-endian");
_Static_assert(__SIZEOF_POINTER__ == 8, "a word of the shared memory has the size of a pointer");
_Static_assert(sizeof(BlockHeader) == 64, "as ordered_log lays it out");
_Static_assert(sizeof(EntryHeader) == 16, "as ordered_log lays it out");

/* -- stores ------------------------------------------------------------------------------------
 * Every change of the shared memory goes through `store` or `store_bytes`, and is made in the order
 * of the program: a process that dies has made all that come before, and none that come behind. So
 * the compiler must not move one over another, which costs no instruction. A test build counts them
 * and can end the process at any one, as a death at that instruction would. */
#ifdef SBUS_STEP_TEST
static uint64_t stores_made, stores_until_death = UINT64_MAX;
static uint64_t sections_entered;
static uint64_t clock_ns; /* what the clock shows; 0: the real time */
static uint64_t store_ns; /* which each store takes on that clock */

static void
before_store(void)
{
    clock_ns += store_ns;
    if (stores_made++ == stores_until_death)
        _exit(77);
}
#else
#define before_store() ((void)0)
#endif

static inline void
store(uint64_t *word, uint64_t value)
{
    before_store();
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release);
}

static inline void
store_bytes(void *to, const void *from, size_t size)
{
    before_store();
    atomic_signal_fence(memory_order_seq_cst); /* a release keeps only what comes before it there */
    memcpy(to, from, size);
}

/* CPU time of this thread: a system call. */
static inline uint64_t
thread_cpu_ns(void)
{
    struct timespec now;
#ifdef SBUS_STEP_TEST
    if (clock_ns)
        return clock_ns;
#endif
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline uint64_t
monotonic_ns(void)
{
    struct timespec now;
#ifdef SBUS_STEP_TEST
    if (clock_ns)
        return clock_ns;
#endif
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* -- critical sections ------------------------------------------------------------------------- */
typedef struct {
    int lock_fd;
    uint64_t *words; /* the selector, then the two copies */
    size_t block_words;
    uint32_t workers, worker;
    uint64_t *accounts;
    size_t account_words, accounts_count, share_at, drops_at;
    const uint64_t *stalled; /* how many clients are stalled */
    uint64_t *served; /* the client that this worker serves now, or 0 */
    uint64_t *in_flight; /* of this worker */
    uint64_t *slots;     /* of all clients, and behind them the room for long requests */
    size_t slots_words;  /* without that room */
    unsigned char *log;
    uint64_t log_bytes;
    int eventfds[WORKERS_MAX];
} Memory;

/* Enter a critical section; NULL with errno when a signal or an error came first. */
static uint64_t *
enter(const Memory *memory, uint64_t *spare)
{
    if (flock(memory->lock_fd, LOCK_EX) < 0)
        return NULL;
#ifdef SBUS_STEP_TEST
    sections_entered++;
#endif
    uint64_t current = memory->words[SELECTOR] & 1;
    *spare = 1 - current;
    const uint64_t *from = memory->words + COPIES + current * memory->block_words;
    uint64_t *words = memory->words + COPIES + *spare * memory->block_words;
    store_bytes(words, from, memory->block_words * sizeof *words);
    return words;
}

static void
leave(const Memory *memory)
{
    while (flock(memory->lock_fd, LOCK_UN) < 0 && errno == EINTR)
        ;
}

/* Make the changed words valid. The store has to come after all others. */
static void
commit(const Memory *memory, uint64_t spare)
{
    store(&memory->words[SELECTOR], spare);
    leave(memory);
}

static void
wake(const Memory *memory, uint64_t mask)
{
    static const uint64_t one = 1;
    for (; mask; mask &= mask - 1) {
        uint32_t worker = (uint32_t)__builtin_ctzll(mask);
        /* It can fail only when the counter is full, and then the worker is woken already. */
        if (worker < memory->workers && write(memory->eventfds[worker], &one, sizeof one) < 0)
            continue;
    }
}

/* -- the ordered log --------------------------------------------------------------------------- */
static inline uint64_t
smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t *
worker_words(uint64_t *words, uint32_t worker)
{
    return words + WORKER_WORDS + (size_t)worker * WORDS_PER_WORKER;
}

/* What so many entries of this size count for in a window. */
static uint64_t
weight(const uint64_t *of, uint64_t size, uint64_t entries)
{
    return larger(size, entries * of[LOG_ENTRY_BYTES]);
}

static uint64_t
lag(const uint64_t *of)
{
    if (of[LOG_CURSOR] >= of[LOG_END])
        return 0;
    return weight(of, of[LOG_END] - larger(of[LOG_CURSOR], of[LOG_START]),
                  of[LOG_ENTRIES] - of[LOG_WALKED]);
}

static uint64_t
low_water_mark(const Memory *memory, uint64_t *words)
{
    uint64_t low = words[LOG_HEAD];
    for (uint32_t worker = 0; worker < memory->workers; worker++) {
        const uint64_t *of = worker_words(words, worker);
        if (words[ALIVE] >> worker & 1 && of[LOG_CURSOR] < of[LOG_END])
            low = smaller(low, larger(of[LOG_CURSOR], of[LOG_START]));
    }
    return low;
}

static bool
has_room(const Memory *memory, uint64_t *words, uint64_t end)
{
    if (end - words[LOG_LOW] > memory->log_bytes)
        store(&words[LOG_LOW], low_water_mark(memory, words));
    return end - words[LOG_LOW] <= memory->log_bytes;
}

/* The words of a user's share of the log for one worker. */
static uint64_t *
share_words(const Memory *memory, const uint64_t *account, uint32_t worker)
{
    size_t at = (size_t)(account - memory->accounts) + memory->share_at;
    return memory->accounts + at + (size_t)worker * WORDS_PER_DESTINATION;
}

/* What a user has appended for a worker in its present round. */
static uint64_t
appended_bytes(const Memory *memory, uint64_t *words, const uint64_t *account, uint32_t worker)
{
    const uint64_t *of = worker_words(words, worker);
    uint64_t *share = share_words(memory, account, worker);
    uint64_t passed = of[LOG_ROUND] - share[SHARE_ROUND];
    if (passed) {
        /* What is left of an excess after it was paid back in every round that has passed. */
        uint64_t paid, left = 0;
        if (of[LOG_SHARE] && !__builtin_mul_overflow(of[LOG_SHARE], passed, &paid)
            && paid < share[SHARE_BYTES])
            left = share[SHARE_BYTES] - paid;
        store(&share[SHARE_ROUND], of[LOG_ROUND]);
        store(&share[SHARE_BYTES], smaller(left, DEBT_WINDOWS_MAX * of[LOG_WINDOW]));
    }
    return share[SHARE_BYTES];
}

/* Whether one of the destinations lags too far behind for this user. */
static bool
has_late_destination(const Memory *memory, uint64_t *words, uint64_t mask, const uint64_t *account)
{
    for (; mask; mask &= mask - 1) {
        uint32_t worker = (uint32_t)__builtin_ctzll(mask);
        const uint64_t *of = worker_words(words, worker);
        uint64_t behind = lag(of), window = of[LOG_WINDOW];
        if (!behind || !(of[LOG_SHARE] || of[LOG_WAITERS] || behind > window))
            continue;
        uint64_t allowed = of[LOG_SHARE] ? of[LOG_SHARE] : window / MODEST_PART;
        if (behind > 2 * window || appended_bytes(memory, words, account, worker) >= allowed)
            return true;
    }
    return false;
}

/* Into how many blocks to divide one of this size. */
static uint64_t
parts_of(uint64_t *words, uint64_t mask, uint64_t size, uint64_t entries)
{
    uint64_t parts = 1;
    for (mask &= words[ALIVE]; mask; mask &= mask - 1) {
        const uint64_t *of = worker_words(words, (uint32_t)__builtin_ctzll(mask));
        uint64_t part_max = larger(of[LOG_WINDOW] / 2, 1);
        parts = larger(parts, (weight(of, size, entries) + part_max - 1) / part_max);
    }
    return parts;
}

/* Destine the log block that begins at `start` to workers; returns those to wake. */
static uint64_t
destine(const Memory *memory, uint64_t *words, const BlockHeader *header, uint64_t start,
        const uint64_t *account)
{
    uint64_t mask = header->mask & words[ALIVE], woken = mask & words[SLEEPING];
    store(&words[SLEEPING], words[SLEEPING] & ~woken);
    for (; mask; mask &= mask - 1) {
        uint32_t worker = (uint32_t)__builtin_ctzll(mask);
        uint64_t *of = worker_words(words, worker);
        if (of[LOG_CURSOR] >= of[LOG_END]) {
            store(&of[LOG_START], start);
            store(&of[LOG_ROUND], of[LOG_ROUND] + 1);
            store(&of[LOG_SHARE], 0);
            store(&of[LOG_CONTENDERS], 0);
        }
        store(&of[LOG_END], start + header->length);
        store(&of[LOG_ENTRIES], of[LOG_ENTRIES] + header->count);
        uint64_t appended = appended_bytes(memory, words, account, worker);
        uint64_t *share = share_words(memory, account, worker);
        uint64_t more = weight(of, header->length, header->count);
        uint64_t price = share[SHARE_PRICE] ? share[SHARE_PRICE] : PRICE_UNIT;
        store(&share[SHARE_BYTES], appended + more * price / PRICE_UNIT);
    }
    return woken;
}

/* Where a block of this size goes, after a skip to the start of the ring if need be; false when
 * there is no room. */
static bool
find_place(const Memory *memory, uint64_t *words, uint64_t size, uint64_t *head)
{
    uint64_t place = words[LOG_HEAD] % memory->log_bytes;
    uint64_t skip = place + size > memory->log_bytes ? memory->log_bytes - place : 0;
    if (words[WAITING] || !has_room(memory, words, words[LOG_HEAD] + skip + size))
        return false;
    if (skip) {
        BlockHeader header = {.length = (uint32_t)skip};
        store_bytes(memory->log + place, &header, sizeof header);
    }
    *head = words[LOG_HEAD] + skip;
    return true;
}

/* Share how far this worker has walked; returns the workers to wake. Only for a worker that has
 * walked everything. */
static uint64_t
share_cursor(const Memory *memory, uint64_t *words, uint64_t cursor, uint64_t window,
             uint64_t entry_bytes)
{
    uint64_t *own = worker_words(words, memory->worker), woken = own[LOG_WAITERS];
    store(&own[LOG_CURSOR], cursor);
    store(&own[LOG_WALKED], own[LOG_ENTRIES]);
    store(&own[LOG_WINDOW], window);
    store(&own[LOG_ENTRY_BYTES], entry_bytes);
    if (woken && lag(own) <= window / 2) {
        uint64_t contenders = own[LOG_CONTENDERS];
        store(&own[LOG_WAITERS], 0);
        store(&own[LOG_ROUND], own[LOG_ROUND] + 1);
        store(&own[LOG_SHARE], contenders > 1 ? window / 2 / contenders : 0);
        store(&own[LOG_CONTENDERS], 0);
    } else {
        woken = 0;
    }
    if (!words[WAITING])
        return woken;
    store(&words[LOG_LOW], low_water_mark(memory, words));
    if (words[LOG_HEAD] - words[LOG_LOW] > memory->log_bytes - memory->log_bytes / 4)
        return woken;
    woken |= words[WAITING];
    store(&words[WAITING], 0);
    return woken;
}

/* -- what is in flight ------------------------------------------------------------------------- */
/* Everything before this position of the log has been delivered; returns what to add to deliveries
 * of the block there. */
static uint64_t
begin_block(const Memory *memory, uint64_t position)
{
    uint64_t sequence = (memory->in_flight[WALKED] + 1) & ((1 << SEQUENCE_BITS) - 1);
    store(&memory->in_flight[WALKED], position | sequence);
    store(&memory->in_flight[WALK_PROGRESS], 0);
    return sequence << SEQUENCE_SHIFT;
}

/* Begin to tell of the next publish batch; returns its number. */
static uint64_t
begin_batch(const Memory *memory, uint64_t but_for)
{
    uint64_t number = memory->in_flight[BATCH] % UINT32_MAX + 1;
    store(&memory->in_flight[BATCH], number);
    store(&memory->in_flight[BATCH_PROGRESS], 0);
    store(&memory->in_flight[BUT_FOR], but_for);
    return number;
}

/* Add a key, at this byte behind the others; false when there is no room. */
static bool
add_key(const Memory *memory, size_t *at, const char *key, uint32_t key_bytes)
{
    size_t end = *at + sizeof key_bytes + key_bytes;
    if (end > (IN_FLIGHT_WORDS - FIRST_KEY) * sizeof(uint64_t))
        return false;
    unsigned char *to = (unsigned char *)(memory->in_flight + FIRST_KEY) + *at;
    store_bytes(to, &key_bytes, sizeof key_bytes);
    store_bytes(to + sizeof key_bytes, key, key_bytes);
    *at = end;
    return true;
}

/* -- accounts ---------------------------------------------------------------------------------- */
static bool
exceeds_rate(const uint64_t *account, uint64_t now_ns)
{
    return account[PAID_UNTIL_NS] > now_ns + RATE_BURST_NS;
}

static void
pay_for(uint64_t *account, uint64_t messages, uint64_t now_ns)
{
    uint64_t paid_from = larger(account[PAID_UNTIL_NS], now_ns);
    store(&account[PAID_UNTIL_NS], paid_from + messages * account[NS_PER_MESSAGE]);
}

/* Count a dropped message for the user with the account at this place, and for the bus. */
static void
count_drop(const Memory *memory, uint64_t place)
{
    uint64_t *bus = memory->accounts + memory->drops_at;
    uint64_t *user = bus + place * memory->account_words;
    store(user, *user + 1);
    store(bus, *bus + 1);
}

#endif
