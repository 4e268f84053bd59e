/* One publisher and its subscribers, over any broker whose protocol is in wires.c.
 *
 * usage: load PROTOCOL ADDRESS SUBSCRIBERS BYTES lockstep SAMPLES-FILE
 *        load PROTOCOL ADDRESS SUBSCRIBERS BYTES paced RATE
 *        load PROTOCOL ADDRESS SUBSCRIBERS BYTES window|batches MESSAGES
 *
 * `for N` on stdin publishes for N milliseconds and answers `done ...` when every subscriber has
 * everything, or has received nothing for a second. `lockstep` publishes a message when the one
 * before has arrived, and writes how long each took to the file, as native 64-bit nanoseconds.
 * `paced` publishes RATE messages a second, and counts those that were late. `window` publishes
 * without pause, at most that many messages ahead of the slowest subscriber, 0 for any number.
 * `batches` is the same with many messages in one write, where the protocol is a stream; otherwise
 * each is sent by itself.
 *
 * ADDRESS is a path, or HOST:PORT, or two of them: for the publisher, and after a comma for
 * subscribers. All is one thread, so that no broker's load costs more context switches than
 * another's. Payloads are checked in full. A sequence number that is left out counts as lost; one
 * that comes again or too late ends the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "../client.h"
#include "wires.h"

enum {
    SUBSCRIBERS_MAX = 1024,
    BATCH_BYTES = 16384, /* of messages in one write */
    TURN_MESSAGES = 128, /* published before something is received */
    TURN_PACKETS = 64,   /* received from one subscriber before another has its turn */
    INPUT_BYTES = 524288, /* more than the largest frame */
    SAMPLES_MAX = 10000000,
};

static const uint64_t QUIET_NS = 1000000000, PROBE_NS = 20000000, START_NS = 10000000000;

static struct subscriber {
    int fd;
    uint64_t next; /* sequence number */
    char *input;
    size_t input_bytes;
} subscribers[SUBSCRIBERS_MAX];

static const struct wire *wire;
static size_t payload_bytes;
static char *expected; /* payload, but for its sequence number */
static uint64_t subscriber_count;
static uint64_t received, lost; /* by all subscribers */
static int epoll;

static int publisher;
static uint64_t published, late; /* of a paced load: so many were sent when the next was due */
static char *output;
static size_t output_bytes, output_sent, frame_bytes, batch_frames;
static bool is_blocked; /* the broker takes nothing more now */

/* -- connecting ------------------------------------------------------------------------------ */
static int connect_tcp(const char *address, const char *colon)
{
    struct sockaddr_in target = {.sin_family = AF_INET};
    char host[64];
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    target.sin_port = htons((uint16_t)number_argument(colon + 1, 1, UINT16_MAX));
    check(inet_pton(AF_INET, host, &target.sin_addr) == 1, "inet_pton");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0, "TCP_NODELAY");
    check(connect(fd, (struct sockaddr *)&target, sizeof target) == 0, "connect");
    return fd;
}

static int connect_broker(const char *address, const struct wire_bytes *opening)
{
    const char *colon = strchr(address, ':');
    int fd = wire->has_packets ? connect_bus(address)
             : colon != NULL   ? connect_tcp(address, colon)
                               : connect_unix(address, SOCK_STREAM);
    if (opening->size > 0)
        send_packet(fd, opening->data, opening->size);
    if (wire->opening_reply_bytes > 0) {
        char reply[WIRE_BYTES_MAX];
        ssize_t needed = (ssize_t)wire->opening_reply_bytes;
        check(recv(fd, reply, (size_t)needed, MSG_WAITALL) == needed, "recv");
    }
    return fd;
}

/* -- publishing ------------------------------------------------------------------------------ */
static void make_output(bool in_batches)
{
    frame_bytes = wire->before.size + payload_bytes + wire->after.size;
    batch_frames = 1;
    if (in_batches && !wire->has_packets && frame_bytes < BATCH_BYTES)
        batch_frames = BATCH_BYTES / frame_bytes;
    output = malloc(batch_frames * frame_bytes);
    check(output != NULL, "malloc");
    for (char *frame = output; frame < output + batch_frames * frame_bytes; frame += frame_bytes) {
        memcpy(frame, wire->before.data, wire->before.size);
        memcpy(frame + wire->before.size, expected, payload_bytes);
        memcpy(frame + wire->before.size + payload_bytes, wire->after.data, wire->after.size);
    }
}

static void watch(int operation, int fd, uint32_t events, struct subscriber *subscriber)
{
    struct epoll_event event = {.events = events, .data.ptr = subscriber};
    check(epoll_ctl(epoll, operation, fd, &event) == 0, "epoll_ctl");
}

