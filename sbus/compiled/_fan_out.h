/* The time that the clients of one user take of another user's messages, as `fan_out_times.py` has
 * it, in the same words.
 */
#ifndef SBUS_FAN_OUT_H
#define SBUS_FAN_OUT_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_memory.h"

enum {
    BURST_NS = 5000000,
    OWED_NS_MAX = 2 * BURST_NS,
    DELIVERY_NS_MAX = 100000, /* of one in Python */
    PAIRS_BITS = 10,
    TIME_SHARE_OF_PAIR = 2,
    SCHEDSTAT_BYTES_MAX = 80,
};

typedef struct {
    uint64_t pair, message, recipients, paid_ns, owed_ns, is_spent;
} Debt;

typedef struct {
    uint64_t message, slept_ns, is_owed, ns_per_message, small, factor, schedstat_fd;
    uint64_t waited_ns;
    Debt debts[1 << PAIRS_BITS];
} FanOutTimes;

static void
pay(Debt *debt, uint64_t paid_ns)
{
    debt->owed_ns -= smaller(debt->owed_ns, paid_ns);
    if (debt->owed_ns <= BURST_NS / 2)
        debt->is_spent = 0;
}

/* What this pair of users owes now, for messages up to this one; NULL while another pair, which owes
 * something, has its place. */
static Debt *
find_debt(FanOutTimes *times, uint64_t uid, uint64_t account, uint64_t message, uint64_t now_ns)
{
    uint64_t pair = uid << 32 | (account + 1);
    Debt *debt = &times->debts[pair * times->factor >> (64 - PAIRS_BITS)];
    uint64_t paid_ns = times->slept_ns + now_ns / TIME_SHARE_OF_PAIR;
    if (paid_ns > debt->paid_ns) { /* the clock may have been read before Python's */
        pay(debt, paid_ns - debt->paid_ns);
        debt->paid_ns = paid_ns;
    }
    if (debt->pair != pair) {
        if (debt->owed_ns)
            return NULL;
        debt->pair = pair;
    }
    if (debt->message < message) {
        debt->message = message;
        debt->recipients = 0;
        pay(debt, times->ns_per_message);
    }
    return debt;
}

/* Whether so many recipients of one message are more than get it for nothing. */
static bool
is_many(const FanOutTimes *times, const Debt *debt)
{
    return debt && debt->recipients > times->small;
}

static void
charge_debt(FanOutTimes *times, Debt *debt, uint64_t spent_ns)
{
    debt->owed_ns = smaller(debt->owed_ns + spent_ns, OWED_NS_MAX);
    times->is_owed = 1;
    if (debt->owed_ns > BURST_NS)
        debt->is_spent = 1;
}

/* For how long the worker has waited for its processor so far, if that is known. */
static uint64_t
waited_for_processor_ns(const FanOutTimes *times)
{
    char text[SCHEDSTAT_BYTES_MAX + 1];
    ssize_t size = -1;
    if (times->schedstat_fd != UINT64_MAX)
        size = pread((int)times->schedstat_fd, text, SCHEDSTAT_BYTES_MAX, 0);
    if (size <= 0)
        return times->waited_ns;
    text[size] = 0;
    const char *second = strchr(text, ' ');
    return second ? strtoull(second, NULL, 10) : times->waited_ns;
}

static void
begin_sleep(FanOutTimes *times)
{
    times->waited_ns = waited_for_processor_ns(times);
}

/* Since then the worker has slept this long, or waited for its processor. */
static void
pay_by_sleep(FanOutTimes *times, uint64_t slept_ns)
{
    slept_ns -= smaller(slept_ns, waited_for_processor_ns(times) - times->waited_ns);
    times->slept_ns += slept_ns;
    times->is_owed = slept_ns < OWED_NS_MAX;
}

#endif
