/* The ordinary step, compiled: read a client, give its messages their place, deliver them.
 *
 * `OrdinaryStep.serve` does for one client what Session.receive, Session.gather and
 * Sequencer.publish do, and `walk` what Sequencer._walk does, as long as everything is *ordinary*:
 * every packet is a message, every key is in the route cache, the routes are current, no client is
 * stalled, the user is within its rate, the log has room, and nothing has to be walked first. At
 * the first thing that is not, the packets stay pending as they were read, in order, and Python
 * goes on from there. So this file decides nothing that Python would decide otherwise, and the
 * Python modules remain the specification.
 *
 * A recipient whose socket is full, or that has a backlog, is delivered to by its outbox's own
 * method in Python; the rest of the fan-out goes on here.
 *
 * Rules of this file:
 *   - a packet is a client's bytes: no length is used before it was compared
 *   - lengths in the log are compared too, although the bus itself wrote them
 *   - system calls are made without the interpreter's lock; no Python object is touched then except
 *     the C fields of records, which only this thread changes
 *   - a pointer in a batch is borrowed from an object that the batch has a reference to
 *
 * Only the limited API is used, so one module serves every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "_memory.h"

enum { /* places in the statistics of a worker; those of latencies are given to the constructor */
    MESSAGES_IN = 0,
    BYTES_IN = 1,
    ACCEPTED = 2,
    ACCEPTED_BYTES = 3,
    ROUTE_LOOKUPS = 10,
    LATENCY_SUM_US = 12,
};
enum { FIRST_BOUND_BITS = 4, BYTES_PER_UNIT = 4096, WORD_BYTES = 4, EVENTS_PER_POLL = 256 };
#define TIME_MASK 0xFFFFFFFFu

/* -- records: what Python and C both read fast --------------------------------------------------
 * Python's classes inherit from these; `records.py` has their twins. */
typedef struct {
    PyObject_HEAD
    int fd;
    char is_flowing;
    long long accepted, delivered_bytes;
} OutboxRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long mask;
    PyObject *recipients; /* a tuple */
} RouteRecord;

typedef struct {
    PyObject_HEAD
    PyObject *packets; /* a list of bytes; the first `done` of them are done */
    Py_ssize_t done;
    int fd;
    char is_ordinary, is_readable, is_at_rest;
    unsigned long long client, uid, account;
    long long packets_max, bytes_max, packet_bytes_max;
    long long received_us, messages_in, bytes_in;
} SessionRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long cursor, window;
    char is_caught_up;
} LogRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long epoch, position;
} TableRecord;

enum { OUTBOX, ROUTE, SESSION, LOG, TABLE, STEP, TYPES };

typedef struct {
    PyTypeObject *types[TYPES];
} ModuleState;

/* -- a batch ----------------------------------------------------------------------------------- */
typedef struct {
    const char *data;
    uint32_t size;
    PyObject *bytes; /* the same as an object, or NULL */
} Packet;

typedef struct {
    Packet packet;
    uint32_t key_bytes;
    RouteRecord *route;
    size_t deliveries_end; /* of this message, in the batch's deliveries */
} Message;

typedef struct {
    size_t message;
    PyObject *recipient;
    OutboxRecord *outbox; /* the same, or NULL where only Python can deliver */
} Delivery;

typedef struct {
    Message *messages;
    size_t count, messages_max;
    Delivery *deliveries;
    size_t deliveries_count, deliveries_max;
    uint64_t delivery_bytes, uid;
} Batch;

typedef struct {
    PyObject_HEAD
    ModuleState *module;
    Memory memory;
    Py_buffer views[6]; /* of control words, accounts, stalls, log and both copies of statistics */
    uint64_t *counts, *shared_counts;
    size_t counts_max, latency_at;
    PyObject *recent; /* the route cache's dict */
    LogRecord *log;
    TableRecord *table;
    PyObject *deliver; /* the method's name */
    char *buffer;
    size_t buffer_bytes;
    Packet *packets;
    size_t packets_count, packets_max, done;
    Batch batch;
    bool is_busy, called_python;
} OrdinaryStep;

/* Make room for one more in an array that grows; -1 with an exception if there is no memory. */
static int
grow(void **array, size_t *max, size_t needed, size_t size)
{
    if (needed <= *max)
        return 0;
    size_t more = needed < 64 ? 64 : 2 * needed;
    void *grown = PyMem_Realloc(*array, more * size);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    *array = grown;
    *max = more;
    return 0;
}

static void
batch_clear(Batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        Py_DECREF(batch->messages[i].route);
        Py_XDECREF(batch->messages[i].packet.bytes);
    }
    batch->count = batch->deliveries_count = 0;
    batch->delivery_bytes = 0;
}

/* Add the deliveries of one more message, whose route the batch has a reference to. */
static int
batch_add_deliveries(OrdinaryStep *step, size_t index)
{
    Batch *batch = &step->batch;
    Message *message = &batch->messages[index];
    Py_ssize_t fan_out = PyTuple_Size(message->route->recipients);
    size_t count = batch->deliveries_count;
    if (fan_out < 0 || grow((void **)&batch->deliveries, &batch->deliveries_max,
                            count + (size_t)fan_out, sizeof *batch->deliveries) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < fan_out; i++) {
        PyObject *recipient = PyTuple_GetItem(message->route->recipients, i);
        bool is_outbox = PyObject_TypeCheck(recipient, step->module->types[OUTBOX]);
        OutboxRecord *outbox = is_outbox ? (OutboxRecord *)recipient : NULL;
        batch->deliveries[count++] = (Delivery){index, recipient, outbox};
    }
    batch->deliveries_count = message->deliveries_end = count;
    batch->delivery_bytes += (uint64_t)message->packet.size * (uint64_t)fan_out;
    return 0;
}

static int
batch_add(OrdinaryStep *step, Packet packet, uint32_t key_bytes, RouteRecord *route)
{
    Batch *batch = &step->batch;
    if (grow((void **)&batch->messages, &batch->messages_max, batch->count + 1,
             sizeof *batch->messages) < 0)
        return -1;
    Py_INCREF((PyObject *)route);
    Py_XINCREF(packet.bytes);
    batch->messages[batch->count] = (Message){packet, key_bytes, route, 0};
    return batch_add_deliveries(step, batch->count++);
}

/* Leave out the messages from this one on. */
static void
batch_cut(Batch *batch, size_t count)
{
    while (batch->count > count) {
        Message *last = &batch->messages[--batch->count];
        size_t before = batch->count ? last[-1].deliveries_end : 0;
        batch->delivery_bytes -= (last->deliveries_end - before) * (uint64_t)last->packet.size;
        batch->deliveries_count = before;
        Py_DECREF(last->route);
        Py_XDECREF(last->packet.bytes);
    }
}

