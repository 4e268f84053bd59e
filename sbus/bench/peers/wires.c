/* See wires.h. */
#include "wires.h"

#include <endian.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../client.h"

#define TOPIC "bench/peers"
#define SUBJECT "bench.peers"

enum { TOPIC_BYTES = sizeof TOPIC - 1 };

static struct wire wire;
static size_t payload_size;

static void put(struct wire_bytes *out, const void *data, size_t bytes)
{
    if (bytes > sizeof out->data - out->size)
        die("more than %zu bytes", sizeof out->data);
    memcpy(out->data + out->size, data, bytes);
    out->size += bytes;
}

static void put_byte(struct wire_bytes *out, int byte)
{
    put(out, &(char){(char)byte}, 1);
}

__attribute__((format(printf, 2, 3))) static void put_text(struct wire_bytes *out,
                                                           const char *format, ...)
{
    char text[WIRE_BYTES_MAX];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(out, text, (size_t)bytes);
}

/* Size of the line, with its newline, or 0. */
static size_t line_bytes(const char *data, size_t bytes)
{
    const char *newline = memchr(data, '\n', bytes);
    return newline == NULL ? 0 : (size_t)(newline - data) + 1;
}

static void refuse(const char *reply, size_t bytes, const char *beginning)
{
    if (bytes >= strlen(beginning) && memcmp(reply, beginning, strlen(beginning)) == 0)
        die("the broker says %.*s", (int)bytes, reply);
}

/* -- sbus: packets `MSG key NUL payload` ----------------------------------------------------- */
static size_t sbus_frame(const char *data, size_t bytes, const char **payload)
{
    *payload = bytes == wire.before.size + payload_size && data[0] == 'M' ? data + wire.before.size
                                                                         : NULL;
    return bytes;
}

static void sbus_wire(void)
{
    wire.has_packets = true;
    wire.frame = sbus_frame;
    put_text(&wire.subscription, "SUB " TOPIC);
    put(&wire.before, "MSG " TOPIC, sizeof "MSG " TOPIC);
}

/* -- NATS and Redis: lines of text; a message begins with lines that are known before -------- */
static struct wire_bytes heading;

static size_t heading_frame(const char *data, size_t bytes, const char **payload)
{
    size_t known = bytes < heading.size ? bytes : heading.size;
    if (memcmp(data, heading.data, known) != 0) {
        size_t line = line_bytes(data, bytes);
        *payload = NULL;
        refuse(data, line, "-");
        return line;
    }
    *payload = data + heading.size;
    size_t frame = heading.size + payload_size + 2; /* and a newline */
    return bytes < frame ? 0 : frame;
}

