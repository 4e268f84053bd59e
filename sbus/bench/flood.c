/* Many publishers, many subscribers with overlapping patterns, some too slow, for a long time.
 *
 * usage: flood PATH PUBLISHERS SUBSCRIBERS SLOW KINDS BYTES
 *
 * Publishers send without pause from the moment of set-up, keys `soak/PP/L`. The last SLOW
 * subscribers wait after each packet, so a bus that bounds its backlogs must discard; notices are
 * on, and each subscriber keeps a ledger (ledger.h). Subscribers differ in KINDS ways, one to all.
 * `report` on stdin answers with the figures so far; `stop` ends the sending, waits until every
 * subscriber has all that is meant for it, closes the ledgers and answers the final figures.
 * Violations go to stderr as they happen, the first few of them.
 *
 * It does not judge speed or memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ledger.h"
#include "client.h"

enum {
    SUBSCRIBERS_MAX = 256,
    KEY_AT = 4,     /* in `MSG soak/PP/L` */
    NUMBER_AT = 14, /* behind the key's NUL: publisher and number, 8 bytes each */
    BYTES_MIN = NUMBER_AT + 16,
    REPLY_BYTES_MAX = 256, /* of what the bus itself says */
    PATTERNS_MAX = 3,
    VIOLATIONS_SHOWN = 10,
    PAUSE_MICROSECONDS_MIN = 500,
};

static const char LOST[] = "CMSG !/lost"; /* its closing NUL ends the key */

/* A kind of subscriber: its patterns, and what they match written down a second way, so that
 * neither is computed from the other: publishers from `first` to `last`, or also `other`. */
static const struct kind {
    const char *patterns[PATTERNS_MAX];
    int first, last, other;
    uint8_t lanes;
} KINDS[] = {
    {{"soak/"}, 0, 15, 0, 0xff},
    {{"soak/", "soak/*/3"}, 0, 15, 0, 0xff},
    {{"soak/*/0", "soak/*/1"}, 0, 15, 0, 0x03},
    {{"soak/00/", "soak/0*/", "soak/00/5"}, 0, 9, 0, 0xff},
    {{"", "soak/*/"}, 0, 15, 0, 0xff},
    {{"soak/1*/2", "soak/1*/*"}, 10, 15, 10, 0xff},
    {{"soak/05/", "soak/12/"}, 5, 5, 12, 0xff},
    {{"soak/*/7", "soak/07/7*"}, 0, 15, 0, 0x80},
};

struct publisher {
    int fd;
    uint64_t number;
    _Atomic uint64_t sent;
    uint64_t sent_at_report;
    pthread_t thread;
};

struct subscriber {
    int fd;
    useconds_t pause_microseconds;
    struct ledger ledger; /* the thread's own; the rest shows it to the others */
    _Atomic uint64_t received;
    _Atomic uint64_t notices;
    _Atomic uint64_t lost;
    uint64_t progress_at_report;
    pthread_t thread;
};

static struct publisher publishers[PUBLISHERS_MAX];
static struct subscriber subscribers[SUBSCRIBERS_MAX];
static uint64_t publisher_count;
static uint64_t subscriber_count;
static size_t packet_bytes;
static atomic_bool stopping; /* publishers end */
static atomic_bool draining; /* slow subscribers hurry */
static _Atomic uint64_t violations;

static char *new_buffer(void)
{
    size_t bytes = packet_bytes + REPLY_BYTES_MAX;
    char *buffer = malloc(bytes);
    check(buffer != NULL, "malloc");
    memset(buffer, 'x', bytes);
    return buffer;
}

static void report_violation(const struct subscriber *subscriber, const char *what)
{
    if (what != NULL && atomic_fetch_add(&violations, 1) < VIOLATIONS_SHOWN)
        fprintf(stderr, "subscriber %td: %s (received %" PRIu64 ", missing %" PRIu64
                ", admitted %" PRIu64 ")\n", subscriber - subscribers, what,
                subscriber->ledger.received, subscriber->ledger.missing,
                subscriber->ledger.admitted);
}