static bool
is_route(const OrdinaryStep *step, PyObject *object)
{
    if (!PyObject_TypeCheck(object, step->module->types[ROUTE]))
        return false;
    PyObject *recipients = ((RouteRecord *)object)->recipients;
    return recipients && PyTuple_Check(recipients);
}

/* The route of a key, borrowed; NULL if it is not in the cache, or with an exception. Messages
 * often have the key of the message before them. */
static RouteRecord *
look_up(OrdinaryStep *step, const char *key, uint32_t key_bytes)
{
    const Batch *batch = &step->batch;
    if (batch->count) {
        const Message *last = &batch->messages[batch->count - 1];
        if (last->key_bytes == key_bytes
            && !memcmp(last->packet.data + WORD_BYTES, key, key_bytes))
            return last->route;
    }
    PyObject *name = PyBytes_FromStringAndSize(key, key_bytes);
    if (!name)
        return NULL;
    PyObject *route = PyDict_GetItemWithError(step->recent, name);
    Py_DECREF(name);
    if (route && !is_route(step, route)) {
        PyErr_SetString(PyExc_TypeError, "the route cache has something that is no route");
        return NULL;
    }
    return (RouteRecord *)route;
}

/* -- delivering -------------------------------------------------------------------------------- */
/* Send from this delivery on, without the interpreter's lock; returns the first that Python has to
 * make, or their number. */
static size_t
send_from(const Batch *batch, size_t at)
{
    for (; at < batch->deliveries_count; at++) {
        OutboxRecord *outbox = batch->deliveries[at].outbox;
        if (!outbox || !outbox->is_flowing)
            break;
        const Packet *packet = &batch->messages[batch->deliveries[at].message].packet;
        ssize_t sent = send(outbox->fd, packet->data, packet->size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0)
            break;
        outbox->accepted++;
        outbox->delivered_bytes += sent;
    }
    return at;
}