static void set_blocked(bool now)
{
    if (now != is_blocked)
        watch(EPOLL_CTL_MOD, publisher, now ? EPOLLOUT : 0, NULL);
    is_blocked = now;
}

/* Publish `count` messages, or as many as the broker takes now. */
static void publish(uint64_t count)
{
    for (;;) {
        if (output_sent == output_bytes) {
            uint64_t frames = count < batch_frames ? count : batch_frames;
            for (uint64_t at = 0; at < frames; at++, published++)
                memcpy(output + at * frame_bytes + wire->before.size, &published, 8);
            output_sent = 0;
            output_bytes = frames * frame_bytes;
            count -= frames;
        }
        if (output_bytes == 0)
            break;
        ssize_t sent = send(publisher, output + output_sent, output_bytes - output_sent,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            set_blocked(true);
            return;
        }
        check(sent >= 0, "send");
        output_sent += (size_t)sent;
    }
    set_blocked(false);
}

/* -- receiving ------------------------------------------------------------------------------- */
static void take(struct subscriber *subscriber, const char *payload)
{
    uint64_t sequence;
    memcpy(&sequence, payload, 8);
    if (sequence < subscriber->next || sequence >= published)
        die("message %" PRIu64 " in place of %" PRIu64, sequence, subscriber->next);
    if (memcmp(payload + 8, expected + 8, payload_bytes - 8) != 0)
        die("message %" PRIu64 " was altered", sequence);
    lost += sequence - subscriber->next;
    subscriber->next = sequence + 1;
    received++;
}

/* Receive once, waiting if `flags` are 0; false when there was nothing. */
static bool receive(struct subscriber *subscriber, int flags)
{
    ssize_t bytes = recv(subscriber->fd, subscriber->input + subscriber->input_bytes,
                         INPUT_BYTES - subscriber->input_bytes, flags);
    if (bytes < 0 && errno == EAGAIN)
        return false;
    check(bytes >= 0, "recv");
    if (bytes == 0)
        die("the broker hung up on a subscriber after %" PRIu64 " messages", subscriber->next);
    subscriber->input_bytes += (size_t)bytes;
    size_t at = 0, frame;
    const char *payload;
    while (at < subscriber->input_bytes) {
        frame = wire->frame(subscriber->input + at, subscriber->input_bytes - at, &payload);
        if (frame == 0)
            break;
        if (payload != NULL)
            take(subscriber, payload);
        at += frame;
    }
    subscriber->input_bytes -= at;
    memmove(subscriber->input, subscriber->input + at, subscriber->input_bytes);
    return true;
}

/* Receive what has arrived, or wait so long for it; false when nothing arrived. */
static bool receive_ready(uint64_t wait_ns)
{
    struct epoll_event events[64];
    struct timespec timeout = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
    uint64_t before = received;
    int ready = epoll_pwait2(epoll, events, 64, &timeout, NULL);
    check(ready >= 0 || errno == EINTR, "epoll_pwait2");
    for (int at = 0; at < ready; at++) {
        struct subscriber *subscriber = events[at].data.ptr;
        int turns = subscriber == NULL ? 0 : wire->has_packets ? TURN_PACKETS : 1;
        while (turns-- > 0 && receive(subscriber, MSG_DONTWAIT))
            continue;
        if (subscriber == NULL)
            publish(0);
    }
    return received > before;
}

static uint64_t slowest(void)
{
    uint64_t least = published;
    for (uint64_t at = 0; at < subscriber_count; at++)
        if (subscribers[at].next < least)
            least = subscribers[at].next;
    return least;
}

static void give_up_waiting(void)
{
    for (uint64_t at = 0; at < subscriber_count; at++) {
        lost += published - subscribers[at].next;
        subscribers[at].next = published;
    }
}

/* -- works ----------------------------------------------------------------------------------- */
static void run_lockstep(const char *path, uint64_t end_ns)
{
    uint64_t *samples = calloc(SAMPLES_MAX, sizeof *samples);
    uint64_t rounds = 0, now = now_ns();
    check(samples != NULL, "calloc");
    while (now < end_ns && rounds < SAMPLES_MAX) {
        publish(1);
        while (subscribers[0].next < published)
            receive(&subscribers[0], 0);
        uint64_t started = now;
        now = now_ns();
        samples[rounds++] = now - started;
    }
    FILE *file = fopen(path, "wb");
    check(file != NULL, path);
    check(fwrite(samples, sizeof *samples, rounds, file) == rounds, "fwrite");
    check(fclose(file) == 0, "fclose");
    free(samples);
}