static void nats_wire(void)
{
    wire.frame = heading_frame;
    put_text(&wire.publisher_opening, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n");
    wire.subscriber_opening = wire.publisher_opening;
    put_text(&wire.subscription, "SUB " SUBJECT " 1\r\n");
    put_text(&wire.before, "PUB " SUBJECT " %zu\r\n", payload_size);
    put_text(&wire.after, "\r\n");
    put_text(&heading, "MSG " SUBJECT " 1 %zu\r\n", payload_size);
}

static void redis_wire(void)
{
    wire.frame = heading_frame;
    put_text(&wire.publisher_opening, "CLIENT REPLY OFF\r\n");
    put_text(&wire.subscription, "SUBSCRIBE " TOPIC "\r\n");
    put_text(&wire.before, "*3\r\n$7\r\nPUBLISH\r\n$%d\r\n" TOPIC "\r\n$%zu\r\n", TOPIC_BYTES,
             payload_size);
    put_text(&wire.after, "\r\n");
    put_text(&heading, "*3\r\n$7\r\nmessage\r\n$%d\r\n" TOPIC "\r\n$%zu\r\n", TOPIC_BYTES,
             payload_size);
}

/* -- MQTT 3.1.1, quality of service 0 -------------------------------------------------------- */
static void mqtt_head(struct wire_bytes *out, int type, size_t bytes)
{
    put_byte(out, type);
    for (; bytes > 127; bytes /= 128)
        put_byte(out, (int)(bytes % 128 + 128));
    put_byte(out, (int)bytes);
}

static size_t mqtt_frame(const char *data, size_t bytes, const char **payload)
{
    size_t at = 1, length = 0;
    for (int shift = 0;; shift += 7) {
        if (at == bytes)
            return 0;
        length |= (size_t)(data[at] & 127) << shift;
        if ((data[at++] & 128) == 0)
            break;
    }
    *payload = (data[0] & 0xf0) == 0x30 ? data + at + 2 + TOPIC_BYTES : NULL;
    return bytes < at + length ? 0 : at + length;
}

static void mqtt_wire(void)
{
    static const char CONNECT[] = "\0\4MQTT\4\2\0\0\0"; /* clean session; the rest is 0 */
    wire.frame = mqtt_frame;
    mqtt_head(&wire.publisher_opening, 0x10, sizeof CONNECT);
    put(&wire.publisher_opening, CONNECT, sizeof CONNECT);
    wire.subscriber_opening = wire.publisher_opening;
    mqtt_head(&wire.subscription, 0x82, 4 + TOPIC_BYTES + 1);
    put(&wire.subscription, "\0\1\0\v" TOPIC, 4 + TOPIC_BYTES + 1);
    mqtt_head(&wire.before, 0x30, 2 + TOPIC_BYTES + payload_size);
    put(&wire.before, "\0\v" TOPIC, 2 + TOPIC_BYTES);
}

_Static_assert(TOPIC_BYTES == '\v', "the length of the topic in mqtt_wire");

/* -- D-Bus: signals, which a subscriber asks for with a match rule --------------------------- */
static void dbus_align(struct wire_bytes *out, size_t boundary)
{
    while (out->size % boundary != 0)
        put_byte(out, 0);
}

static void dbus_text(struct wire_bytes *out, char type, const char *text)
{
    uint32_t bytes = (uint32_t)strlen(text);
    if (type != 'g')
        dbus_align(out, 4);
    put(out, &bytes, type == 'g' ? 1 : 4);
    put(out, text, bytes + 1);
}

struct dbus_head {
    char type; /* 1 is a method call, 4 a signal */
    const char *path, *interface, *member, *destination, *signature;
};

static void dbus_field(struct wire_bytes *out, int code, char type, const char *text)
{
    if (text == NULL)
        return;
    dbus_align(out, 8);
    put(out, (char[]){(char)code, 1, type, 0}, 4);
    dbus_text(out, type, text);
}

static void dbus_message(struct wire_bytes *out, struct dbus_head head, uint32_t body_bytes)
{
    struct wire_bytes message = {0};
    uint32_t fixed[] = {body_bytes, /* serial number */ 1, /* of the fields, below */ 0};
    put(&message, (char[]){'l', head.type, /* needs no reply */ head.type == 4, 1}, 4);
    put(&message, fixed, sizeof fixed);
    dbus_field(&message, 1, 'o', head.path);
    dbus_field(&message, 2, 's', head.interface);
    dbus_field(&message, 3, 's', head.member);
    dbus_field(&message, 6, 's', head.destination);
    dbus_field(&message, 8, 'g', head.signature);
    uint32_t fields_bytes = (uint32_t)message.size - 16;
    memcpy(message.data + 12, &fields_bytes, 4);
    dbus_align(&message, 8);
    put(out, message.data, message.size);
}

static size_t dbus_frame(const char *data, size_t bytes, const char **payload)
{
    uint32_t body, fields;
    *payload = NULL;
    if (data[0] != 'l') { /* of the authentication */
        refuse(data, bytes, "REJECTED");
        return line_bytes(data, bytes);
    }
    if (bytes < 16)
        return 0;
    memcpy(&body, data + 4, 4);
    memcpy(&fields, data + 12, 4);
    size_t head = 16 + (fields + 7) / 8 * 8;
    if (data[1] == 4 && body == 4 + payload_size)
        *payload = data + head + 4;
    return bytes < head + body ? 0 : head + body;
}

static void dbus_wire(void)
{
    static const char RULE[] = "type='signal',interface='org.sbus.Bench',member='Message'";
    struct dbus_head call = {1, "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello",
                             "org.freedesktop.DBus", NULL};
    char uid[16];
    wire.frame = dbus_frame;
    snprintf(uid, sizeof uid, "%u", getuid());
    put_byte(&wire.publisher_opening, 0);
    put_text(&wire.publisher_opening, "AUTH EXTERNAL ");
    for (const char *digit = uid; *digit != '\0'; digit++)
        put_text(&wire.publisher_opening, "%02x", (unsigned)*digit);
    put_text(&wire.publisher_opening, "\r\nBEGIN\r\n");
    dbus_message(&wire.publisher_opening, call, 0);
    wire.subscriber_opening = wire.publisher_opening;
    call.member = "AddMatch";
    call.signature = "s";
    dbus_message(&wire.subscription, call, 4 + sizeof RULE);
    dbus_text(&wire.subscription, 's', RULE);
    dbus_message(&wire.before,
                 (struct dbus_head){4, "/org/sbus/Bench", "org.sbus.Bench", "Message", NULL, "ay"},
                 (uint32_t)(4 + payload_size));
    put(&wire.before, &(uint32_t){(uint32_t)payload_size}, 4);
}

/* -- ZMTP 3.0, the protocol of ZeroMQ -------------------------------------------------------- */
enum { ZMTP_GREETING_BYTES = 64 };

static void zmtp_head(struct wire_bytes *out, size_t bytes)
{
    put_byte(out, bytes > 255 ? 2 : 0);
    if (bytes > 255)
        put(out, &(uint64_t){htobe64(bytes)}, 8);
    else
        put_byte(out, (int)bytes);
}

static void zmtp_opening(struct wire_bytes *out, const char socket_type[4])
{
    static const char GREETING[ZMTP_GREETING_BYTES] = "\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL";
    static const char READY[] = "\4\x19\5READY\vSocket-Type\0\0\0\3";
    put(out, GREETING, sizeof GREETING);
    put(out, READY, sizeof READY - 1);
    put(out, socket_type, 3);
}

static size_t zmtp_frame(const char *data, size_t bytes, const char **payload)
{
    uint64_t length = 0;
    size_t head = (data[0] & 2) != 0 ? 9 : 2;
    *payload = NULL;
    if (bytes < head)
        return 0;
    if (head == 9)
        memcpy(&length, data + 1, 8);
    length = head == 9 ? be64toh(length) : (unsigned char)data[1];
    if ((data[0] & 4) == 0)
        *payload = data + head + TOPIC_BYTES;
    return bytes < head + length ? 0 : head + length;
}

static void zmtp_wire(void)
{
    wire.frame = zmtp_frame;
    zmtp_opening(&wire.publisher_opening, "PUB");
    zmtp_opening(&wire.subscriber_opening, "SUB");
    wire.opening_reply_bytes = ZMTP_GREETING_BYTES + 28;
    zmtp_head(&wire.subscription, 1 + TOPIC_BYTES);
    put_text(&wire.subscription, "\1" TOPIC);
    zmtp_head(&wire.before, TOPIC_BYTES + payload_size);
    put_text(&wire.before, TOPIC);
}

const struct wire *wire_new(const char *protocol, size_t payload_bytes)
{
    static const struct {
        const char *name;
        void (*fill_in)(void);
    } PROTOCOLS[] = {{"sbus", sbus_wire}, {"nats", nats_wire}, {"redis", redis_wire},
                     {"mqtt", mqtt_wire}, {"dbus", dbus_wire}, {"zmtp", zmtp_wire}};
    payload_size = payload_bytes;
    for (size_t at = 0; at < sizeof PROTOCOLS / sizeof *PROTOCOLS; at++)
        if (strcmp(PROTOCOLS[at].name, protocol) == 0) {
            PROTOCOLS[at].fill_in();
            return &wire;
        }
    die("%s: no protocol that is known here", protocol);
}
