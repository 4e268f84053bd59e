/* One publisher and any number of subscribers, as fast as the bus lets them.
 *
 * usage: stream PATH SUBSCRIBERS BYTES KEYS WINDOW none|before|after
 *
 * `go N` on stdin sends N packets and answers `done ...` when every subscriber has every one of
 * them, each checked byte for byte and in order. The publisher is a thread that sends without
 * pause but never runs more than WINDOW packets ahead of the slowest subscriber: subscribers hand
 * out credit through an eventfd, a step at a time, so neither side ever spins. All subscribers are
 * one thread that drains whatever is readable.
 *
 * It does not measure the bus; who started it does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.h"
#include "traffic.h"

enum {
    SUBSCRIBERS_MAX = 4096,
    STEPS = 32,       /* credit is granted when the slowest subscriber has one more 1/32 of WINDOW */
    TURN_PACKETS = 64, /* received from one subscriber before another has its turn */
};

struct subscriber {
    int fd;
    uint64_t received; /* since the start of the program: also the next sequence number */
};

static size_t packet_bytes;
static uint64_t keys;
static uint64_t step;

static int publisher_fd;
static int credit_fd;
static uint64_t credit;
static uint64_t credit_waits; /* how often the publisher stood still for lack of credit */
static uint64_t published;

static struct subscriber subscribers[SUBSCRIBERS_MAX];
static int subscriber_count;
static int crossed[STEPS + 1]; /* how many subscribers reached each open step; a ring */
static char *expected;
static char *buffer;

static void take_credit(void)
{
    while (read(credit_fd, &credit, sizeof credit) < 0) {
        check(errno == EAGAIN, "read of credit");
        struct pollfd granted = {.fd = credit_fd, .events = POLLIN};
        credit_waits++;
        check(poll(&granted, 1, -1) == 1 || errno == EINTR, "poll");
    }
}

static void *publish(void *argument)
{
    uint64_t target = *(uint64_t *)argument;
    char *packet = traffic_new(packet_bytes);
    for (; published < target; published++, credit--) {
        if (credit == 0)
            take_credit();
        traffic_set(packet, published, keys);
        send_packet(publisher_fd, packet, packet_bytes);
    }
    free(packet);
    return NULL;
}

static void grant_credit(uint64_t received)
{
    int *reached = &crossed[received / step % (STEPS + 1)];
    if (++*reached < subscriber_count)
        return;
    *reached = 0;
    check(write(credit_fd, &step, sizeof step) == sizeof step, "write of credit");
}

static void verify(const struct subscriber *subscriber, size_t bytes)
{
    traffic_set(expected, subscriber->received, keys);
    if (bytes == packet_bytes && memcmp(buffer, expected, bytes) == 0)
        return;
    long number = subscriber - subscribers;
    if (bytes != packet_bytes || memcmp(buffer, expected, 4) != 0)
        die("subscriber %ld: a foreign packet of %zu bytes in place of message %" PRIu64 ": %.20s",
            number, bytes, subscriber->received, buffer);
    die("subscriber %ld: message %" PRIu64 " or an altered one in place of %" PRIu64, number,
        traffic_sequence(buffer), subscriber->received);
}

/* True when this subscriber has just received its last packet. */
static bool drain(struct subscriber *subscriber, uint64_t target)
{
    for (int turn = 0; turn < TURN_PACKETS; turn++) {
        ssize_t bytes = recv(subscriber->fd, buffer, packet_bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (bytes < 0 && errno == EAGAIN)
            return false;
        check(bytes >= 0, "recv");
        if (bytes == 0)
            die("the bus hung up");
        verify(subscriber, (size_t)bytes);
        subscriber->received++;
        if (subscriber->received % step == 0)
            grant_credit(subscriber->received);
        if (subscriber->received == target)
            return true;
    }
    return false;
}

static void receive_everything(int epoll, uint64_t target)
{
    int unfinished = subscriber_count;
    while (unfinished > 0) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll, events, 64, -1);
        if (ready < 0 && errno == EINTR)
            continue;
        check(ready > 0, "epoll_wait");
        for (int at = 0; at < ready; at++)
            if (drain(events[at].data.ptr, target))
                unfinished--;
    }
}

static void run(int epoll, uint64_t messages)
{
    uint64_t target = published + messages;
    uint64_t waits_before = credit_waits;
    uint64_t started_ns = now_ns();
    pthread_t thread;
    errno = pthread_create(&thread, NULL, publish, &target);
    check(errno == 0, "pthread_create");
    receive_everything(epoll, target);
    uint64_t wall_ns = now_ns() - started_ns;
    errno = pthread_join(thread, NULL);
    check(errno == 0, "pthread_join");
    printf("done messages=%" PRIu64 " deliveries=%" PRIu64 " wall_ns=%" PRIu64 " waits=%" PRIu64
           "\n",
           messages, messages * (uint64_t)subscriber_count, wall_ns, credit_waits - waits_before);
}

static int set_up(const char *path, enum fillers fillers)
{
    credit_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    check(credit_fd >= 0, "eventfd");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    check(epoll >= 0, "epoll_create1");
    publisher_fd = connect_placed(path, FILLERS_NONE);
    for (int at = 0; at < subscriber_count; at++) {
        int fd = connect_placed(path, fillers);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &subscribers[at]};
        subscribers[at].fd = fd;
        subscribe(fd, TRAFFIC_PATTERN);
        whoami(fd);
        check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
    return epoll;
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 7)
        die("usage: stream PATH SUBSCRIBERS BYTES KEYS WINDOW none|before|after");
    subscriber_count = (int)number_argument(arguments[2], 1, SUBSCRIBERS_MAX);
    packet_bytes = number_argument(arguments[3], TRAFFIC_BYTES_MIN, PACKET_BYTES_MAX);
    keys = number_argument(arguments[4], 0, UINT32_MAX);
    step = number_argument(arguments[5], STEPS, UINT32_MAX) / STEPS;
    credit = step * STEPS;
    expected = traffic_new(packet_bytes);
    buffer = traffic_new(packet_bytes);
    int epoll = set_up(arguments[1], fillers_argument(arguments[6]));
    printf("ready\n");
    char word[16];
    uint64_t number;
    while (next_command(word, &number)) {
        if (strcmp(word, "go") != 0 || number == 0)
            die("%s: only `go N` is known here", word);
        run(epoll, number);
    }
    return 0;
}