/* Have Python make one delivery. */
static int
deliver_in_python(OrdinaryStep *step, const Delivery *delivery)
{
    Packet *packet = &step->batch.messages[delivery->message].packet;
    if (!packet->bytes)
        packet->bytes = PyBytes_FromStringAndSize(packet->data, packet->size);
    PyObject *uid = PyLong_FromUnsignedLongLong(step->batch.uid);
    PyObject *result = NULL;
    step->called_python = true;
    if (packet->bytes && uid)
        result = PyObject_CallMethodObjArgs(delivery->recipient, step->deliver, packet->bytes, uid,
                                            NULL);
    Py_XDECREF(uid);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Make all deliveries from this one on. */
static int
deliver_from(OrdinaryStep *step, size_t at)
{
    const Batch *batch = &step->batch;
    while (at < batch->deliveries_count) {
        if (deliver_in_python(step, &batch->deliveries[at]) < 0)
            return -1;
        Py_BEGIN_ALLOW_THREADS
        at = send_from(batch, at + 1);
        Py_END_ALLOW_THREADS
    }
    return 0;
}

static void
count_accepted(OrdinaryStep *step)
{
    step->counts[ACCEPTED] += step->batch.deliveries_count;
    step->counts[ACCEPTED_BYTES] += step->batch.delivery_bytes;
}

/* Count deliveries that took this long. */
static void
record_latency(OrdinaryStep *step, uint64_t latency_us, uint64_t deliveries)
{
    size_t bucket = step->latency_at;
    if (latency_us > 1u << FIRST_BOUND_BITS)
        bucket += 64 - (size_t)__builtin_clzll(latency_us - 1) - FIRST_BOUND_BITS;
    if (bucket >= step->counts_max)
        bucket = step->counts_max - 1;
    step->counts[bucket] += deliveries;
    step->counts[LATENCY_SUM_US] += latency_us * deliveries;
}

/* -- publishing -------------------------------------------------------------------------------- */
typedef enum { PLACED, NOT_ORDINARY } Outcome;

/* The length of the log block of a batch's first messages; no mask if no other worker needs it. */
static uint64_t
measure_block(const Batch *batch, size_t count, uint64_t *mask)
{
    uint64_t length = sizeof(BlockHeader);
    *mask = 0;
    for (size_t i = 0; i < count; i++) {
        const Message *message = &batch->messages[i];
        *mask |= message->route->mask;
        if (message->route->mask)
            length += sizeof(EntryHeader) + message->packet.size;
    }
    return (length + BLOCK_ALIGN_BYTES - 1) / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES;
}

/* Lay the block out in the log, where there is room for it. */
static void
write_block(unsigned char *at, const Batch *batch, size_t count, BlockHeader header)
{
    static const char padding[BLOCK_ALIGN_BYTES];
    unsigned char *const start = at;
    at += sizeof header;
    for (size_t i = 0; i < count; i++) {
        const Message *message = &batch->messages[i];
        EntryHeader entry = {message->route->mask, message->packet.size, message->key_bytes};
        if (!entry.mask)
            continue;
        header.count++;
        store_bytes(at, &entry, sizeof entry);
        store_bytes(at + sizeof entry, message->packet.data, message->packet.size);
        at += sizeof entry + message->packet.size;
    }
    store_bytes(at, padding, (size_t)(start + header.length - at));
    store_bytes(start, &header, sizeof header);
}

/* Append what other workers need of a batch; fewer messages if they would occupy one of them for
 * too long. False when there is no room. */
static bool
append(OrdinaryStep *step, uint64_t *words, const SessionRecord *session, size_t *count,
       uint64_t *woken)
{
    Memory *memory = &step->memory;
    const uint64_t *account = memory->accounts + session->account * memory->account_words;
    uint64_t mask, length = measure_block(&step->batch, *count, &mask), head;
    uint64_t length_max = block_bytes_max(memory, words, mask & words[ALIVE]);
    if (mask && length > length_max && *count > 1) {
        *count = larger(1, *count * length_max / length);
        length = measure_block(&step->batch, *count, &mask);
    }
    if (!mask)
        return true;
    uint64_t alive = mask & words[ALIVE];
    if (has_late_destination(memory, words, alive, account)
        || !find_place(memory, words, length, &head))
        return false;
    BlockHeader header = {
        .mask = mask,
        .length = (uint32_t)length,
        .client = session->client,
        .uid = (uint32_t)session->uid,
        .time_us = (uint32_t)session->received_us,
    };
    write_block(memory->log + head % memory->log_bytes, &step->batch, *count, header);
    store(&words[LOG_HEAD], head + length);
    *woken |= destine(memory, words, alive, head, head + length, account);
    return true;
}

/* What is done in the critical section of a batch; false when that is not ordinary. */
static bool
place_in(OrdinaryStep *step, uint64_t *words, const SessionRecord *session, size_t *count,
         uint64_t *woken)
{
    Memory *memory = &step->memory;
    uint64_t *own = worker_words(words, memory->worker);
    uint64_t *account = memory->accounts + session->account * memory->account_words;
    if (words[TABLE_EPOCH] != step->table->epoch
        || words[TABLE_GENERATION] > step->table->position || own[LOG_END] > step->log->cursor)
        return false;
    store(&own[EPOCH_SEEN], step->table->epoch);
    *woken = share_cursor(memory, words, step->log->cursor, step->log->window);
    uint64_t now_ns = monotonic_ns();
    if (exceeds_rate(account, now_ns) || !append(step, words, session, count, woken))
        return false;
    pay_for(account, *count, now_ns);
    store(&words[SLEEPING], words[SLEEPING] | (uint64_t)1 << memory->worker);
    return true;
}

/* Give the first messages of the batch their place in the order; false when that is not ordinary,
 * and nothing has changed. */
static bool
place(OrdinaryStep *step, const SessionRecord *session, size_t *count)
{
    uint64_t spare, woken = 0, *words = enter(&step->memory, &spare);
    if (!words)
        return false;
    if (!place_in(step, words, session, count, &woken)) {
        leave(&step->memory);
        return false;
    }
    commit(&step->memory, spare);
    step->log->is_caught_up = true;
    wake(&step->memory, woken);
    return true;
}

/* Gather the messages at the head of the packets, up to this cost: 1 if that makes an ordinary
 * batch, 0 if not, -1 with an exception. */
static int
gather(OrdinaryStep *step, const SessionRecord *session, uint64_t cost_max)
{
    Batch *batch = &step->batch;
    batch_clear(batch);
    batch->uid = session->uid;
    for (size_t at = step->done; at < step->packets_count; at++) {
        Packet packet = step->packets[at];
        if (batch->count + batch->deliveries_count >= cost_max)
            break;
        if (packet.size < WORD_BYTES || memcmp(packet.data, "MSG ", WORD_BYTES)
            || packet.size > session->packet_bytes_max)
            break;
        const char *key = packet.data + WORD_BYTES;
        const char *end = memchr(key, 0, packet.size - WORD_BYTES);
        if (!end)
            break;
        RouteRecord *route = look_up(step, key, (uint32_t)(end - key));
        if (!route)
            return PyErr_Occurred() ? -1 : 0;
        if (batch_add(step, packet, (uint32_t)(end - key), route) < 0)
            return -1;
    }
    return batch->count > 0;
}

/* Count what was published, as the sequencer and the session do. */
static void
count_published(OrdinaryStep *step, SessionRecord *session, uint64_t accepted)
{
    if (step->batch.deliveries_count)
        record_latency(step, monotonic_ns() / 1000 - (uint64_t)session->received_us, accepted);
    session->messages_in += (long long)step->batch.count;
    step->done += step->batch.count;
}

/* Publish the next batch: 1 if that was ordinary, 0 if not and nothing was done, -1 with an
 * exception. */
static int
publish(OrdinaryStep *step, SessionRecord *session, uint64_t cost_max)
{
    Batch *batch = &step->batch;
    if (*step->memory.stalled)
        return 0;
    int gathered = gather(step, session, cost_max);
    if (gathered <= 0)
        return gathered;
    size_t count = batch->count, at = 0;
    bool placed;
    Py_BEGIN_ALLOW_THREADS
    placed = place(step, session, &count);
    if (placed && count == batch->count)
        at = send_from(batch, 0);
    Py_END_ALLOW_THREADS
    if (!placed)
        return 0;
    step->counts[MESSAGES_IN] += count;
    step->counts[ROUTE_LOOKUPS] += count;
    if (count < batch->count) {
        batch_cut(batch, count);
        Py_BEGIN_ALLOW_THREADS
        at = send_from(batch, 0);
        Py_END_ALLOW_THREADS
    }
    uint64_t before = step->counts[ACCEPTED];
    count_accepted(step);
    if (deliver_from(step, at) < 0)
        return -1;
    count_published(step, session, step->counts[ACCEPTED] - before);
    return 1;
}

/* -- receiving --------------------------------------------------------------------------------- */
static void
packets_clear(OrdinaryStep *step)
{
    for (size_t i = 0; i < step->packets_count; i++)
        Py_XDECREF(step->packets[i].bytes);
    step->packets_count = step->done = 0;
}

/* Take the pending packets of a client from its list. */
static int
load_pending(OrdinaryStep *step, const SessionRecord *session, Py_ssize_t count)
{
    if (grow((void **)&step->packets, &step->packets_max, (size_t)count, sizeof(Packet)) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *bytes = PyList_GetItem(session->packets, session->done + i);
        char *data;
        Py_ssize_t size;
        if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size) < 0)
            return -1;
        if ((uint64_t)size > UINT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "a packet is too long");
            return -1;
        }
        Py_INCREF(bytes);
        step->packets[step->packets_count++] = (Packet){data, (uint32_t)size, bytes};
    }
    return 0;
}

/* Have a buffer for a whole batch. What no packet touches of it takes no memory. */
static int
prepare_buffer(OrdinaryStep *step, const SessionRecord *session)
{
    if (session->packets_max <= 0 || session->bytes_max <= 0 || session->packet_bytes_max <= 0
        || session->bytes_max > INT32_MAX || session->packet_bytes_max > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the limits of a session are out of range");
        return -1;
    }
    size_t bytes = (size_t)session->bytes_max + (size_t)session->packet_bytes_max + 1;
    if (bytes > step->buffer_bytes) {
        PyMem_Free(step->buffer);
        step->buffer_bytes = 0;
        step->buffer = PyMem_Malloc(bytes);
        if (!step->buffer) {
            PyErr_NoMemory();
            return -1;
        }
        step->buffer_bytes = bytes;
    }
    return grow((void **)&step->packets, &step->packets_max, (size_t)session->packets_max,
                sizeof(Packet));
}

typedef struct {
    long long bytes;
    int error;     /* of the last recv; 0 if there was none */
    bool is_empty; /* the last packet has no bytes, which may mean the end */
} Received;

