/* One user's flood: many connections of one process and one thread, publishing as fast as it can.
 *
 * usage: horde PATH CONNECTIONS LISTENERS BYTES
 *
 * The last LISTENERS connections subscribe to what `heard` publishes and read it at once; all the
 * others publish in turn, whenever their sockets have room. `heard` or `unheard` on stdin begins a
 * flood and answers `flooding`; `stop` ends it, waits until the bus has read everything and nothing
 * more comes, and answers `stopped` with how long it went on and how many messages were sent in
 * that time, and received.
 *
 * It does not check what it receives.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

enum {
    CONNECTIONS_MAX = 4096,
    EVENTS_MAX = 64,
    TURN_PACKETS = 64, /* sent or received on one connection before the next one's turn */
    STILL_MILLISECONDS = 20,
    KEY_AT = 4,
};

static const char HEARD[] = "MSG horde/heard"; /* the closing NUL ends the key */
static const char UNHEARD[] = "MSG horde/quiet";

_Static_assert(sizeof HEARD == sizeof UNHEARD, "both floods have packets of one length");

static int fds[CONNECTIONS_MAX];
static uint64_t connections;
static uint64_t publishers; /* the first ones; the others listen */
static char *packet;
static char *buffer;
static size_t packet_bytes;
static uint64_t sent;
static uint64_t received;

static void watch(int epoll, uint64_t at, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = at};
    check(epoll_ctl(epoll, operation, fds[at], &event) == 0, "epoll_ctl");
}

static void watch_publishers(int epoll, uint32_t events)
{
    for (uint64_t at = 0; at < publishers; at++)
        watch(epoll, at, EPOLL_CTL_MOD, events);
}

static void publish(int fd)
{
    for (int turn = 0; turn < TURN_PACKETS; turn++) {
        if (send(fd, packet, packet_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            check(errno == EAGAIN, "send");
            return;
        }
        sent++;
    }
}

static void listen_in(int fd)
{
    for (int turn = 0; turn < TURN_PACKETS; turn++) {
        ssize_t bytes = recv(fd, buffer, packet_bytes, MSG_DONTWAIT);
        if (bytes < 0) {
            check(errno == EAGAIN, "recv");
            return;
        }
        if (bytes == 0)
            die("the bus hung up");
        received++;
    }
}

/* Serve what becomes ready within a time; returns how many were, and tells whether stdin was. */
static int serve(int epoll, int milliseconds, bool *told)
{
    struct epoll_event events[EVENTS_MAX];
    int ready = epoll_wait(epoll, events, EVENTS_MAX, milliseconds);
    check(ready >= 0 || errno == EINTR, "epoll_wait");
    for (int at = 0; at < ready; at++) {
        uint64_t who = events[at].data.u64;
        if (who == connections)
            *told = true;
        else if (who < publishers)
            publish(fds[who]);
        else
            listen_in(fds[who]);
    }
    return ready;
}

/* Whether the bus has read all that was sent. */
static bool is_read(void)
{
    for (uint64_t at = 0; at < publishers; at++) {
        int unread = 0;
        check(ioctl(fds[at], TIOCOUTQ, &unread) == 0, "TIOCOUTQ");
        if (unread > 0)
            return false;
    }
    return true;
}

static void flood(int epoll, const char *head)
{
    bool told = false;
    memcpy(packet, head, sizeof HEARD);
    sent = received = 0;
    watch_publishers(epoll, EPOLLOUT);
    printf("flooding\n");
    uint64_t started_ns = now_ns();
    while (!told)
        serve(epoll, -1, &told);
    uint64_t wall_ns = now_ns() - started_ns;
    watch_publishers(epoll, 0);
    char word[16];
    uint64_t number;
    if (!next_command(word, &number) || strcmp(word, "stop") != 0)
        die("only `stop` is known in a flood");
    while (serve(epoll, STILL_MILLISECONDS, &told) > 0 || !is_read())
        ;
    printf("stopped sent=%" PRIu64 " received=%" PRIu64 " wall_ns=%" PRIu64 "\n", sent, received,
           wall_ns);
}

static int set_up(const char *path)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    check(epoll >= 0, "epoll_create1");
    for (uint64_t at = 0; at < connections; at++) {
        fds[at] = connect_bus(path);
        if (at >= publishers)
            subscribe(fds[at], HEARD + KEY_AT);
        whoami(fds[at]);
        watch(epoll, at, EPOLL_CTL_ADD, at < publishers ? 0 : EPOLLIN);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = connections};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0, "epoll_ctl");
    return epoll;
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 5)
        die("usage: horde PATH CONNECTIONS LISTENERS BYTES");
    connections = number_argument(arguments[2], 1, CONNECTIONS_MAX);
    publishers = connections - number_argument(arguments[3], 0, connections - 1);
    packet_bytes = number_argument(arguments[4], sizeof HEARD, PACKET_BYTES_MAX);
    packet = malloc(packet_bytes);
    buffer = malloc(packet_bytes);
    check(packet != NULL && buffer != NULL, "malloc");
    memset(packet, 'x', packet_bytes);
    int epoll = set_up(arguments[1]);
    printf("ready\n");
    char word[16];
    uint64_t number;
    while (next_command(word, &number)) {
        if (strcmp(word, "heard") != 0 && strcmp(word, "unheard") != 0)
            die("%s: only `heard` and `unheard` are known here", word);
        flood(epoll, strcmp(word, "heard") == 0 ? HEARD : UNHEARD);
    }
    return 0;
}