static void *publish(void *argument)
{
    struct publisher *self = argument;
    char *packet = new_buffer();
    snprintf(packet, NUMBER_AT, "MSG soak/%02" PRIu64 "/0", self->number % 100);
    memcpy(packet + NUMBER_AT, &self->number, 8);
    for (uint64_t number = 0; !atomic_load_explicit(&stopping, memory_order_relaxed);) {
        packet[NUMBER_AT - 2] = (char)('0' + number % LANES);
        memcpy(packet + NUMBER_AT + 8, &number, 8);
        send_packet(self->fd, packet, packet_bytes);
        atomic_store_explicit(&self->sent, ++number, memory_order_relaxed);
    }
    whoami(self->fd);
    free(packet);
    return NULL;
}

static const char *take_message(struct ledger *ledger, const char *packet)
{
    uint64_t publisher, number;
    char key[NUMBER_AT - KEY_AT];
    memcpy(&publisher, packet + NUMBER_AT, 8);
    memcpy(&number, packet + NUMBER_AT + 8, 8);
    snprintf(key, sizeof key, "soak/%02u/%u", (unsigned)(publisher % 100),
             (unsigned)(number % LANES));
    if (memcmp(packet + KEY_AT, key, sizeof key) != 0)
        return "a key that does not belong to its payload";
    return ledger_message(ledger, publisher, number);
}

static const char *take_notice(struct ledger *ledger, const char *packet, size_t bytes)
{
    char count[24] = "";
    char *end = NULL;
    if (bytes - sizeof LOST >= sizeof count)
        return "a notice with too long a count";
    memcpy(count, packet + sizeof LOST, bytes - sizeof LOST);
    errno = 0;
    uint64_t lost = strtoull(count, &end, 10);
    if (errno != 0 || end == count || *end != '\0')
        return "a notice without a count";
    return ledger_notice(ledger, lost);
}

static void *receive(void *argument)
{
    struct subscriber *self = argument;
    char *packet = new_buffer();
    for (;;) {
        size_t bytes = receive_packet(self->fd, packet, packet_bytes + REPLY_BYTES_MAX);
        if (bytes == packet_bytes && memcmp(packet, "MSG ", 4) == 0) {
            report_violation(self, take_message(&self->ledger, packet));
        } else if (bytes > sizeof LOST && memcmp(packet, LOST, sizeof LOST) == 0) {
            report_violation(self, take_notice(&self->ledger, packet, bytes));
        } else if (is_whoami_reply(packet, bytes)) {
            break;
        } else {
            report_violation(self, "a packet that nobody sent");
        }
        atomic_store_explicit(&self->received, self->ledger.received, memory_order_relaxed);
        atomic_store_explicit(&self->notices, self->ledger.notices, memory_order_relaxed);
        atomic_store_explicit(&self->lost, self->ledger.admitted, memory_order_relaxed);
        if (self->pause_microseconds > 0 && packet[0] == 'M' && !atomic_load(&draining))
            check(usleep(self->pause_microseconds) == 0, "usleep");
    }
    free(packet);
    return NULL;
}

static void set_up_subscriber(struct subscriber *self, const char *path, const struct kind *kind)
{
    for (int publisher = 0; publisher < PUBLISHERS_MAX; publisher++)
        if ((publisher >= kind->first && publisher <= kind->last) || publisher == kind->other)
            self->ledger.lanes[publisher] = kind->lanes;
    self->fd = connect_bus(path);
    send_packet(self->fd, "CMSG !/notices/on", strlen("CMSG !/notices/on"));
    for (int at = 0; at < PATTERNS_MAX && kind->patterns[at] != NULL; at++)
        subscribe(self->fd, kind->patterns[at]);
    whoami(self->fd);
}

