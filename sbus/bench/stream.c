/* A group of publishers and subscribers, as fast as the bus lets them.
 *
 * usage: stream PATH GROUP PUBLISHERS SUBSCRIBERS BYTES KEYS WINDOW none|before|after [CHOICE]...
 *
 * `go N` on stdin sends N packets and answers `done ...` when every subscriber has every one of
 * them, each checked byte for byte and in the order of its publisher. The publishers are a thread
 * that sends without pause, on one connection after the other, but never runs more than WINDOW
 * packets ahead of the slowest subscriber: subscribers hand out credit through an eventfd, a step
 * at a time, so neither side ever spins. All subscribers are one thread that drains whatever is
 * readable. Each subscriber makes its CHOICEs, `blocking/soft/block` for one, first.
 *
 * `hold` sends, and receives nothing, until no publisher can send any more, and answers `held ...`;
 * `release` makes sure that the bus has read nothing of any publisher since then, receives
 * everything, checked as ever, and answers `done ...`.
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
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "traffic.h"

enum {
    SUBSCRIBERS_MAX = 4096,
    PUBLISHERS_MAX = 16,
    STEPS = 32,       /* credit is granted when the slowest subscriber has one more 1/32 of WINDOW */
    TURN_PACKETS = 64, /* received from one subscriber before another has its turn */
    STILL_MILLISECONDS = 50, /* a publisher that cannot send for so long is held */
};

/* Of P publishers number N has the sequence numbers N, N + P, N + 2P and so on. */
struct publisher {
    int fd;
    uint64_t next; /* sequence number */
    int unread;    /* bytes of it that the bus had not read when all were held */
};

struct subscriber {
    int fd;
    uint64_t received;             /* since the start of the program */
    uint64_t next[PUBLISHERS_MAX]; /* sequence number, of each publisher */
};

static char group;
static size_t packet_bytes;
static uint64_t keys;
static uint64_t step;

static struct publisher publishers[PUBLISHERS_MAX];
static uint64_t publisher_count;
static int credit_fd;
static uint64_t credit;
static uint64_t credit_waits; /* how often publishing stood still for lack of credit */
static uint64_t published;    /* since the start of the program */
static uint64_t held_since_ns;

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
    char *packet = traffic_new(packet_bytes, group);
    for (uint64_t at = 0; published < target; published++, credit--) {
        struct publisher *publisher = &publishers[at];
        if (credit == 0)
            take_credit();
        traffic_set(packet, publisher->next, keys);
        send_packet(publisher->fd, packet, packet_bytes);
        publisher->next += publisher_count;
        at = at + 1 == publisher_count ? 0 : at + 1;
    }
    free(packet);
    return NULL;
}

