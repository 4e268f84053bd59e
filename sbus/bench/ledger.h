/* One subscriber's account of a long run: what came, what is missing, what the bus said it lost.
 *
 * Publisher P's message number N has lane N % 8, and a subscriber wants some lanes of some
 * publishers; so it knows how many wanted messages lie between any two numbers. With order/queue
 * the bus promises, and these functions check:
 *   - a publisher's numbers rise;
 *   - nothing comes that was not asked for;
 *   - a publisher's messages go missing only where a notice stands between its neighbours;
 *   - never is more missing than the notices so far admit;
 *   - once every publisher has been heard after a notice, all that it admits is missing indeed
 *     (one notice at a time is watched for this);
 *   - in the end missing = admitted, and received + missing = sent and wanted.
 */
#ifndef SBUS_BENCH_LEDGER_H
#define SBUS_BENCH_LEDGER_H

#include <stdint.h>

enum { PUBLISHERS_MAX = 16, LANES = 8 };

struct ledger {
    uint8_t lanes[PUBLISHERS_MAX];        /* wanted of each publisher, a bit for each lane */
    uint64_t next[PUBLISHERS_MAX];        /* the lowest number that may still come */
    uint64_t heard_after[PUBLISHERS_MAX]; /* notices there had been when it was last heard */
    uint64_t received;                    /* messages */
    uint64_t missing;                     /* wanted messages found to have been left out */
    uint64_t admitted;                    /* sum of all notices */
    uint64_t notices;
    uint32_t unheard;          /* publishers not yet heard since the watched notice; 0: no watch */
    uint64_t watched_admitted; /* `admitted` at that notice */
};

/* Each returns NULL, or what is wrong; the account goes on after either. */
const char *ledger_message(struct ledger *ledger, uint64_t publisher, uint64_t number);
const char *ledger_notice(struct ledger *ledger, uint64_t lost);

/* When everything has come: `sent` messages of each publisher. */
const char *ledger_close(struct ledger *ledger, const uint64_t sent[PUBLISHERS_MAX]);

/* How many of a publisher's first `count` messages lie in these lanes. */
uint64_t wanted_among(uint8_t lanes, uint64_t count);

#endif
