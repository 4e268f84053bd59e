/* What every benchmark program needs of a client: connect, send, receive, complain.
 *
 * Sockets are blocking SOCK_SEQPACKET; every failure of a system call ends the program with one
 * line on stderr, because a measurement with an error in it is no measurement. Programs take
 * commands as lines on stdin, answer with lines on stdout, and end when stdin ends or when the
 * process that started them does.
 */
#ifndef SBUS_BENCH_CLIENT_H
#define SBUS_BENCH_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>
#include <sys/un.h>

enum { PACKET_BYTES_MAX = 409600 }; /* the largest packet of the protocol */

/* Print one line to stderr and end with status 1. */
noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* End, naming what failed and errno, unless `succeeded`. */
void check(bool succeeded, const char *what);

/* Call first: the program shall not outlive its parent, and its output is line by line. */
void begin_program(void);

/* A whole decimal number between the bounds, or the end of the program. */
uint64_t number_argument(const char *text, uint64_t least, uint64_t most);

/* The next line of stdin is `WORD` or `WORD NUMBER`; false at the end of input. */
bool next_command(char word[16], uint64_t *number);

/* The address of a socket in the file system. */
struct sockaddr_un unix_address(const char *path);

int connect_unix(const char *path, int type);
int connect_bus(const char *path);

/* Let the socket take packets of this size; most take less than the largest packet. */
void make_room(int fd, size_t packet_bytes);

void send_packet(int fd, const void *packet, size_t bytes);

/* Length of the packet as it was sent, even where it did not fit; the end of the program when the
 * bus hung up. */
size_t receive_packet(int fd, void *buffer, size_t bytes);

void subscribe(int fd, const char *pattern);

/* The reply to whoami follows everything the bus did for this client before; nothing else may be
 * waiting to be received. */
void send_whoami(int fd);
void whoami(int fd);
bool is_whoami_reply(const char *packet, size_t bytes);

uint64_t now_ns(void);

#endif
