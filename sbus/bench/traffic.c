/* See traffic.h. */
#include "traffic.h"

#include <stdlib.h>
#include <string.h>

#include "client.h"

static const char PATTERN[] = "bench/*/G";
static const char HEAD[] = "MSG bench/000000000000/G"; /* its closing NUL ends the key */

enum { DIGITS_AT = 10, DIGITS = 12, SEQUENCE_AT = sizeof HEAD, GROUP_AT = SEQUENCE_AT - 2 };

_Static_assert((int)SEQUENCE_AT + 8 == (int)TRAFFIC_BYTES_MIN, "the layout is the header's");

void traffic_pattern(char pattern[TRAFFIC_PATTERN_BYTES], char group)
{
    memcpy(pattern, PATTERN, sizeof PATTERN);
    pattern[sizeof PATTERN - 2] = group;
}

char *traffic_new(size_t bytes, char group)
{
    char *packet = malloc(bytes);
    check(packet != NULL, "malloc");
    memset(packet, 'x', bytes);
    memcpy(packet, HEAD, sizeof HEAD);
    packet[GROUP_AT] = group;
    return packet;
}

void traffic_set(char *packet, uint64_t sequence, uint64_t keys)
{
    uint64_t number = keys == 0 ? sequence : sequence % keys;
    for (int at = DIGITS_AT + DIGITS - 1; at >= DIGITS_AT; at--) {
        packet[at] = (char)('0' + number % 10);
        number /= 10;
    }
    memcpy(packet + SEQUENCE_AT, &sequence, sizeof sequence);
}

uint64_t traffic_sequence(const char *packet)
{
    uint64_t sequence;
    memcpy(&sequence, packet + SEQUENCE_AT, sizeof sequence);
    return sequence;
}