/* Receive until the socket is empty or the batch is full. Without the interpreter's lock. */
static Received
receive_packets(OrdinaryStep *step, const SessionRecord *session)
{
    Received received = {0};
    size_t size_max = (size_t)session->packet_bytes_max + 1;
    while (step->packets_count < (size_t)session->packets_max
           && received.bytes < session->bytes_max) {
        char *data = step->buffer + received.bytes;
        ssize_t size = recv(session->fd, data, size_max, MSG_DONTWAIT);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0) {
            received.error = errno;
            break;
        }
        step->packets[step->packets_count++] = (Packet){data, (uint32_t)size, NULL};
        received.bytes += size;
        if (!size) {
            received.is_empty = true;
            break;
        }
    }
    return received;
}

/* Read the next batch of a client, as Session.receive does; returns its bytes, -1 with an
 * exception. */
static long long
receive(OrdinaryStep *step, SessionRecord *session)
{
    if (prepare_buffer(step, session) < 0)
        return -1;
    Received received;
    Py_BEGIN_ALLOW_THREADS
    session->received_us = (long long)(monotonic_ns() / 1000);
    received = receive_packets(step, session);
    Py_END_ALLOW_THREADS
    bool is_reset = received.error == ECONNRESET;
    session->is_readable = is_reset || (!received.error && !received.is_empty);
    if (received.error && received.error != EAGAIN && !is_reset) {
        errno = received.error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    session->bytes_in += received.bytes;
    step->counts[BYTES_IN] += (uint64_t)received.bytes;
    return received.bytes;
}

/* -- one client -------------------------------------------------------------------------------- */
/* Get the client's pending packets or, if it has none, read more; returns the cost of that, -1
 * with an exception. */
static long long
load(OrdinaryStep *step, SessionRecord *session, bool *is_pending)
{
    Py_ssize_t pending = PyList_Size(session->packets) - session->done;
    *is_pending = pending > 0;
    if (pending > 0)
        return load_pending(step, session, pending);
    long long bytes = receive(step, session);
    return bytes < 0 ? -1 : bytes / BYTES_PER_UNIT;
}

/* Leave the packets that are not done to Python, as they were read. */
static int
unload(OrdinaryStep *step, SessionRecord *session, bool is_pending)
{
    if (is_pending) {
        session->done += (Py_ssize_t)step->done;
        return 0;
    }
    if (step->done == step->packets_count)
        return 0;
    PyObject *packets = PyList_New((Py_ssize_t)(step->packets_count - step->done));
    for (size_t i = step->done; packets && i < step->packets_count; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(step->packets[i].data, step->packets[i].size);
        if (!bytes || PyList_SetItem(packets, (Py_ssize_t)(i - step->done), bytes) < 0)
            Py_CLEAR(packets);
    }
    if (!packets)
        return -1;
    PyObject *before = session->packets;
    session->packets = packets;
    session->done = 0;
    Py_XDECREF(before);
    return 0;
}

/* Whether the last packet that was read is empty: only Python can tell what that means. */
static bool
ends_empty(const OrdinaryStep *step)
{
    return step->packets_count && !step->packets[step->packets_count - 1].size;
}

/* Serve a client until what comes next is not ordinary, or the cost is reached; -1 with an
 * exception. */
static int
serve(OrdinaryStep *step, SessionRecord *session, long long *cost, long long cost_max)
{
    bool is_pending;
    int published = session->is_ordinary;
    long long loading = load(step, session, &is_pending);
    if (loading >= 0)
        *cost += loading;
    bool ends = !is_pending && ends_empty(step);
    if (loading < 0 || ends)
        published = 0;
    while (published > 0 && *cost < cost_max && step->done < step->packets_count) {
        published = publish(step, session, (uint64_t)(cost_max - *cost));
        const Batch *batch = &step->batch;
        if (published > 0)
            *cost += 1 + (long long)(batch->count + batch->deliveries_count
                                     + batch->delivery_bytes / BYTES_PER_UNIT);
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int unloaded = unload(step, session, is_pending);
    if (type)
        PyErr_Restore(type, value, traceback);
    if (type || unloaded < 0)
        return -1;
    if (!ends)
        return 0;
    PyObject *done = PyObject_CallMethod((PyObject *)session, "at_empty_packet", NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* -- walking ----------------------------------------------------------------------------------- */
/* Add the entries of the block at `at` that are destined here to the batch: 1 if all are ordinary,
 * 0 if not, -1 with an exception. */
static int
gather_block(OrdinaryStep *step, const unsigned char *at, const BlockHeader *header)
{
    const unsigned char *end = at + header->length;
    uint64_t bit = (uint64_t)1 << step->memory.worker;
    at += sizeof *header;
    for (uint32_t i = 0; i < header->count; i++) {
        EntryHeader entry;
        if ((size_t)(end - at) < sizeof entry)
            return 0;
        memcpy(&entry, at, sizeof entry);
        at += sizeof entry;
        if (entry.packet_bytes > (size_t)(end - at)
            || (uint64_t)entry.key_bytes + WORD_BYTES > entry.packet_bytes)
            return 0;
        Packet packet = {(const char *)at, entry.packet_bytes, NULL};
        at += entry.packet_bytes;
        if (!(entry.mask & bit))
            continue;
        RouteRecord *route = look_up(step, packet.data + WORD_BYTES, entry.key_bytes);
        if (!route)
            return PyErr_Occurred() ? -1 : 0;
        if (batch_add(step, packet, entry.key_bytes, route) < 0)
            return -1;
    }
    return 1;
}

/* Add to what the walk has cost the users of publishers. */
static int
charge(PyObject *costs, uint32_t uid_number, uint64_t cost)
{
    PyObject *uid = PyLong_FromUnsignedLong(uid_number);
    PyObject *before = uid ? PyDict_GetItemWithError(costs, uid) : NULL;
    uint64_t charged = before ? PyLong_AsUnsignedLongLong(before) : 0;
    PyObject *after = PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(charged + cost);
    int result = after ? PyDict_SetItem(costs, uid, after) : -1;
    Py_XDECREF(uid);
    Py_XDECREF(after);
    return result;
}

/* Deliver the batch of a walked block; returns the cost, -1 with an exception. */
static long long
deliver_block(OrdinaryStep *step, const BlockHeader *header, PyObject *costs)
{
    Batch *batch = &step->batch;
    uint64_t cost = batch->count + batch->deliveries_count;
    size_t at;
    Py_BEGIN_ALLOW_THREADS
    at = send_from(batch, 0);
    Py_END_ALLOW_THREADS
    uint64_t before = step->counts[ACCEPTED];
    count_accepted(step);
    if (deliver_from(step, at) < 0)
        return -1;
    step->counts[ROUTE_LOOKUPS] += batch->count;
    uint32_t latency_us = (uint32_t)(monotonic_ns() / 1000) - header->time_us;
    record_latency(step, latency_us, step->counts[ACCEPTED] - before);
    return charge(costs, header->uid, cost) < 0 ? -1 : (long long)cost;
}

typedef struct {
    bool is_ordinary;
    uint64_t length;
    long long cost; /* -1 with an exception */
} Walked;

/* Walk over the block here, of which there are so many bytes at most. Where it is not ordinary,
 * nothing is done. */
static Walked
walk_block(OrdinaryStep *step, const unsigned char *at, uint64_t size, PyObject *costs)
{
    BlockHeader header;
    Walked walked = {0};
    if (size < sizeof header)
        return walked;
    memcpy(&header, at, sizeof header);
    if (header.length < sizeof header || header.length > size)
        return walked;
    walked.length = header.length;
    walked.is_ordinary = true;
    if (!(header.mask >> step->memory.worker & 1))
        return walked;
    batch_clear(&step->batch);
    step->batch.uid = header.uid;
    int gathered = gather_block(step, at, &header);
    walked.is_ordinary = gathered != 0;
    if (gathered)
        walked.cost = gathered < 0 ? -1 : deliver_block(step, &header, costs);
    return walked;
}

/* -- OrdinaryStep, for Python ------------------------------------------------------------------ */
/* Arguments, batches and buffers of one call; what is called in Python must not come back. */
static bool
begin(OrdinaryStep *step)
{
    if (step->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "an ordinary step is under way");
        return false;
    }
    step->is_busy = true;
    return true;
}

static void
finish(OrdinaryStep *step)
{
    batch_clear(&step->batch);
    packets_clear(step);
    step->is_busy = false;
}

/* Whether all fields of a session make sense. */
static bool
is_complete(const OrdinaryStep *step, const SessionRecord *session)
{
    return session->account < step->memory.accounts_count && session->packets
           && PyList_Check(session->packets) && session->done >= 0;
}

static PyObject *
step_serve(OrdinaryStep *step, PyObject *args)
{
    SessionRecord *session;
    long long cost, cost_max;
    if (!PyArg_ParseTuple(args, "O!LL:serve", step->module->types[SESSION], &session, &cost,
                          &cost_max))
        return NULL;
    if (!is_complete(step, session)) {
        PyErr_SetString(PyExc_ValueError, "the session is not complete");
        return NULL;
    }
    if (!begin(step))
        return NULL;
    int result = serve(step, session, &cost, cost_max);
    finish(step);
    return result < 0 ? NULL : PyLong_FromLongLong(cost);
}

static PyObject *
step_walk(OrdinaryStep *step, PyObject *args)
{
    unsigned long long end;
    long long cost_max, cost = 0;
    PyObject *costs;
    if (!PyArg_ParseTuple(args, "KO!L:walk", &end, &PyDict_Type, &costs, &cost_max) || !begin(step))
        return NULL;
    Walked walked = {.is_ordinary = true};
    while (step->log->cursor < end && cost < cost_max) {
        uint64_t place = step->log->cursor % step->memory.log_bytes;
        walked = walk_block(step, step->memory.log + place, step->memory.log_bytes - place, costs);
        if (!walked.is_ordinary || walked.cost < 0)
            break;
        step->log->cursor += walked.length;
        cost += walked.cost;
    }
    finish(step);
    return walked.cost < 0 ? NULL : PyLong_FromLongLong(cost);
}

static PyObject *
step_walk_piece(OrdinaryStep *step, PyObject *args)
{
    const char *piece;
    Py_ssize_t size;
    PyObject *costs;
    if (!PyArg_ParseTuple(args, "y#O!:walk_piece", &piece, &size, &PyDict_Type, &costs)
        || !begin(step))
        return NULL;
    Walked walked = {.is_ordinary = true};
    uint64_t at = 0;
    while (at < (uint64_t)size) {
        walked = walk_block(step, (const unsigned char *)piece + at, (uint64_t)size - at, costs);
        if (!walked.is_ordinary || walked.cost < 0)
            break;
        at += walked.length;
    }
    finish(step);
    return walked.cost < 0 ? NULL : PyLong_FromUnsignedLongLong(at);
}

/* -- waiting ----------------------------------------------------------------------------------- */
typedef struct {
    struct epoll_event ready[EVENTS_PER_POLL + 1];
    int count;
} Events;

/* Poll until this time; false with an exception. */
static bool
poll_until(int epoll_fd, Events *events, uint64_t until_ns)
{
    int error;
    do {
        uint64_t now_ns = monotonic_ns();
        uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        uint64_t left_ms = left_ns / 1000000 + (left_ns % 1000000 != 0);
        int timeout_ms = until_ns == UINT64_MAX ? -1 : (int)smaller(left_ms, INT32_MAX);
        Py_BEGIN_ALLOW_THREADS
        events->count = epoll_wait(epoll_fd, events->ready, EVENTS_PER_POLL, timeout_ms);
        error = errno;
        Py_END_ALLOW_THREADS
        if (events->count >= 0)
            return true;
    } while (error == EINTR && PyErr_CheckSignals() == 0);
    events->count = 0;
    if (!PyErr_Occurred()) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return false;
}

/* The only client that is ready, if it can be served at once: it has sent something, and nothing
 * made it wait when its last turn ended. Borrowed; NULL if there is none. */
static SessionRecord *
find_lone(OrdinaryStep *step, PyObject *sessions, const Events *events)
{
    if (events->count != 1 || events->ready[0].events != EPOLLIN)
        return NULL;
    PyObject *fd = PyLong_FromLong(events->ready[0].data.fd);
    PyObject *found = fd ? PyDict_GetItemWithError(sessions, fd) : NULL;
    Py_XDECREF(fd);
    if (!found || !PyObject_TypeCheck(found, step->module->types[SESSION]))
        return NULL;
    SessionRecord *session = (SessionRecord *)found;
    return session->is_at_rest && session->is_ordinary && is_complete(step, session) ? session
                                                                                      : NULL;
}

/* Serve a client without a turn; false if it needs one now, or with an exception. */
static bool
serve_lone(OrdinaryStep *step, SessionRecord *session, long long cost_max)
{
    long long cost = 1;
    Py_INCREF((PyObject *)session);
    step->called_python = false;
    bool is_done = serve(step, session, &cost, cost_max) == 0 && !step->called_python
                   && step->done == step->packets_count;
    batch_clear(&step->batch);
    packets_clear(step);
    memcpy(step->shared_counts, step->counts, step->counts_max * sizeof *step->counts);
    Py_DECREF((PyObject *)session);
    return is_done;
}

/* The events as Python's epoll objects return them. */
static PyObject *
list_events(const Events *events)
{
    PyObject *list = PyList_New(events->count);
    for (int i = 0; list && i < events->count; i++) {
        const struct epoll_event *event = &events->ready[i];
        PyObject *pair = Py_BuildValue("(iI)", event->data.fd, event->events);
        if (!pair || PyList_SetItem(list, i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* Serve a client until its socket is empty; false if it needs a turn before that, and then `events`
 * has what else is ready. */
static bool
serve_while_lone(OrdinaryStep *step, int epoll_fd, SessionRecord *session, Events *events,
                 uint64_t until_ns, long long cost_max)
{
    do {
        events->count = 0;
        if (!serve_lone(step, session, cost_max))
            return false;
        if (!session->is_readable)
            return true;
    } while (monotonic_ns() < until_ns && poll_until(epoll_fd, events, 0) && !events->count);
    return false;
}

/* Poll until this time, and meanwhile serve a client that is alone; false with an exception. */
static bool
poll_and_serve(OrdinaryStep *step, int epoll_fd, PyObject *sessions, Events *events,
               uint64_t until_ns, long long cost_max)
{
    while (poll_until(epoll_fd, events, until_ns)) {
        SessionRecord *session = find_lone(step, sessions, events);
        if (!session)
            return !PyErr_Occurred();
        struct epoll_event lone = events->ready[0];
        bool is_done = serve_while_lone(step, epoll_fd, session, events, until_ns, cost_max);
        if (PyErr_Occurred())
            return false;
        if (!is_done)
            events->ready[events->count++] = lone;
        if (!is_done || monotonic_ns() >= until_ns)
            return true;
    }
    return false;
}

static PyObject *
step_poll(OrdinaryStep *step, PyObject *args)
{
    PyObject *poller, *sessions;
    double seconds_max;
    long long cost_max;
    Events events;
    if (!PyArg_ParseTuple(args, "OO!dL:poll", &poller, &PyDict_Type, &sessions, &seconds_max,
                          &cost_max))
        return NULL;
    int epoll_fd = PyObject_AsFileDescriptor(poller);
    if (epoll_fd < 0 || !begin(step))
        return NULL;
    events.count = 0;
    uint64_t until_ns = UINT64_MAX;
    if (seconds_max < 1e9)
        until_ns = monotonic_ns() + (seconds_max > 0 ? (uint64_t)(seconds_max * 1e9) : 0);
    bool polled = poll_and_serve(step, epoll_fd, sessions, &events, until_ns, cost_max);
    finish(step);
    return polled ? list_events(&events) : NULL;
}

static int
step_traverse(PyObject *self, visitproc visit, void *arg)
{
    OrdinaryStep *step = (OrdinaryStep *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(step->recent);
    Py_VISIT(step->log);
    Py_VISIT(step->table);
    return 0;
}

static int
step_clear(PyObject *self)
{
    OrdinaryStep *step = (OrdinaryStep *)self;
    Py_CLEAR(step->recent);
    Py_CLEAR(step->log);
    Py_CLEAR(step->table);
    return 0;
}

static void
step_dealloc(PyObject *self)
{
    OrdinaryStep *step = (OrdinaryStep *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    step_clear(self);
    Py_CLEAR(step->deliver);
    for (size_t i = 0; i < sizeof step->views / sizeof *step->views; i++)
        PyBuffer_Release(&step->views[i]);
    PyMem_Free(step->buffer);
    PyMem_Free(step->packets);
    PyMem_Free(step->batch.messages);
    PyMem_Free(step->batch.deliveries);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* Get the memory behind a writable buffer of words, or of bytes; NULL with an exception. */
static void *
view(OrdinaryStep *step, size_t number, PyObject *object, size_t *words)
{
    Py_buffer *buffer = &step->views[number];
    if (PyObject_GetBuffer(object, buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    if ((uintptr_t)buffer->buf % sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "shared words are aligned");
        return NULL;
    }
    *words = (size_t)buffer->len / sizeof(uint64_t);
    return buffer->buf;
}

static int
view_memory(OrdinaryStep *step, PyObject *words, PyObject *accounts, PyObject *stalls,
            PyObject *log, PyObject *counts, PyObject *shared_counts)
{
    Memory *memory = &step->memory;
    size_t words_count, accounts_words, stalls_count, log_words, shared_max;
    if (!(memory->words = view(step, 0, words, &words_count))
        || !(memory->accounts = view(step, 1, accounts, &accounts_words))
        || !(memory->stalled = view(step, 2, stalls, &stalls_count))
        || !(memory->log = view(step, 3, log, &log_words))
        || !(step->counts = view(step, 4, counts, &step->counts_max))
        || !(step->shared_counts = view(step, 5, shared_counts, &shared_max)))
        return -1;
    size_t own_words = WORKER_WORDS + (size_t)memory->workers * WORDS_PER_WORKER;
    size_t shares = (size_t)memory->workers * WORDS_PER_DESTINATION;
    if (memory->block_words < own_words || words_count < COPIES + 2 * memory->block_words
        || memory->share_at <= PAID_UNTIL_NS || memory->account_words < memory->share_at + shares
        || !stalls_count || log_words < 2 * sizeof(BlockHeader) / sizeof(uint64_t)
        || (size_t)step->views[3].len % BLOCK_ALIGN_BYTES
        || step->latency_at <= LATENCY_SUM_US || step->counts_max <= step->latency_at
        || shared_max != step->counts_max) {
        PyErr_SetString(PyExc_ValueError, "the shared memory is not laid out as it should be");
        return -1;
    }
    memory->accounts_count = accounts_words / memory->account_words;
    memory->log_bytes = (uint64_t)step->views[3].len;
    return 0;
}

static int
take_eventfds(Memory *memory, PyObject *eventfds)
{
    if (memory->workers < 1 || memory->workers > WORKERS_MAX || memory->worker >= memory->workers
        || PyTuple_Size(eventfds) < (Py_ssize_t)memory->workers) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "there are no such workers");
        return -1;
    }
    for (uint32_t worker = 0; worker < memory->workers; worker++) {
        long fd = PyLong_AsLong(PyTuple_GetItem(eventfds, (Py_ssize_t)worker));
        if (fd == -1 && PyErr_Occurred())
            return -1;
        memory->eventfds[worker] = (int)fd;
    }
    return 0;
}

static int
step_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lock_fd", "words", "block_words", "workers", "worker", "eventfds",
                            "accounts", "account_words", "share_at", "stalls", "log_bytes",
                            "counts", "shared_counts", "latency_at", "recent", "log", "table", NULL};
    OrdinaryStep *step = (OrdinaryStep *)self;
    Memory *memory = &step->memory;
    PyObject *words, *eventfds, *accounts, *stalls, *log_bytes, *counts, *recent, *log, *table;
    PyObject *shared_counts;
    Py_ssize_t block_words, account_words, share_at, latency_at;
    if (step->recent) {
        PyErr_SetString(PyExc_RuntimeError, "it is made already");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iOnIIO!OnnOOOOnO!O!O!:OrdinaryStep", names, &memory->lock_fd, &words,
            &block_words, &memory->workers, &memory->worker, &PyTuple_Type, &eventfds, &accounts,
            &account_words, &share_at, &stalls, &log_bytes, &counts, &shared_counts,
            &latency_at, &PyDict_Type,
            &recent, step->module->types[LOG], &log, step->module->types[TABLE], &table))
        return -1;
    if (block_words < 0 || account_words < 1 || share_at < 0 || latency_at < 0) {
        PyErr_SetString(PyExc_ValueError, "a place cannot be negative");
        return -1;
    }
    memory->block_words = (size_t)block_words;
    memory->account_words = (size_t)account_words;
    memory->share_at = (size_t)share_at;
    step->latency_at = (size_t)latency_at;
    if (take_eventfds(memory, eventfds) < 0
        || view_memory(step, words, accounts, stalls, log_bytes, counts, shared_counts) < 0)
        return -1;
    Py_INCREF(recent);
    Py_INCREF(log);
    Py_INCREF(table);
    step->recent = recent;
    step->log = (LogRecord *)log;
    step->table = (TableRecord *)table;
    return 0;
}

static PyObject *
step_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    OrdinaryStep *step = (OrdinaryStep *)allocate(type, 0);
    if (!step)
        return NULL;
    step->module = PyType_GetModuleState(type);
    step->deliver = PyUnicode_InternFromString("deliver");
    if (!step->module || !step->deliver)
        Py_CLEAR(step);
    return (PyObject *)step;
}

static PyMethodDef step_methods[] = {
    {"serve", (PyCFunction)step_serve, METH_VARARGS,
     "serve(session, cost, cost_max) -> cost\n\n"
     "Read a client unless packets of it are pending, and publish what is ordinary, until the "
     "cost is reached. Other packets stay pending."},
    {"poll", (PyCFunction)step_poll, METH_VARARGS,
     "poll(poller, sessions, seconds_max, cost_max) -> [(fd, events)]\n\n"
     "Sleep until a descriptor is ready, or the time is up. Meanwhile serve a client, of `sessions` "
     "by descriptor, that is the only one ready, at rest and ordinary."},
    {"walk", (PyCFunction)step_walk, METH_VARARGS,
     "walk(end, costs, cost_max) -> cost\n\n"
     "Walk the log up to `end` or that cost, and add to `costs`, by uid. Stops before a block that "
     "is not ordinary."},
    {"walk_piece", (PyCFunction)step_walk_piece, METH_VARARGS,
     "walk_piece(piece, costs) -> bytes\n\n"
     "Walk over what was copied from the log; returns how much of it was ordinary."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot step_slots[] = {
    {Py_tp_doc, "What a worker does for ordinary messages."},
    {Py_tp_new, step_new},
    {Py_tp_init, step_init},
    {Py_tp_dealloc, step_dealloc},
    {Py_tp_traverse, step_traverse},
    {Py_tp_clear, step_clear},
    {Py_tp_methods, step_methods},
    {0, NULL},
};

/* -- records, for Python ----------------------------------------------------------------------- */
static PyMemberDef outbox_members[] = {
    {"fd", T_INT, offsetof(OutboxRecord, fd), 0, NULL},
    {"is_flowing", T_BOOL, offsetof(OutboxRecord, is_flowing), 0, NULL},
    {"accepted", T_LONGLONG, offsetof(OutboxRecord, accepted), 0, NULL},
    {"delivered_bytes", T_LONGLONG, offsetof(OutboxRecord, delivered_bytes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef route_members[] = {
    {"mask", T_ULONGLONG, offsetof(RouteRecord, mask), 0, NULL},
    {"recipients", T_OBJECT_EX, offsetof(RouteRecord, recipients), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef session_members[] = {
    {"packets", T_OBJECT_EX, offsetof(SessionRecord, packets), 0, NULL},
    {"done", T_PYSSIZET, offsetof(SessionRecord, done), 0, NULL},
    {"fd", T_INT, offsetof(SessionRecord, fd), 0, NULL},
    {"is_ordinary", T_BOOL, offsetof(SessionRecord, is_ordinary), 0, NULL},
    {"is_readable", T_BOOL, offsetof(SessionRecord, is_readable), 0, NULL},
    {"is_at_rest", T_BOOL, offsetof(SessionRecord, is_at_rest), 0, NULL},
    {"client", T_ULONGLONG, offsetof(SessionRecord, client), 0, NULL},
    {"uid", T_ULONGLONG, offsetof(SessionRecord, uid), 0, NULL},
    {"account_place", T_ULONGLONG, offsetof(SessionRecord, account), 0, NULL},
    {"batch_packets_max", T_LONGLONG, offsetof(SessionRecord, packets_max), 0, NULL},
    {"batch_bytes_max", T_LONGLONG, offsetof(SessionRecord, bytes_max), 0, NULL},
    {"packet_bytes_max", T_LONGLONG, offsetof(SessionRecord, packet_bytes_max), 0, NULL},
    {"received_us", T_LONGLONG, offsetof(SessionRecord, received_us), 0, NULL},
    {"messages_in", T_LONGLONG, offsetof(SessionRecord, messages_in), 0, NULL},
    {"bytes_in", T_LONGLONG, offsetof(SessionRecord, bytes_in), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef log_members[] = {
    {"cursor", T_ULONGLONG, offsetof(LogRecord, cursor), 0, NULL},
    {"window", T_ULONGLONG, offsetof(LogRecord, window), 0, NULL},
    {"is_caught_up", T_BOOL, offsetof(LogRecord, is_caught_up), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef table_members[] = {
    {"epoch", T_ULONGLONG, offsetof(TableRecord, epoch), 0, NULL},
    {"position", T_ULONGLONG, offsetof(TableRecord, position), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
route_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((RouteRecord *)self)->recipients);
    return 0;
}

static int
route_clear(PyObject *self)
{
    Py_CLEAR(((RouteRecord *)self)->recipients);
    return 0;
}

/* Free a record, whose class may be a Python class. */
static void
free_record(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void
route_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    route_clear(self);
    free_record(self);
}

static void
session_dealloc(PyObject *self)
{
    Py_CLEAR(((SessionRecord *)self)->packets); /* bytes alone, so never part of a cycle */
    free_record(self);
}

static PyType_Slot outbox_slots[] = {{Py_tp_members, outbox_members}, {0, NULL}};
static PyType_Slot route_slots[] = {
    {Py_tp_members, route_members}, {Py_tp_traverse, route_traverse},
    {Py_tp_clear, route_clear},     {Py_tp_dealloc, route_dealloc},
    {0, NULL},
};
static PyType_Slot session_slots[] = {
    {Py_tp_members, session_members}, {Py_tp_dealloc, session_dealloc}, {0, NULL}};
static PyType_Slot log_slots[] = {{Py_tp_members, log_members}, {0, NULL}};
static PyType_Slot table_slots[] = {{Py_tp_members, table_members}, {0, NULL}};

#define RECORD_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE)
static PyType_Spec specs[TYPES] = {
    {"sbus.compiled._step.OutboxRecord", sizeof(OutboxRecord), 0, RECORD_FLAGS, outbox_slots},
    {"sbus.compiled._step.RouteRecord", sizeof(RouteRecord), 0,
     RECORD_FLAGS | Py_TPFLAGS_HAVE_GC, route_slots},
    {"sbus.compiled._step.SessionRecord", sizeof(SessionRecord), 0, RECORD_FLAGS, session_slots},
    {"sbus.compiled._step.LogRecord", sizeof(LogRecord), 0, RECORD_FLAGS, log_slots},
    {"sbus.compiled._step.TableRecord", sizeof(TableRecord), 0, RECORD_FLAGS, table_slots},
    {"sbus.compiled._step.OrdinaryStep", sizeof(OrdinaryStep), 0,
     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, step_slots},
};

/* -- the module -------------------------------------------------------------------------------- */
#define PLACE(module, name) {#module "." #name, name}
static const struct {
    const char *name;
    long value;
} layout[] = { /* what a Python module must define with the same value */
    PLACE(shared_memory, LOG_HEAD),
    PLACE(shared_memory, TABLE_EPOCH),
    PLACE(shared_memory, TABLE_GENERATION),
    PLACE(shared_memory, ALIVE),
    PLACE(shared_memory, SLEEPING),
    PLACE(shared_memory, WAITING),
    PLACE(shared_memory, WORKER_WORDS),
    PLACE(shared_memory, LOG_START),
    PLACE(shared_memory, LOG_END),
    PLACE(shared_memory, LOG_CURSOR),
    PLACE(shared_memory, LOG_WINDOW),
    PLACE(shared_memory, LOG_WAITERS),
    PLACE(shared_memory, LOG_ROUND),
    PLACE(shared_memory, LOG_SHARE),
    PLACE(shared_memory, LOG_CONTENDERS),
    PLACE(shared_memory, EPOCH_SEEN),
    PLACE(shared_memory, WORDS_PER_WORKER),
    PLACE(shared_memory, SELECTOR),
    PLACE(shared_memory, COPIES),
    PLACE(accounts, NS_PER_MESSAGE),
    PLACE(accounts, PAID_UNTIL_NS),
    PLACE(accounts, RATE_BURST_NS),
    PLACE(log_share, WORDS_PER_DESTINATION),
    PLACE(ordered_log, MODEST_PART),
    PLACE(log_block, BLOCK_ALIGN_BYTES),
    PLACE(worker_statistics, MESSAGES_IN),
    PLACE(worker_statistics, BYTES_IN),
    PLACE(worker_statistics, ACCEPTED),
    PLACE(worker_statistics, ACCEPTED_BYTES),
    PLACE(worker_statistics, ROUTE_LOOKUPS),
    PLACE(worker_statistics, LATENCY_SUM_US),
};

/* A dict of the layout, so that Python can tell a module that was compiled from older sources. */
static int
add_layout(PyObject *module)
{
    PyObject *places = PyDict_New();
    for (size_t i = 0; places && i < sizeof layout / sizeof *layout; i++) {
        PyObject *value = PyLong_FromLong(layout[i].value);
        if (!value || PyDict_SetItemString(places, layout[i].name, value) < 0)
            Py_CLEAR(places);
        Py_XDECREF(value);
    }
    int result = places ? PyModule_AddObjectRef(module, "LAYOUT", places) : -1;
    Py_XDECREF(places);
    return result;
}

static int
module_exec(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    for (size_t i = 0; i < TYPES; i++) {
        state->types[i] = (PyTypeObject *)PyType_FromModuleAndSpec(module, &specs[i], NULL);
        if (!state->types[i] || PyModule_AddType(module, state->types[i]) < 0)
            return -1;
    }
    return add_layout(module) < 0 || PyModule_AddStringConstant(module, "SOURCES", SBUS_SOURCES) < 0
               ? -1
               : 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    for (size_t i = 0; i < TYPES; i++)
        Py_VISIT(state->types[i]);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    for (size_t i = 0; i < TYPES; i++)
        Py_CLEAR(state->types[i]);
    return 0;
}

#ifdef SBUS_STEP_TEST
/* -- for tests --------------------------------------------------------------------------------- */
static PyObject *
set_clock(PyObject *module, PyObject *now_ns)
{
    (void)module;
    clock_ns = PyLong_AsUnsignedLongLong(now_ns);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
die_at_store(PyObject *module, PyObject *number)
{
    (void)module;
    stores_until_death = PyLong_AsUnsignedLongLong(number);
    stores_made = 0;
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *
count_stores(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromUnsignedLongLong(stores_made);
}

static PyObject *
count_sections(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromUnsignedLongLong(sections_entered);
}

static PyMethodDef module_methods[] = {
    {"count_sections", count_sections, METH_NOARGS, "Critical sections entered so far."},
    {"set_clock", set_clock, METH_O, "Show this time, in nanoseconds; 0: the real one."},
    {"die_at_store", die_at_store, METH_O, "End the process before this store from now, from 0."},
    {"count_stores", count_stores, METH_NOARGS, "Stores made since `die_at_store`."},
    {NULL, NULL, 0, NULL},
};
#else
#define module_methods NULL
#endif

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_step",
    .m_doc = "The compiled part of a worker: what is done for ordinary messages.",
    .m_size = sizeof(ModuleState),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC
PyInit__step(void)
{
    return PyModuleDef_Init(&module_def);
}
