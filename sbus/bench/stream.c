/* A group of publishers and their subscriber, as fast as the bus lets them.
 *
 * usage: stream PATH GROUP PUBLISHERS BYTES WINDOW none|before|after [CHOICE]...
 *
 * `go N` on stdin sends N packets and answers `done ...` when the subscriber has all of them, each
 * checked byte for byte and in the order of its publisher. The publishers are a thread that sends
 * without pause, on one connection after the other, but never runs more than WINDOW packets ahead
 * of the subscriber, which hands out credit through an eventfd, a step at a time, so neither side
 * ever spins. The subscriber makes its CHOICEs, `blocking/soft/block` for one, first.
 *
 * `hold` sends, and receives nothing, until no publisher can send any more, and answers `held ...`;
 * `release` makes sure that the bus has read nothing of any publisher since then, receives
 * everything, checked as ever, and answers `done ...`.
 *
 * A packet is `MSG bench/NNNNNNNNNNNN/G`, a NUL, its sequence number and filling. G is a letter, the
 * same in all packets of a group. The packet is a function of its sequence number, so the
 * subscriber can tell a lost, doubled, reordered or altered one by comparing it with the one that it
 * builds itself.
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
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

static const char HEAD[] = "MSG bench/000000000000/G"; /* its closing NUL ends the key */

enum {
    DIGITS_AT = 10,
    DIGITS = 12,
    SEQUENCE_AT = sizeof HEAD,
    GROUP_AT = SEQUENCE_AT - 2,
    BYTES_MIN = SEQUENCE_AT + 8,
    KEYS = 16, /* different ones in turn */
    PUBLISHERS_MAX = 16,
    STEPS = 32,              /* credit is granted for each 1/32 of WINDOW */
    STILL_MILLISECONDS = 50, /* a publisher that cannot send for so long is held */
};

/* Of P publishers number N has the sequence numbers N, N + P, N + 2P and so on. */
static struct publisher {
    int fd;
    uint64_t next;     /* sequence number */
    uint64_t expected; /* sequence number of the next that the subscriber receives */
    int unread;        /* bytes of it that the bus had not read when all were held */
} publishers[PUBLISHERS_MAX];

static char group;
static size_t packet_bytes;
static uint64_t step;
static uint64_t publisher_count;
static int credit_fd;
static uint64_t credit;
static uint64_t published; /* since the start of the program */
static uint64_t held_since_ns;

static int subscriber_fd;
static uint64_t received; /* since the start of the program */
static char *expected;
static char *buffer;

/* -- packets --------------------------------------------------------------------------------- */
static char *new_packet(void)
{
    char *packet = malloc(packet_bytes);
    check(packet != NULL, "malloc");
    memset(packet, 'x', packet_bytes);
    memcpy(packet, HEAD, sizeof HEAD);
    packet[GROUP_AT] = group;
    return packet;
}

static void set_sequence(char *packet, uint64_t sequence)
{
    uint64_t number = sequence % KEYS;
    for (int at = DIGITS_AT + DIGITS - 1; at >= DIGITS_AT; at--) {
        packet[at] = (char)('0' + number % 10);
        number /= 10;
    }
    memcpy(packet + SEQUENCE_AT, &sequence, sizeof sequence);
}

static uint64_t sequence_of(const char *packet)
{
    uint64_t sequence;
    memcpy(&sequence, packet + SEQUENCE_AT, sizeof sequence);
    return sequence;
}

/* -- publishing ------------------------------------------------------------------------------ */
static void take_credit(void)
{
    while (read(credit_fd, &credit, sizeof credit) < 0) {
        check(errno == EAGAIN, "read of credit");
        struct pollfd granted = {.fd = credit_fd, .events = POLLIN};
        check(poll(&granted, 1, -1) == 1 || errno == EINTR, "poll");
    }
}