static void start(const char *path, uint64_t slow_count, uint64_t kinds)
{
    for (uint64_t at = 0; at < subscriber_count; at++) {
        struct subscriber *self = &subscribers[at];
        if (at >= subscriber_count - slow_count)
            self->pause_microseconds = PAUSE_MICROSECONDS_MIN << at % 4;
        set_up_subscriber(self, path, &KINDS[at % kinds]);
        errno = pthread_create(&self->thread, NULL, receive, self);
        check(errno == 0, "pthread_create");
    }
    for (uint64_t at = 0; at < publisher_count; at++) {
        publishers[at].number = at;
        publishers[at].fd = connect_bus(path);
        whoami(publishers[at].fd);
    }
    for (uint64_t at = 0; at < publisher_count; at++) {
        errno = pthread_create(&publishers[at].thread, NULL, publish, &publishers[at]);
        check(errno == 0, "pthread_create");
    }
}

/* Whether any publisher sends it messages. */
static bool expects_messages(const struct subscriber *subscriber)
{
    for (uint64_t publisher = 0; publisher < publisher_count; publisher++)
        if (subscriber->ledger.lanes[publisher] != 0)
            return true;
    return false;
}

/* `idle_...` counts the clients that did nothing since the previous report. */
static void report(const char *word)
{
    uint64_t sent = 0, received = 0, notices = 0, lost = 0;
    uint64_t idle_publishers = 0, idle_subscribers = 0;
    for (uint64_t at = 0; at < publisher_count; at++) {
        uint64_t now = publishers[at].sent;
        idle_publishers += now == publishers[at].sent_at_report;
        publishers[at].sent_at_report = now;
        sent += now;
    }
    for (uint64_t at = 0; at < subscriber_count; at++) {
        struct subscriber *self = &subscribers[at];
        uint64_t progress = self->received + self->notices;
        idle_subscribers += progress == self->progress_at_report && expects_messages(self);
        self->progress_at_report = progress;
        received += self->received;
        notices += self->notices;
        lost += self->lost;
    }
    printf("%s sent=%" PRIu64 " received=%" PRIu64 " lost=%" PRIu64 " notices=%" PRIu64
           " idle_publishers=%" PRIu64 " idle_subscribers=%" PRIu64 " violations=%" PRIu64 "\n",
           word, sent, received, lost, notices, idle_publishers, idle_subscribers,
           (uint64_t)violations);
}

static void stop(void)
{
    uint64_t sent[PUBLISHERS_MAX] = {0};
    atomic_store(&stopping, true);
    for (uint64_t at = 0; at < publisher_count; at++) {
        errno = pthread_join(publishers[at].thread, NULL);
        check(errno == 0, "pthread_join");
        sent[at] = publishers[at].sent;
    }
    atomic_store(&draining, true);
    for (uint64_t at = 0; at < subscriber_count; at++)
        send_whoami(subscribers[at].fd);
    for (uint64_t at = 0; at < subscriber_count; at++) {
        errno = pthread_join(subscribers[at].thread, NULL);
        check(errno == 0, "pthread_join");
        report_violation(&subscribers[at], ledger_close(&subscribers[at].ledger, sent));
    }
    report("stopped");
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 7)
        die("usage: flood PATH PUBLISHERS SUBSCRIBERS SLOW KINDS BYTES");
    publisher_count = number_argument(arguments[2], 1, PUBLISHERS_MAX);
    subscriber_count = number_argument(arguments[3], 1, SUBSCRIBERS_MAX);
    uint64_t slow_count = number_argument(arguments[4], 0, subscriber_count);
    uint64_t kinds = number_argument(arguments[5], 1, sizeof KINDS / sizeof *KINDS);
    packet_bytes = number_argument(arguments[6], BYTES_MIN, PACKET_BYTES_MAX);
    start(arguments[1], slow_count, kinds);
    printf("ready\n");
    char word[16];
    uint64_t unused;
    while (next_command(word, &unused)) {
        if (strcmp(word, "report") == 0)
            report("report");
        else if (strcmp(word, "stop") == 0)
            stop();
        else
            die("%s: only `report` and `stop` are known here", word);
    }
    return 0;
}
