/* See client.h. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KERNEL_BYTES = 32 }; /* of SO_SNDBUF, besides the packet: unix_dgram_sendmsg() */

static const char WHOAMI[] = "CMSG !/cred/whoami";

noreturn void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void check(bool succeeded, const char *what)
{
    if (!succeeded)
        die("%s: %s", what, strerror(errno));
}

void begin_program(void)
{
    check(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
    check(setvbuf(stdout, NULL, _IOLBF, 0) == 0, "setvbuf");
}

uint64_t number_argument(const char *text, uint64_t least, uint64_t most)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > most)
        die("%s: a number from %llu to %llu is needed here", text, (unsigned long long)least,
            (unsigned long long)most);
    return value;
}

bool next_command(char word[16], uint64_t *number)
{
    char line[64];
    if (fgets(line, sizeof line, stdin) == NULL)
        return false;
    unsigned long long value = 0;
    if (sscanf(line, "%15s %llu", word, &value) < 1)
        die("a command is needed, not %s", line);
    *number = value;
    return true;
}

struct sockaddr_un unix_address(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("%s: too long for a socket's address", path);
    strcpy(address.sun_path, path);
    return address;
}

int connect_unix(const char *path, int type)
{
    struct sockaddr_un address = unix_address(path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return fd;
}

int connect_bus(const char *path)
{
    return connect_unix(path, SOCK_SEQPACKET);
}

void make_room(int fd, size_t packet_bytes)
{
    int granted, needed = (int)packet_bytes + KERNEL_BYTES;
    socklen_t size = sizeof granted;
    check(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &size) == 0, "SO_SNDBUF");
    if (granted >= needed)
        return;
    int requested = needed / 2 + 1; /* the kernel doubles it */
    check(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &requested, sizeof requested) == 0, "SO_SNDBUF");
}

void send_packet(int fd, const void *packet, size_t bytes)
{
    ssize_t sent = send(fd, packet, bytes, MSG_NOSIGNAL);
    check(sent >= 0, "send");
    if ((size_t)sent != bytes)
        die("send took %zd of %zu bytes", sent, bytes);
}

size_t receive_packet(int fd, void *buffer, size_t bytes)
{
    ssize_t received = recv(fd, buffer, bytes, MSG_TRUNC);
    check(received >= 0, "recv");
    if (received == 0)
        die("the bus hung up");
    return (size_t)received;
}

void subscribe(int fd, const char *pattern)
{
    char packet[128];
    int bytes = snprintf(packet, sizeof packet, "SUB %s", pattern);
    if (bytes < 0 || (size_t)bytes >= sizeof packet)
        die("%s: too long a pattern", pattern);
    send_packet(fd, packet, (size_t)bytes);
}

void send_whoami(int fd)
{
    send_packet(fd, WHOAMI, sizeof WHOAMI - 1);
}

bool is_whoami_reply(const char *packet, size_t bytes)
{
    return bytes >= sizeof WHOAMI && memcmp(packet, WHOAMI, sizeof WHOAMI) == 0;
}

void whoami(int fd)
{
    char reply[256];
    send_whoami(fd);
    size_t bytes = receive_packet(fd, reply, sizeof reply);
    if (!is_whoami_reply(reply, bytes))
        die("something other than the reply to whoami came: %.*s",
            (int)(bytes < sizeof reply ? bytes : sizeof reply), reply);
}

uint64_t now_ns(void)
{
    struct timespec now;
    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0, "clock_gettime");
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
