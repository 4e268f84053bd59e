/* The least that a broker can do, for comparison with the broker.
 *
 * usage: relay PATH each|drain
 *
 * After `SUB pattern` a client receives every `MSG ...` packet of other clients whose key begins like
 * the pattern, up to its first `*`; further patterns of the same client have no effect.
 * `each`: epoll_wait, recv and send for every packet. `drain`: when a socket is
 * readable, recv until EAGAIN or a batch is full, then send each. A full subscriber blocks it.
 * Stdout is closed once it listens; SIGTERM ends it.
 *
 * It has no limits, no users, and no order between publishers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

enum {
    SUBSCRIBERS_MAX = 4096,
    PREFIX_BYTES_MAX = 56,
    BATCH_PACKETS_MAX = 64,       /* as the broker's own batches */
    BATCH_BYTES_MAX = 512 * 1024, /* likewise */
    SEND_BUFFER_BYTES = 212992,   /* likewise, so that both have queues of one depth */
};

static const char WHOAMI_REPLY[] = "CMSG !/cred/whoami\0!/cred/0/0/0";

static struct subscriber {
    int fd;
    int prefix_bytes;
    char prefix[PREFIX_BYTES_MAX];
} subscribers[SUBSCRIBERS_MAX];
static int subscriber_count;
static char arena[BATCH_BYTES_MAX + PACKET_BYTES_MAX];

static int listen_at(const char *path)
{
    struct sockaddr_un address = unix_address(path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    check(bind(fd, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(fd, 128) == 0, "listen");
    return fd;
}

static void watch(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void welcome(int epoll, int listener)
{
    int bytes = SEND_BUFFER_BYTES;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    check(fd >= 0, "accept4");
    check(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0, "SO_SNDBUF");
    watch(epoll, fd);
}

static void add_subscriber(int fd, const char *pattern, size_t bytes)
{
    for (int at = 0; at < subscriber_count; at++)
        if (subscribers[at].fd == fd)
            return;
    const char *star = memchr(pattern, '*', bytes);
    if (star != NULL)
        bytes = (size_t)(star - pattern);
    if (subscriber_count == SUBSCRIBERS_MAX || bytes > PREFIX_BYTES_MAX)
        die("more than %d subscribers, or %zu bytes in a pattern", SUBSCRIBERS_MAX, bytes);
    struct subscriber *subscriber = &subscribers[subscriber_count++];
    subscriber->fd = fd;
    subscriber->prefix_bytes = (int)bytes;
    memcpy(subscriber->prefix, pattern, bytes);
}

static bool wants(const struct subscriber *subscriber, const char *packet, size_t bytes)
{
    size_t needed = (size_t)subscriber->prefix_bytes;
    return bytes >= 4 + needed && memcmp(packet + 4, subscriber->prefix, needed) == 0;
}

static void forget(int fd)
{
    for (int at = 0; at < subscriber_count; at++)
        if (subscribers[at].fd == fd)
            subscribers[at--] = subscribers[--subscriber_count];
    check(close(fd) == 0, "close");
}

static void handle(int from, const char *packet, size_t bytes)
{
    if (bytes >= 4 && memcmp(packet, "MSG ", 4) == 0) {
        for (int at = 0; at < subscriber_count; at++)
            if (subscribers[at].fd != from && wants(&subscribers[at], packet, bytes))
                send_packet(subscribers[at].fd, packet, bytes);
    } else if (bytes >= 4 && memcmp(packet, "SUB ", 4) == 0) {
        add_subscriber(from, packet + 4, bytes - 4);
    } else if (bytes >= 18 && memcmp(packet, WHOAMI_REPLY, 18) == 0) {
        send_packet(from, WHOAMI_REPLY, sizeof WHOAMI_REPLY - 1);
    }
}

/* One turn of a readable socket: as many packets as allowed, first all received, then all sent. */
static void serve(int fd, int packets_max)
{
    size_t lengths[BATCH_PACKETS_MAX];
    size_t filled = 0;
    int packets = 0;
    bool hung_up = false;
    while (packets < packets_max && filled < BATCH_BYTES_MAX) {
        ssize_t bytes = recv(fd, arena + filled, PACKET_BYTES_MAX, MSG_DONTWAIT | MSG_TRUNC);
        if (bytes < 0 && errno == EAGAIN)
            break;
        if (bytes == 0 || (bytes < 0 && errno == ECONNRESET)) {
            hung_up = true;
            break;
        }
        check(bytes > 0, "recv");
        if (bytes > PACKET_BYTES_MAX)
            die("a packet of %zd bytes", bytes);
        filled += (size_t)bytes;
        lengths[packets++] = (size_t)bytes;
    }
    const char *packet = arena;
    for (int at = 0; at < packets; at++) {
        handle(fd, packet, lengths[at]);
        packet += lengths[at];
    }
    if (hung_up)
        forget(fd);
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 3 || (strcmp(arguments[2], "each") != 0 && strcmp(arguments[2], "drain") != 0))
        die("usage: relay PATH each|drain");
    int packets_max = strcmp(arguments[2], "each") == 0 ? 1 : BATCH_PACKETS_MAX;
    int listener = listen_at(arguments[1]);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    check(epoll >= 0, "epoll_create1");
    watch(epoll, listener);
    check(fclose(stdout) == 0, "fclose");
    for (;;) {
        struct epoll_event event;
        int ready = epoll_wait(epoll, &event, 1, -1);
        if (ready < 0 && errno == EINTR)
            continue;
        check(ready == 1, "epoll_wait");
        if (event.data.fd == listener)
            welcome(epoll, listener);
        else
            serve(event.data.fd, packets_max);
    }
}
