/* The time that the clients of one user take of another user's messages, as `fan_out_times.py` has
 * it, in the same words.
 */
#ifndef SBUS_FAN_OUT_H
#define SBUS_FAN_OUT_H

#include "_memory.h"

enum {
    TIME_SHARE = 20, /* see send_times.py */
    BURST_NS = 5000000,
    CHARGE_NS_MAX = BURST_NS / 2,
    OWED_NS_MAX = 4 * BURST_NS,
    KEPT_NS_MAX = 2 * BURST_NS,
    LOOK_NS = 64000,
    EXCESS_FACTOR = 8,
    ACCOUNTS_BITS = 10,
    PAIRS_BITS = 10,
    PROCESSOR_PARTS = 1024,
};

typedef struct {
    uint64_t pair, message, owed_ns, is_spent;
} Debt;

typedef struct {
    uint64_t message, slept_ns, ns_per_message, small, factor, processor_share;
    uint64_t used_ns[1 << ACCOUNTS_BITS];
    Debt debts[1 << PAIRS_BITS];
} FanOutTimes;

/* The worker had nothing to do for so long. */
static void
note_sleep(FanOutTimes *times, uint64_t slept_ns)
{
    times->slept_ns += slept_ns * times->processor_share / PROCESSOR_PARTS;
}

static void
pay(Debt *debt, uint64_t paid_ns)
{
    debt->owed_ns -= smaller(debt->owed_ns, paid_ns);
    if (debt->owed_ns <= BURST_NS / 2)
        debt->is_spent = 0;
}

/* The time in which the worker has slept, and a small part of all time, pay once for all pairs of an
 * account. */
static void
pay_by_time(FanOutTimes *times, Debt *debt, uint64_t now_ns)
{
    uint64_t time_ns = times->slept_ns + now_ns / TIME_SHARE;
    uint64_t *used_ns = &times->used_ns[(debt->pair - 1) % (1 << ACCOUNTS_BITS)];
    uint64_t unused_ns = smaller(time_ns - smaller(*used_ns, time_ns), KEPT_NS_MAX);
    uint64_t paid_ns = smaller(unused_ns, debt->owed_ns);
    *used_ns = time_ns - unused_ns + paid_ns;
    pay(debt, paid_ns);
}

/* What this pair of users' accounts owes now, for messages up to this one; NULL while another pair,
 * which owes something, has its place. */
static Debt *
find_debt(FanOutTimes *times, uint64_t publisher, uint64_t account, uint64_t message, uint64_t now_ns)
{
    uint64_t pair = publisher << 32 | (account + 1);
    Debt *debt = &times->debts[pair * times->factor >> (64 - PAIRS_BITS)];
    pay_by_time(times, debt, now_ns);
    if (debt->pair != pair) {
        if (debt->owed_ns)
            return NULL;
        debt->pair = pair;
    }
    if (debt->message < message) {
        debt->message = message;
        pay(debt, times->ns_per_message);
    }
    return debt;
}

/* One of so many deliveries that have taken so long together. The host may have taken the processor
 * in one of them. */
static void
charge_debt(Debt *debt, uint64_t spent_ns, uint64_t ordinary_ns, uint64_t deliveries)
{
    uint64_t excess_ns = spent_ns - smaller(spent_ns, ordinary_ns);
    uint64_t charge_ns = smaller(spent_ns + EXCESS_FACTOR * excess_ns, CHARGE_NS_MAX);
    debt->owed_ns = smaller(debt->owed_ns + charge_ns / deliveries, OWED_NS_MAX);
    if (debt->owed_ns > BURST_NS)
        debt->is_spent = 1;
}

#endif
