/* Round trips: one client asks, another answers, through the bus; every single time is kept.
 *
 * usage: ping PATH BYTES SAMPLES-FILE none|before|after
 *
 * `go N` on stdin makes N round trips, one after the other, writes their N times to the file as
 * native 64-bit nanoseconds and answers `done ...`; `for N` makes as many as fit in N milliseconds,
 * one at least. The answering side is a thread of its own, asleep in recv between questions.
 *
 * It draws no conclusions from the times.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

static const char QUESTION[] = "MSG ping/question"; /* the closing NUL ends the key */
static const char ANSWER[] = "MSG ping/answered";

enum { SEQUENCE_AT = sizeof QUESTION, BYTES_MIN = sizeof QUESTION + 8, ROUNDS_MAX = 10000000 };

_Static_assert(sizeof QUESTION == sizeof ANSWER, "an answer is as long as its question");

static size_t packet_bytes;
static int asking_fd;
static int answering_fd;
static uint64_t sequence;

static char *new_packet(void)
{
    char *packet = malloc(packet_bytes);
    check(packet != NULL, "malloc");
    memset(packet, 'x', packet_bytes);
    memcpy(packet, QUESTION, sizeof QUESTION);
    return packet;
}

static void *answer(void *unused)
{
    char *packet = new_packet();
    (void)unused;
    for (;;) {
        size_t bytes = receive_packet(answering_fd, packet, packet_bytes);
        if (bytes != packet_bytes || memcmp(packet, QUESTION, sizeof QUESTION) != 0)
            die("not a question: %zu bytes", bytes);
        memcpy(packet, ANSWER, sizeof ANSWER);
        send_packet(answering_fd, packet, packet_bytes);
    }
}

static uint64_t round_trip_ns(char *packet, char *reply)
{
    sequence++;
    memcpy(packet + SEQUENCE_AT, &sequence, sizeof sequence);
    uint64_t started_ns = now_ns();
    send_packet(asking_fd, packet, packet_bytes);
    size_t bytes = receive_packet(asking_fd, reply, packet_bytes);
    uint64_t taken_ns = now_ns() - started_ns;
    if (bytes != packet_bytes || memcmp(reply, ANSWER, sizeof ANSWER) != 0 ||
        memcmp(reply + SEQUENCE_AT, packet + SEQUENCE_AT, packet_bytes - SEQUENCE_AT) != 0)
        die("not the answer to question %" PRIu64 ": %zu bytes", sequence, bytes);
    return taken_ns;
}

static void write_samples(const char *path, const uint64_t *samples, uint64_t rounds)
{
    FILE *file = fopen(path, "wb");
    check(file != NULL, path);
    check(fwrite(samples, sizeof *samples, rounds, file) == rounds, "fwrite");
    check(fclose(file) == 0, "fclose");
}

static void run(const char *samples_path, uint64_t rounds_max, uint64_t end_ns)
{
    char *packet = new_packet();
    char *reply = new_packet();
    uint64_t *samples = calloc(rounds_max, sizeof *samples);
    uint64_t rounds = 0;
    check(samples != NULL, "calloc");
    do {
        samples[rounds++] = round_trip_ns(packet, reply);
    } while (rounds < rounds_max && now_ns() < end_ns);
    write_samples(samples_path, samples, rounds);
    printf("done rounds=%" PRIu64 "\n", rounds);
    free(samples);
    free(reply);
    free(packet);
}

int main(int count, char **arguments)
{
    begin_program();
    if (count != 5)
        die("usage: ping PATH BYTES SAMPLES-FILE none|before|after");
    packet_bytes = number_argument(arguments[2], BYTES_MIN, PACKET_BYTES_MAX);
    asking_fd = connect_placed(arguments[1], FILLERS_NONE);
    answering_fd = connect_placed(arguments[1], fillers_argument(arguments[4]));
    make_room(asking_fd, packet_bytes);
    make_room(answering_fd, packet_bytes);
    subscribe(asking_fd, ANSWER + 4);
    subscribe(answering_fd, QUESTION + 4);
    whoami(asking_fd);
    whoami(answering_fd);
    pthread_t thread;
    errno = pthread_create(&thread, NULL, answer, NULL);
    check(errno == 0, "pthread_create");
    printf("ready\n");
    char word[16];
    uint64_t number;
    while (next_command(word, &number)) {
        if (strcmp(word, "for") == 0)
            run(arguments[3], ROUNDS_MAX, now_ns() + number * 1000000);
        else if (strcmp(word, "go") == 0 && number > 0 && number <= ROUNDS_MAX)
            run(arguments[3], number, UINT64_MAX);
        else
            die("%s: only `for MILLISECONDS` and `go N`, N at most %d, are known", word, ROUNDS_MAX);
    }
    return 0;
}
