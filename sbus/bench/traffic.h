/* The measured packets: `MSG bench/NNNNNNNNNNNN/G`, a NUL, a sequence number, filling.
 *
 * G is a letter, the same in all packets of a group: `m`, where there is no other group.
 * A packet is a function of its sequence number, so a receiver can tell a lost, doubled, reordered
 * or altered one by comparing it with the one that it builds itself. Keys repeat after `keys`
 * messages, or never.
 */
#ifndef SBUS_BENCH_TRAFFIC_H
#define SBUS_BENCH_TRAFFIC_H

#include <stddef.h>
#include <stdint.h>

enum { TRAFFIC_PATTERN_BYTES = sizeof "bench/*/G", TRAFFIC_BYTES_MIN = 4 + 6 + 12 + 2 + 1 + 8 };

/* What matches every key of a group and none of another. */
void traffic_pattern(char pattern[TRAFFIC_PATTERN_BYTES], char group);

/* A packet of exactly `bytes` (at least TRAFFIC_BYTES_MIN), to be freed by the caller. */
char *traffic_new(size_t bytes, char group);

/* Make it the packet number `sequence`; `keys` different keys, 0 for a new one in each. */
void traffic_set(char *packet, uint64_t sequence, uint64_t keys);

/* The sequence number that a packet of at least TRAFFIC_BYTES_MIN bytes carries. */
uint64_t traffic_sequence(const char *packet);

#endif
