/* See ledger.h. */
#include "ledger.h"

#include <stdbool.h>
#include <stddef.h>

uint64_t wanted_among(uint8_t lanes, uint64_t count)
{
    uint8_t rest = (uint8_t)((1u << count % LANES) - 1);
    return count / LANES * (uint64_t)__builtin_popcount(lanes) +
           (uint64_t)__builtin_popcount(lanes & rest);
}

static uint64_t wanted_between(uint8_t lanes, uint64_t from, uint64_t to)
{
    return wanted_among(lanes, to) - wanted_among(lanes, from);
}

static const char *note_heard(struct ledger *ledger, uint64_t publisher)
{
    uint32_t still_unheard = ledger->unheard & ~(1u << publisher);
    if (still_unheard == ledger->unheard)
        return NULL;
    ledger->unheard = still_unheard;
    if (still_unheard == 0 && ledger->missing < ledger->watched_admitted)
        return "a notice of more messages than are missing at it";
    return NULL;
}

const char *ledger_message(struct ledger *ledger, uint64_t publisher, uint64_t number)
{
    if (publisher >= PUBLISHERS_MAX || (ledger->lanes[publisher] >> number % LANES & 1) == 0)
        return "a message that was not asked for";
    if (number < ledger->next[publisher])
        return "a message came twice, or after a later one of its publisher";
    uint64_t gap = wanted_between(ledger->lanes[publisher], ledger->next[publisher], number);
    bool noticed = ledger->heard_after[publisher] < ledger->notices;
    ledger->next[publisher] = number + 1;
    ledger->heard_after[publisher] = ledger->notices;
    ledger->received++;
    ledger->missing += gap;
    const char *heard = note_heard(ledger, publisher);
    if (gap > 0 && !noticed)
        return "messages are missing with no notice where they should be";
    if (ledger->missing > ledger->admitted)
        return "more messages are missing than the notices admit";
    return heard;
}

const char *ledger_notice(struct ledger *ledger, uint64_t lost)
{
    ledger->notices++;
    ledger->admitted += lost;
    if (ledger->unheard == 0) {
        ledger->watched_admitted = ledger->admitted;
        for (int publisher = 0; publisher < PUBLISHERS_MAX; publisher++)
            if (ledger->lanes[publisher] != 0)
                ledger->unheard |= 1u << publisher;
    }
    return lost > 0 ? NULL : "a notice of no lost messages";
}

const char *ledger_close(struct ledger *ledger, const uint64_t sent[PUBLISHERS_MAX])
{
    for (int publisher = 0; publisher < PUBLISHERS_MAX; publisher++) {
        if (sent[publisher] < ledger->next[publisher])
            return "a message came that was never sent";
        ledger->missing += wanted_between(ledger->lanes[publisher], ledger->next[publisher],
                                          sent[publisher]);
        ledger->next[publisher] = sent[publisher];
    }
    if (ledger->missing > ledger->admitted)
        return "messages were lost and never admitted";
    if (ledger->missing < ledger->admitted)
        return "messages were admitted as lost that were not";
    return NULL;
}
