/* The time that the clients of one user take of another user's messages, as `fan_out_times.py` has
 * it, in the same words.
 */
#ifndef SBUS_FAN_OUT_H
#define SBUS_FAN_OUT_H

#include "_memory.h"

enum {
    BURST_NS = 5000000,
    OWED_NS_MAX = 2 * BURST_NS,
    DELIVERY_NS_MAX = 100000, /* of one in Python */
    PAIRS_BITS = 10,
};

typedef struct {
    uint64_t pair, message, slept_ns, owed_ns, is_spent;
} Debt;

typedef struct {
    uint64_t message, slept_ns, is_owed, ns_per_message, small, factor;
    Debt debts[1 << PAIRS_BITS];
} FanOutTimes;

static void
pay(Debt *debt, uint64_t paid_ns)
{
    debt->owed_ns -= smaller(debt->owed_ns, paid_ns);
    if (debt->owed_ns <= BURST_NS / 2)
        debt->is_spent = 0;
}

/* What this pair of users owes for messages up to this one; NULL while another pair, which owes
 * something, has its place. */
static Debt *
find_debt(FanOutTimes *times, uint64_t uid, uint64_t account, uint64_t message)
{
    uint64_t pair = uid << 32 | (account + 1);
    Debt *debt = &times->debts[pair * times->factor >> (64 - PAIRS_BITS)];
    pay(debt, times->slept_ns - debt->slept_ns);
    debt->slept_ns = times->slept_ns;
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

static void
charge_debt(FanOutTimes *times, Debt *debt, uint64_t spent_ns)
{
    debt->owed_ns = smaller(debt->owed_ns + spent_ns, OWED_NS_MAX);
    times->is_owed = 1;
    if (debt->owed_ns > BURST_NS)
        debt->is_spent = 1;
}

/* The worker has slept. */
static void
pay_by_sleep(FanOutTimes *times, uint64_t slept_ns)
{
    times->slept_ns += slept_ns;
    times->is_owed = slept_ns < OWED_NS_MAX;
}

#endif