/* When several messages are due, each is still sent by itself. */
static uint64_t run_paced(uint64_t rate, uint64_t start_ns, uint64_t end_ns)
{
    uint64_t due = start_ns, first = published, last_ns = start_ns, now;
    while ((now = now_ns()) < last_ns + QUIET_NS) {
        if (now >= due && due < end_ns && !is_blocked) {
            late += now >= due + 1000000000 / rate;
            publish(1);
            due = start_ns + (published - first) * 1000000000 / rate;
        }
        if (due >= end_ns && slowest() == published)
            break;
        if (receive_ready(is_blocked || due >= end_ns ? QUIET_NS : due > now ? due - now : 0))
            last_ns = now_ns();
    }
    return last_ns;
}

static uint64_t run_window(uint64_t window, uint64_t start_ns, uint64_t end_ns)
{
    uint64_t last_ns = start_ns, now;
    while ((now = now_ns()) < end_ns || slowest() < published) {
        uint64_t room = window == 0 ? UINT64_MAX : slowest() + window - published;
        bool may_publish = now < end_ns && room > 0 && !is_blocked;
        if (may_publish)
            publish(room < TURN_MESSAGES ? room : TURN_MESSAGES);
        if (receive_ready(may_publish ? 0 : QUIET_NS))
            last_ns = now_ns();
        else if (now_ns() >= last_ns + QUIET_NS && !may_publish)
            give_up_waiting();
    }
    return last_ns;
}

static void run(char **work, uint64_t milliseconds)
{
    uint64_t start_ns = now_ns(), end_ns = start_ns + milliseconds * 1000000, last_ns = end_ns;
    uint64_t published_before = published;
    received = lost = late = 0;
    if (strcmp(work[0], "lockstep") == 0)
        run_lockstep(work[1], end_ns);
    else if (strcmp(work[0], "paced") == 0)
        last_ns = run_paced(number_argument(work[1], 1, 10000000), start_ns, end_ns);
    else if (strcmp(work[0], "window") == 0 || strcmp(work[0], "batches") == 0)
        last_ns = run_window(number_argument(work[1], 0, UINT32_MAX), start_ns, end_ns);
    else
        die("%s: lockstep, paced, window or batches is needed here", work[0]);
    give_up_waiting();
    printf("done published=%" PRIu64 " late=%" PRIu64 " received=%" PRIu64 " lost=%" PRIu64
           " wall_ns=%" PRIu64 "\n",
           published - published_before, late, received, lost, last_ns - start_ns);
}

/* Publish until each subscriber has received something, and then everything. */
static void start(void)
{
    uint64_t begin_ns = now_ns();
    bool has_all = false;
    while (!has_all) {
        if (now_ns() > begin_ns + START_NS)
            die("a subscriber receives nothing");
        publish(1);
        receive_ready(PROBE_NS);
        has_all = slowest() > 0;
    }
    while (slowest() < published)
        if (!receive_ready(QUIET_NS) && now_ns() > begin_ns + START_NS)
            die("a message was lost before the load began");
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 7)
        die("usage: load PROTOCOL ADDRESS SUBSCRIBERS BYTES "
            "lockstep|paced|window|batches ARGUMENT");
    check(prctl(PR_SET_TIMERSLACK, 1) == 0, "PR_SET_TIMERSLACK");
    payload_bytes = number_argument(arguments[4], WIRE_PAYLOAD_BYTES_MIN, PACKET_BYTES_MAX);
    subscriber_count = number_argument(arguments[3], 1, SUBSCRIBERS_MAX);
    wire = wire_new(arguments[1], payload_bytes);
    expected = malloc(payload_bytes);
    check(expected != NULL, "malloc");
    memset(expected, 'x', payload_bytes);
    make_output(strcmp(arguments[5], "batches") == 0);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    check(epoll >= 0, "epoll_create1");
    const char *publishing = strtok(arguments[2], ","), *subscribing = strtok(NULL, ",");
    publisher = connect_broker(publishing, &wire->publisher_opening);
    if (wire->has_packets)
        make_room(publisher, frame_bytes);
    watch(EPOLL_CTL_ADD, publisher, 0, NULL);
    for (uint64_t at = 0; at < subscriber_count; at++) {
        struct subscriber *subscriber = &subscribers[at];
        subscriber->input = malloc(INPUT_BYTES);
        check(subscriber->input != NULL, "malloc");
        subscriber->fd = connect_broker(subscribing == NULL ? publishing : subscribing,
                                        &wire->subscriber_opening);
        send_packet(subscriber->fd, wire->subscription.data, wire->subscription.size);
        watch(EPOLL_CTL_ADD, subscriber->fd, EPOLLIN, subscriber);
    }
    start();
    printf("ready\n");
    char word[16];
    uint64_t number;
    while (next_command(word, &number)) {
        if (strcmp(word, "for") != 0 || number == 0)
            die("%s: only `for MILLISECONDS` is known here", word);
        run(arguments + 5, number);
    }
    return 0;
}
