/* The time that the clients of one user take of another user's messages, as `fan_out_times.py` has
 * it, in the same words.
 */
#ifndef SBUS_FAN_OUT_H
#define SBUS_FAN_OUT_H

#include "_memory.h"

enum {
    BURST_NS = 5000000,
    OWED_NS_MAX = 2 * BURST_NS,
    EXCESS_FACTOR = 8,
    PAIRS_BITS = 10,
};

typedef struct {
    uint64_t pair, message, paid_ns, owed_ns, is_spent;
} Debt;

typedef struct {
    uint64_t message, backlogs_ns, ns_per_message, small, factor;
    Debt debts[1 << PAIRS_BITS];
} FanOutTimes;

static void
pay(Debt *debt, uint64_t paid_ns)
{
    debt->owed_ns -= smaller(debt->owed_ns, paid_ns);
    if (debt->owed_ns <= BURST_NS / 2)
        debt->is_spent = 0;
}

/* Until this time the pair's publisher was not waiting. */
static void
pay_until(const FanOutTimes *times, Debt *debt, uint64_t until_ns)
{
    int64_t paid_ns = (int64_t)(until_ns - times->backlogs_ns - debt->paid_ns);
    if (paid_ns > 0)
        pay(debt, (uint64_t)paid_ns);
}

/* Time up to now does not pay any more. */
static void
note_time(const FanOutTimes *times, Debt *debt, uint64_t now_ns)
{
    debt->paid_ns = larger(debt->paid_ns, now_ns - times->backlogs_ns);
}

/* What this pair of users owes now, for messages up to this one, which was received at that time;
 * NULL while another pair, which owes something, has its place. */
static Debt *
find_debt(FanOutTimes *times, uint64_t uid, uint64_t account, uint64_t message,
          uint64_t received_ns, uint64_t now_ns)
{
    uint64_t pair = uid << 32 | (account + 1);
    Debt *debt = &times->debts[pair * times->factor >> (64 - PAIRS_BITS)];
    pay_until(times, debt, received_ns);
    note_time(times, debt, now_ns);
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
charge_debt(const FanOutTimes *times, Debt *debt, uint64_t spent_ns, uint64_t ordinary_ns,
            uint64_t now_ns)
{
    note_time(times, debt, now_ns);
    uint64_t excess_ns = spent_ns - smaller(spent_ns, ordinary_ns);
    debt->owed_ns = smaller(debt->owed_ns + spent_ns + EXCESS_FACTOR * excess_ns, OWED_NS_MAX);
    if (debt->owed_ns > BURST_NS)
        debt->is_spent = 1;
}

#endif