/* Send what this publisher's socket takes; whether that was anything. */
static bool publish_what_fits(struct publisher *publisher, char *packet)
{
    uint64_t before = publisher->next;
    for (;; published++, credit--, publisher->next += publisher_count) {
        if (credit == 0 && read(credit_fd, &credit, sizeof credit) < 0)
            die("nobody holds the publishers back: all they may send is sent");
        traffic_set(packet, publisher->next, keys);
        ssize_t sent = send(publisher->fd, packet, packet_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            return publisher->next > before;
        check(sent >= 0, "send");
    }
}

static int unread_bytes(const struct publisher *publisher)
{
    int unread = 0;
    check(ioctl(publisher->fd, TIOCOUTQ, &unread) == 0, "TIOCOUTQ");
    return unread;
}

static void hold(void)
{
    char *packet = traffic_new(packet_bytes, group);
    uint64_t before = published;
    bool still;
    do {
        still = true;
        for (uint64_t at = 0; at < publisher_count; at++)
            if (publish_what_fits(&publishers[at], packet))
                still = false;
        check(usleep(STILL_MILLISECONDS * 1000) == 0, "usleep");
    } while (!still);
    free(packet);
    for (uint64_t at = 0; at < publisher_count; at++)
        publishers[at].unread = unread_bytes(&publishers[at]);
    held_since_ns = now_ns();
    printf("held messages=%" PRIu64 "\n", published - before);
}

static void grant_credit(uint64_t received)
{
    int *reached = &crossed[received / step % (STEPS + 1)];
    if (++*reached < subscriber_count)
        return;
    *reached = 0;
    check(write(credit_fd, &step, sizeof step) == sizeof step, "write of credit");
}

static void verify(struct subscriber *subscriber, size_t bytes)
{
    uint64_t *next = &subscriber->next[traffic_sequence(buffer) % publisher_count];
    traffic_set(expected, *next, keys);
    if (bytes == packet_bytes && memcmp(buffer, expected, bytes) == 0) {
        *next += publisher_count;
        return;
    }
    long number = subscriber - subscribers;
    if (bytes != packet_bytes || memcmp(buffer, expected, 4) != 0)
        die("subscriber %ld: a foreign packet of %zu bytes in place of message %" PRIu64 ": %.20s",
            number, bytes, *next, buffer);
    die("subscriber %ld: message %" PRIu64 " or an altered one in place of %" PRIu64, number,
        traffic_sequence(buffer), *next);
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

static void release(int epoll)
{
    uint64_t held_ns = now_ns() - held_since_ns;
    for (uint64_t at = 0; at < publisher_count; at++)
        if (unread_bytes(&publishers[at]) != publishers[at].unread)
            die("publisher %" PRIu64 " was not held all the time", at);
    receive_everything(epoll, published);
    printf("done held_ns=%" PRIu64 "\n", held_ns);
}

static void choose(int fd, char **choices)
{
    for (; *choices != NULL; choices++) {
        char packet[128];
        int bytes = snprintf(packet, sizeof packet, "CMSG %s", *choices);
        if (bytes < 0 || (size_t)bytes >= sizeof packet)
            die("%s: too long a choice", *choices);
        send_packet(fd, packet, (size_t)bytes);
    }
}

static int set_up(const char *path, enum fillers fillers, char **choices)
{
    char pattern[TRAFFIC_PATTERN_BYTES];
    traffic_pattern(pattern, group);
    credit_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    check(credit_fd >= 0, "eventfd");
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    check(epoll >= 0, "epoll_create1");
    for (uint64_t at = 0; at < publisher_count; at++) {
        publishers[at].fd = connect_placed(path, at == 0 ? FILLERS_NONE : FILLERS_BEFORE);
        make_room(publishers[at].fd, packet_bytes);
        publishers[at].next = at;
    }
    for (int at = 0; at < subscriber_count; at++) {
        int fd = connect_placed(path, fillers);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &subscribers[at]};
        subscribers[at].fd = fd;
        for (uint64_t publisher = 0; publisher < publisher_count; publisher++)
            subscribers[at].next[publisher] = publisher;
        choose(fd, choices);
        subscribe(fd, pattern);
        whoami(fd);
        check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
    return epoll;
}

int main(int count, char **arguments)
{
    begin_program();
    if (count < 9 || strlen(arguments[2]) != 1)
        die("usage: stream PATH GROUP PUBLISHERS SUBSCRIBERS BYTES KEYS WINDOW none|before|after "
            "[CHOICE]...");
    group = arguments[2][0];
    publisher_count = number_argument(arguments[3], 1, PUBLISHERS_MAX);
    subscriber_count = (int)number_argument(arguments[4], 1, SUBSCRIBERS_MAX);
    packet_bytes = number_argument(arguments[5], TRAFFIC_BYTES_MIN, PACKET_BYTES_MAX);
    keys = number_argument(arguments[6], 0, UINT32_MAX);
    step = number_argument(arguments[7], STEPS, UINT32_MAX) / STEPS;
    credit = step * STEPS;
    expected = traffic_new(packet_bytes, group);
    buffer = traffic_new(packet_bytes, group);
    int epoll = set_up(arguments[1], fillers_argument(arguments[8]), arguments + 9);
    printf("ready\n");
    char word[16];
    uint64_t number;
    while (next_command(word, &number)) {
        if (strcmp(word, "go") == 0 && number > 0)
            run(epoll, number);
        else if (strcmp(word, "hold") == 0)
            hold();
        else if (strcmp(word, "release") == 0 && held_since_ns > 0)
            release(epoll);
        else
            die("%s: only `go N`, `hold` and then `release` are known here", word);
    }
    return 0;
}