static void *publish(void *argument)
{
    uint64_t target = *(uint64_t *)argument;
    char *packet = new_packet();
    for (uint64_t at = 0; published < target; published++, credit--) {
        struct publisher *publisher = &publishers[at];
        if (credit == 0)
            take_credit();
        set_sequence(packet, publisher->next);
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
        set_sequence(packet, publisher->next);
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
    char *packet = new_packet();
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

/* -- receiving ------------------------------------------------------------------------------- */
static void verify(size_t bytes)
{
    uint64_t *next = &publishers[sequence_of(buffer) % publisher_count].expected;
    set_sequence(expected, *next);
    if (bytes != packet_bytes || memcmp(buffer, expected, 4) != 0)
        die("a foreign packet of %zu bytes in place of message %" PRIu64 ": %.20s", bytes, *next,
            buffer);
    if (memcmp(buffer, expected, bytes) != 0)
        die("message %" PRIu64 " or an altered one in place of %" PRIu64, sequence_of(buffer),
            *next);
    *next += publisher_count;
}

static void receive_everything(uint64_t target)
{
    while (received < target) {
        verify(receive_packet(subscriber_fd, buffer, packet_bytes));
        if (++received % step == 0)
            check(write(credit_fd, &step, sizeof step) == sizeof step, "write of credit");
    }
}

static void run(uint64_t messages)
{
    uint64_t target = published + messages;
    uint64_t started_ns = now_ns();
    pthread_t thread;
    errno = pthread_create(&thread, NULL, publish, &target);
    check(errno == 0, "pthread_create");
    receive_everything(target);
    uint64_t wall_ns = now_ns() - started_ns;
    errno = pthread_join(thread, NULL);
    check(errno == 0, "pthread_join");
    printf("done deliveries=%" PRIu64 " wall_ns=%" PRIu64 "\n", messages, wall_ns);
}

static void release(void)
{
    uint64_t held_ns = now_ns() - held_since_ns;
    for (uint64_t at = 0; at < publisher_count; at++)
        if (unread_bytes(&publishers[at]) != publishers[at].unread)
            die("publisher %" PRIu64 " was not held all the time", at);
    receive_everything(published);
    printf("done held_ns=%" PRIu64 "\n", held_ns);
}

/* -- the program ----------------------------------------------------------------------------- */
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

static void set_up(const char *path, enum fillers fillers, char **choices)
{
    char pattern[] = "bench/*/G";
    pattern[sizeof pattern - 2] = group;
    credit_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    check(credit_fd >= 0, "eventfd");
    for (uint64_t at = 0; at < publisher_count; at++) {
        publishers[at].fd = connect_placed(path, at == 0 ? FILLERS_NONE : FILLERS_BEFORE);
        make_room(publishers[at].fd, packet_bytes);
        publishers[at].next = publishers[at].expected = at;
    }
    subscriber_fd = connect_placed(path, fillers);
    choose(subscriber_fd, choices);
    subscribe(subscriber_fd, pattern);
    whoami(subscriber_fd);
}

int main(int count, char **arguments)
{
    begin_program();
    if (count < 7 || strlen(arguments[2]) != 1)
        die("usage: stream PATH GROUP PUBLISHERS BYTES WINDOW none|before|after [CHOICE]...");
    group = arguments[2][0];
    publisher_count = number_argument(arguments[3], 1, PUBLISHERS_MAX);
    packet_bytes = number_argument(arguments[4], BYTES_MIN, PACKET_BYTES_MAX);
    step = number_argument(arguments[5], STEPS, UINT32_MAX) / STEPS;
    credit = step * STEPS;
    expected = new_packet();
    buffer = new_packet();
    set_up(arguments[1], fillers_argument(arguments[6]), arguments + 7);
    printf("ready\n");
    char word[16];
    uint64_t number;
    while (next_command(word, &number)) {
        if (strcmp(word, "go") == 0 && number > 0)
            run(number);
        else if (strcmp(word, "hold") == 0)
            hold();
        else if (strcmp(word, "release") == 0 && held_since_ns > 0)
            release();
        else
            die("%s: only `go N`, `hold` and then `release` are known here", word);
    }
    return 0;
}
