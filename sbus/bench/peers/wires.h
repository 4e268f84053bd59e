/* The wire protocols of the brokers that sbus is compared with, as far as a load needs them.
 *
 * Replies are skipped where messages are received: all of these protocols but ZMTP allow a client
 * to send everything at once. A load finds out with its first messages that a subscription is in
 * force.
 */
#ifndef SBUS_BENCH_PEERS_WIRES_H
#define SBUS_BENCH_PEERS_WIRES_H

#include <stdbool.h>
#include <stddef.h>

enum { WIRE_BYTES_MAX = 512, WIRE_PAYLOAD_BYTES_MIN = 16 };

struct wire_bytes {
    size_t size;
    char data[WIRE_BYTES_MAX];
};

struct wire {
    bool has_packets; /* each frame is a packet of a SOCK_SEQPACKET socket, not a part of a stream */
    struct wire_bytes publisher_opening; /* what a client sends when it has connected */
    struct wire_bytes subscriber_opening;
    size_t opening_reply_bytes; /* to be received before anything else is sent */
    struct wire_bytes subscription;
    struct wire_bytes before, after; /* around the payload of a message, as it is published */

    /* Size of the frame at the start of `data`, or 0 if it is not complete. `payload` is set to its
     * payload, or to NULL if it is not a message. */
    size_t (*frame)(const char *data, size_t bytes, const char **payload);
};

/* The protocol called sbus, nats, redis, mqtt, dbus or zmtp, with payloads of this size; the end of
 * the program for any other name. */
const struct wire *wire_new(const char *protocol, size_t payload_bytes);

#endif
