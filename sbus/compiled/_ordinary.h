/* What the ordinary step does: it receives, publishes, delivers and walks, with the interpreter's
 * help where objects are concerned. `_step.c` has the types that Python sees.
 *
 * The names are those of the Python modules that do the same: Session.receive and gather,
 * Sequencer.publish, LogWalker.walk_to. At what is not ordinary a function returns 0 or false, and
 * has done nothing.
 */
#ifndef SBUS_ORDINARY_H
#define SBUS_ORDINARY_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "_fan_out.h"
#include "_memory.h"

enum { /* places in the statistics of a worker; those of latencies are given to the constructor */
    MESSAGES_IN = 0,
    BYTES_IN = 1,
    ACCEPTED = 2,
    ACCEPTED_BYTES = 3,
    DROPPED_BYTES = 4,
    UNDELIVERED = 5,
    UNDELIVERED_BYTES = 6,
    ROUTE_LOOKUPS = 10,
    LATENCY_SUM_US = 12,
    DROPPED_FAN_OUT = 20,
};
enum { FIRST_BOUND_BITS = 4, BYTES_PER_UNIT = 4096, WORD_BYTES = 4, EVENTS_PER_POLL = 256 };
enum { PREFIX_BYTES_MAX = 128 }; /* of what tells the sender; it has 12 bytes and five numbers */
enum { /* of sends; see send_times.py */
    SLOW_NS = 100000,
    SEND_NS = 6000, /* at most, for most of them; to wake a reader takes some 3 us */
    ORDINARY_NS = 16000, /* of one in Python */
    NS_PER_BYTE = 2,
    MARK_NS = 1000000,
    BYTES_PER_WEIGHT = 256,
    NS_PER_WEIGHT = 500,
    WEIGHT_PER_LOOK = 16, /* sixteen small packets, or a large one: a look costs some 50 ns */
};
#define TIME_MASK 0xFFFFFFFFu
#define ANYBODY -1 /* see backpressure.py */

/* -- records: what Python and C both read fast --------------------------------------------------
 * Python's classes inherit from these; `records.py` has their twins. */
typedef struct {
    PyObject_HEAD
    int fd;
    char is_flowing, wants_sender;
    unsigned long long account;
    long long accepted, delivered_bytes, drops_from_bytes, spared_account, new_drops;
    unsigned long long drop_counter, slot_at;
} OutboxRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long mask;
    PyObject *recipients; /* a tuple */
    PyObject *rules;      /* of back-pressure: a dict by account */
} RouteRecord;

typedef struct {
    PyObject_HEAD
    PyObject *packets; /* a list of bytes; the first `done` of them are done */
    PyObject *outbox;
    Py_ssize_t done;
    int fd;
    char echo, is_ordinary, is_readable, is_at_rest, may_carry_descriptors;
    unsigned long long client, uid, gid, pid, account, slot_at;
    long long packets_max, bytes_max, packet_bytes_max;
    long long received_us, messages_in, bytes_in;
} SessionRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long cursor, entries, window, entry_bytes;
    char is_caught_up;
} LogRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long epoch, position;
} TableRecord;

typedef struct {
    PyObject_HEAD
    unsigned long long client, uid, gid, pid, account, place;
} OriginRecord;

enum { OUTBOX, ROUTE, SESSION, LOG, TABLE, ORIGIN, STEP, TYPES };

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
    uint32_t number; /* of the message in the batch that it was published in */
    RouteRecord *route;
    size_t deliveries_end; /* of this message, in the batch's deliveries */
    uint64_t fan_out;      /* its number, among messages that pay for theirs; 0: not yet */
    uint64_t debtor;       /* the account whose debt was found last for it, and that debt */
    Debt *debt;
} Message;

typedef struct {
    size_t message;
    uint64_t slot_at;
    PyObject *recipient;
    OutboxRecord *outbox; /* the same, or the one that it guards, or NULL */
    Debt *debt;           /* once `send_from` has come here; NULL if nothing is charged */
} Delivery;

typedef struct {
    Message *messages;
    size_t count, messages_max;
    Delivery *deliveries;
    size_t deliveries_count, deliveries_max, left_out;
    uint64_t delivery_bytes, account, place; /* of the publisher; of the first message */
    uint64_t *progress, progress_base; /* where deliveries are noted, and what is added to them */
} Batch;

typedef struct {
    PyObject_HEAD
    ModuleState *module;
    Memory memory;
    Py_buffer views[11]; /* of control words, accounts, stalls, log, both copies of statistics, the
                           served client, the clients' slots, the times of sends and of fan-outs,
                           and what is in flight */
    uint64_t *counts, *shared_counts;
    uint64_t *timed_until_ns; /* sends to each user, by account; 0: they are not timed */
    FanOutTimes *fan_out;
    uint64_t looked_ns; /* when the clock was last read */
    uint64_t sleeps_from_ns; /* since when it may be asleep; 0: it is not */
    uint64_t marked_ns, cpu_at_mark_ns; /* when CPU time was last read, and what it was */
    size_t counts_max, latency_at;
    PyObject *recent; /* the route cache's dict */
    LogRecord *log;
    TableRecord *table;
    OriginRecord *origin; /* of what is delivered */
    PyObject *deliver, *leave_out; /* the methods' names */
    char *buffer;
    size_t buffer_bytes;
    Packet *packets;
    size_t packets_count, packets_max, done;
    Batch batch;
    char prefix[PREFIX_BYTES_MAX]; /* for recipients that want to know the sender */
    size_t prefix_bytes;   /* 0: it is for no message */
    uint64_t prefix_place; /* of the message that it is for */
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
    batch->count = batch->deliveries_count = batch->left_out = 0;
    batch->delivery_bytes = 0;
}

/* Get the outbox of a recipient, which keeps it; -1 with an exception. */
static int
find_outbox(const OrdinaryStep *step, PyObject *recipient, OutboxRecord **outbox)
{
    PyTypeObject *type = step->module->types[OUTBOX];
    *outbox = NULL;
    if (PyObject_TypeCheck(recipient, type)) {
        *outbox = (OutboxRecord *)recipient;
        return 0;
    }
    PyObject *found = PyObject_GetAttrString(recipient, "outbox");
    if (!found)
        return -1;
    if (PyObject_TypeCheck(found, type))
        *outbox = (OutboxRecord *)found;
    Py_DECREF(found);
    return 0;
}

/* Add the deliveries of one more message, whose route the batch has a reference to, but for those
 * to `except`, which may be NULL; -1 with an exception. */
static int
batch_add_deliveries(OrdinaryStep *step, size_t index, const OutboxRecord *except)
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
        OutboxRecord *outbox;
        if (find_outbox(step, recipient, &outbox) < 0)
            return -1;
        if (outbox && outbox == except)
            continue;
        uint64_t slot_at = outbox ? outbox->slot_at : 0;
        batch->deliveries[count++] = (Delivery){index, slot_at, recipient, outbox, NULL};
    }
    batch->delivery_bytes += (uint64_t)message->packet.size * (count - batch->deliveries_count);
    batch->deliveries_count = message->deliveries_end = count;
    return 0;
}

static int
batch_add(OrdinaryStep *step, const Packet *packet, uint32_t key_bytes, uint32_t number,
          RouteRecord *route, const OutboxRecord *except)
{
    Batch *batch = &step->batch;
    if (grow((void **)&batch->messages, &batch->messages_max, batch->count + 1,
             sizeof *batch->messages) < 0)
        return -1;
    Py_INCREF((PyObject *)route);
    Py_XINCREF(packet->bytes);
    batch->messages[batch->count]
        = (Message){.packet = *packet, .key_bytes = key_bytes, .number = number, .route = route};
    return batch_add_deliveries(step, batch->count++, except);
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

static inline bool
is_route(const OrdinaryStep *step, PyObject *object)
{
    if (!PyObject_TypeCheck(object, step->module->types[ROUTE]))
        return false;
    const RouteRecord *route = (RouteRecord *)object;
    return route->recipients && PyTuple_Check(route->recipients) && route->rules
           && PyDict_Check(route->rules);
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
/* Drop a message as the last one for this client, or leave it undelivered as that one; false where
 * that has to be decided. `is_left_out`: there is no time for it. */
static bool
drop_likewise(OrdinaryStep *step, OutboxRecord *outbox, uint32_t size, bool is_left_out)
{
    bool is_alike = (is_left_out && outbox->drop_counter == DROPPED_FAN_OUT)
                    || (size >= outbox->drops_from_bytes
                        && step->batch.account != (uint64_t)outbox->spared_account);
    if (outbox->is_flowing || !is_alike || outbox->drop_counter >= step->counts_max
        || outbox->slot_at >= step->memory.slots_words - WAITING_MESSAGES)
        return false;
    outbox->accepted++;
    outbox->new_drops++;
    step->counts[outbox->drop_counter]++;
    if (outbox->drop_counter == UNDELIVERED) {
        step->counts[UNDELIVERED_BYTES] += size;
    } else {
        step->counts[DROPPED_BYTES] += size;
        count_drop(&step->memory, outbox->account);
        uint64_t *waiting = &step->memory.slots[outbox->slot_at + WAITING_MESSAGES];
        store(waiting, *waiting + 1);
    }
    return true;
}

/* What is delivered from now on was published by this client, whose user has this account; `place` is
 * that of the first message. */
static void
set_origin(OrdinaryStep *step, uint64_t client, uint64_t uid, uint64_t gid, uint64_t pid,
           uint64_t account, uint64_t place)
{
    OriginRecord *origin = step->origin;
    origin->client = client;
    origin->uid = uid;
    origin->gid = gid;
    origin->pid = pid;
    step->batch.account = origin->account = account;
    step->batch.place = origin->place = place;
    step->prefix_bytes = 0;
}

/* Send a message behind the words that tell who published it; as send(2). */
static ssize_t
send_with_sender(OrdinaryStep *step, const OutboxRecord *outbox, const Message *message)
{
    static const char word[] = "CMSG !/from"; /* with its NUL */
    const OriginRecord *origin = step->origin;
    uint64_t place = step->batch.place + message->number;
    if (!step->prefix_bytes || step->prefix_place != place) {
        memcpy(step->prefix, word, sizeof word);
        step->prefix_bytes = sizeof word + (size_t)snprintf(step->prefix + sizeof word,
            sizeof step->prefix - sizeof word, "%llu %llu %llu %llu %llu ",
            (unsigned long long)place, origin->client, origin->gid, origin->uid, origin->pid);
        step->prefix_place = place;
    }
    struct iovec parts[] = {
        {step->prefix, step->prefix_bytes},
        {(char *)(uintptr_t)message->packet.data, message->packet.size},
    };
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(outbox->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0)
        step->counts[ACCEPTED_BYTES] += step->prefix_bytes;
    return sent;
}

static bool
send_to(OrdinaryStep *step, OutboxRecord *outbox, const Message *message)
{
    const Packet *packet = &message->packet;
    ssize_t sent;
    if (outbox->wants_sender)
        sent = send_with_sender(step, outbox, message);
    else
        sent = send(outbox->fd, packet->data, packet->size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return false;
    outbox->accepted++;
    outbox->delivered_bytes += sent;
    return true;
}

/* What the recipient's user owes to the publisher's, found once for consecutive recipients with one
 * account; NULL if nothing is charged for this. */
static Debt *
debt_for(OrdinaryStep *step, const Delivery *delivery)
{
    FanOutTimes *times = step->fan_out;
    const OutboxRecord *outbox = delivery->outbox;
    if (!outbox || outbox->account == step->batch.account)
        return NULL;
    Message *message = &step->batch.messages[delivery->message];
    size_t begin = delivery->message ? message[-1].deliveries_end : 0;
    if (message->deliveries_end - begin <= times->small)
        return NULL;
    if (message->fan_out && message->debtor == outbox->account)
        return message->debt;
    if (!message->fan_out)
        message->fan_out = ++times->message;
    message->debtor = outbox->account;
    message->debt = find_debt(times, step->batch.account, outbox->account, message->fan_out,
                              step->looked_ns);
    return message->debt;
}

static inline void
look_at_clock(OrdinaryStep *step)
{
    step->looked_ns = monotonic_ns();
    if (step->sleeps_from_ns) {
        note_sleep(step->fan_out, step->looked_ns - step->sleeps_from_ns);
        step->sleeps_from_ns = 0;
    }
}

static void
mark(OrdinaryStep *step)
{
    step->marked_ns = step->looked_ns;
    step->cpu_at_mark_ns = thread_cpu_ns();
}

/* The CPU time since then, or less: see send_times.py. */
static uint64_t
cpu_time_since(OrdinaryStep *step, uint64_t began_ns)
{
    uint64_t before_ns = step->cpu_at_mark_ns + began_ns - step->marked_ns; /* at most */
    mark(step);
    return step->cpu_at_mark_ns - smaller(step->cpu_at_mark_ns, before_ns);
}

/* Consecutive deliveries, with one look at the clock behind them. */
typedef struct {
    size_t first;
    uint64_t sends, weight, account; /* of its sends; of its last delivery */
    bool is_charged; /* some of them are owed */
} Group;

/* Look at the clock behind a group, and charge what its sends took. If that was too much, sends to
 * these users are timed from now on. */
static void
note_sends(OrdinaryStep *step, const Group *group, size_t end)
{
    uint64_t began_ns = step->looked_ns, sends = group->sends;
    look_at_clock(step);
    if (!sends)
        return;
    uint64_t slow_ns = SLOW_NS + group->weight * NS_PER_WEIGHT;
    uint64_t ordinary_ns = sends * SEND_NS + group->weight * NS_PER_WEIGHT;
    uint64_t spent_ns = step->looked_ns - began_ns;
    if (spent_ns > slow_ns || (group->is_charged && spent_ns > ordinary_ns))
        spent_ns = cpu_time_since(step, began_ns);
    for (size_t at = group->first; at < end; at++) {
        const Delivery *delivery = &step->batch.deliveries[at];
        if (spent_ns > slow_ns) {
            uint64_t *until_ns = &step->timed_until_ns[delivery->outbox->account];
            *until_ns = larger(*until_ns, step->looked_ns + TIME_SHARE * spent_ns);
        }
        if (delivery->debt && delivery->outbox->is_flowing)
            charge_debt(delivery->debt, spent_ns, ordinary_ns, sends);
    }
}

/* Send or drop from this delivery on, without the interpreter's lock; returns the first that Python
 * has to make, or their number. The clock was looked at just before. */
static size_t
send_from(OrdinaryStep *step, size_t at)
{
    Batch *batch = &step->batch;
    Delivery *all = batch->deliveries;
    Group group = {.first = at};
    if (step->looked_ns - step->marked_ns > MARK_NS)
        mark(step);
    for (; at < batch->deliveries_count; at++) {
        OutboxRecord *outbox = all[at].outbox;
        const Message *message = &batch->messages[all[at].message];
        const Packet *packet = &message->packet;
        uint64_t number = (uint64_t)all[at].message << NUMBER_SHIFT;
        store(batch->progress, batch->progress_base + number + all[at].slot_at + 1);
        if (!outbox || outbox->account >= step->memory.accounts_count)
            break;
        if (group.sends && outbox->account != group.account && group.is_charged) {
            note_sends(step, &group, at); /* before another pair may take the place of theirs */
            group = (Group){.first = at};
        }
        Debt *debt = all[at].debt = debt_for(step, &all[at]);
        if (group.sends && outbox->account != group.account && debt) {
            note_sends(step, &group, at);
            group = (Group){.first = at};
        }
        group.account = outbox->account;
        group.is_charged |= debt != NULL;
        bool is_left_out = debt && debt->is_spent;
        if (!is_left_out && all[at].recipient != (PyObject *)outbox)
            break; /* a guard has to look first */
        if (is_left_out || !outbox->is_flowing) {
            if (!drop_likewise(step, outbox, packet->size, is_left_out))
                break;
            batch->left_out += is_left_out;
            continue;
        }
        if (step->timed_until_ns[outbox->account] || !send_to(step, outbox, message))
            break;
        group.sends++;
        group.weight += 1 + packet->size / BYTES_PER_WEIGHT;
        if (group.weight >= WEIGHT_PER_LOOK) {
            note_sends(step, &group, at + 1);
            group = (Group){.first = at + 1};
        }
    }
    if (group.first < at)
        note_sends(step, &group, at);
    return at;
}

/* Have Python make one delivery, or leave it out. */
static int
deliver_in_python(OrdinaryStep *step, const Delivery *delivery, PyObject *method)
{
    Message *message = &step->batch.messages[delivery->message];
    Packet *packet = &message->packet;
    step->origin->place = step->batch.place + message->number;
    if (!packet->bytes)
        packet->bytes = PyBytes_FromStringAndSize(packet->data, packet->size);
    PyObject *account = PyLong_FromUnsignedLongLong(step->batch.account);
    PyObject *result = NULL;
    step->called_python = true;
    if (packet->bytes && account)
        result = PyObject_CallMethodObjArgs(delivery->recipient, method, packet->bytes, account,
                                            NULL);
    Py_XDECREF(account);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Make all deliveries from this one on. */
static int
deliver_from(OrdinaryStep *step, size_t at)
{
    Batch *batch = &step->batch;
    while (at < batch->deliveries_count) {
        const Delivery *delivery = &batch->deliveries[at];
        Debt *debt = delivery->debt;
        bool is_left_out = debt && debt->is_spent;
        uint64_t began_ns = step->looked_ns;
        PyObject *method = is_left_out ? step->leave_out : step->deliver;
        if (deliver_in_python(step, delivery, method) < 0)
            return -1;
        batch->left_out += is_left_out;
        look_at_clock(step);
        if (debt) {
            uint64_t size = batch->messages[delivery->message].packet.size;
            uint64_t ordinary_ns = ORDINARY_NS + size * NS_PER_BYTE;
            uint64_t spent_ns = step->looked_ns - began_ns;
            if (delivery->recipient != (PyObject *)delivery->outbox)
                ordinary_ns += LOOK_NS;
            if (spent_ns > ordinary_ns)
                spent_ns = cpu_time_since(step, began_ns);
            charge_debt(debt, spent_ns, ordinary_ns, 1);
        }
        Py_BEGIN_ALLOW_THREADS
        at = send_from(step, at + 1);
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

/* The length of the log block of a batch's first messages, and its entries; no mask if no other
 * worker needs it. */
static uint64_t
measure_block(const Batch *batch, size_t count, uint64_t *mask, uint64_t *entries)
{
    uint64_t length = sizeof(BlockHeader);
    *mask = *entries = 0;
    for (size_t i = 0; i < count; i++) {
        const Message *message = &batch->messages[i];
        *mask |= message->route->mask;
        if (!message->route->mask)
            continue;
        length += sizeof(EntryHeader) + message->packet.size;
        ++*entries;
    }
    return (length + BLOCK_ALIGN_BYTES - 1) / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES;
}

/* Lay the block out in the log, where there is room for it, and count its entries. */
static void
write_block(unsigned char *at, const Batch *batch, size_t count, BlockHeader *header)
{
    static const char padding[BLOCK_ALIGN_BYTES];
    unsigned char *const start = at;
    at += sizeof *header;
    for (size_t i = 0; i < count; i++) {
        const Message *message = &batch->messages[i];
        EntryHeader entry = {message->route->mask, message->packet.size,
                             (uint16_t)message->key_bytes, (uint16_t)message->number};
        if (!entry.mask)
            continue;
        header->count++;
        store_bytes(at, &entry, sizeof entry);
        store_bytes(at + sizeof entry, message->packet.data, message->packet.size);
        at += sizeof entry + message->packet.size;
    }
    store_bytes(at, padding, (size_t)(start + header->length - at));
    store_bytes(start, header, sizeof *header);
}

/* Append what other workers need of a batch; fewer messages if they would occupy one of them for
 * too long. False when there is no room. */
static bool
append(OrdinaryStep *step, uint64_t *words, const SessionRecord *session, size_t *count,
       uint64_t *woken, uint64_t place)
{
    const Memory *memory = &step->memory;
    const uint64_t *account = memory->accounts + session->account * memory->account_words;
    uint64_t mask, entries, head;
    uint64_t length = measure_block(&step->batch, *count, &mask, &entries);
    uint64_t parts = parts_of(words, mask, length, entries);
    if (parts > 1 && *count > 1) {
        *count = larger(1, *count / parts);
        length = measure_block(&step->batch, *count, &mask, &entries);
    }
    if (!mask)
        return true;
    if (has_late_destination(memory, words, mask & words[ALIVE], account)
        || !find_place(memory, words, length, &head))
        return false;
    BlockHeader header = {
        .mask = mask,
        .length = (uint32_t)length,
        .client = session->client,
        .uid = (uint32_t)session->uid,
        .received_us = (uint32_t)session->received_us,
        .place = place,
        .gid = (uint32_t)session->gid,
        .pid = (uint32_t)session->pid,
        .account = (uint32_t)session->account,
    };
    write_block(memory->log + head % memory->log_bytes, &step->batch, *count, &header);
    store(&words[LOG_HEAD], head + length);
    *woken |= destine(memory, words, &header, head, account);
    return true;
}

/* What is done in the critical section of a batch; false when that is not ordinary. */
static bool
place_in(OrdinaryStep *step, uint64_t *words, const SessionRecord *session, size_t *count,
         uint64_t *woken, uint64_t number)
{
    const Memory *memory = &step->memory;
    uint64_t *own = worker_words(words, memory->worker);
    uint64_t *account = memory->accounts + session->account * memory->account_words;
    if (words[TABLE_EPOCH] != step->table->epoch
        || words[TABLE_GENERATION] > step->table->position || own[LOG_END] > step->log->cursor)
        return false;
    store(&own[EPOCH_SEEN], step->table->epoch);
    *woken = share_cursor(memory, words, step->log->cursor, step->log->window,
                          step->log->entry_bytes);
    look_at_clock(step);
    uint64_t now_ns = step->looked_ns;
    uint64_t place = larger(now_ns, words[LAST_PLACE] + 1);
    if (exceeds_rate(account, now_ns) || !append(step, words, session, count, woken, place))
        return false;
    store(&words[LAST_PLACE], place + *count - 1);
    step->batch.place = place;
    pay_for(account, *count, now_ns);
    if (number)
        store(&own[STEP_BATCH], *count << NUMBER_SHIFT | number);
    store(&words[SLEEPING], words[SLEEPING] | (uint64_t)1 << memory->worker);
    return true;
}

/* Let a successor of this worker know the recipients of the batch; returns its number, 0 if it has
 * none here. */
static uint64_t
begin_flight(OrdinaryStep *step, const SessionRecord *session)
{
    Batch *batch = &step->batch;
    const Memory *memory = &step->memory;
    if (!batch->deliveries_count)
        return 0;
    uint64_t number = begin_batch(memory, session->echo ? NOBODY : session->slot_at);
    size_t keys = 0, at = 0;
    while (keys < batch->count
           && add_key(memory, &at, batch->messages[keys].packet.data + WORD_BYTES,
                      batch->messages[keys].key_bytes))
        keys++;
    store(&memory->in_flight[KEYS], keys);
    batch->progress = &memory->in_flight[BATCH_PROGRESS];
    batch->progress_base = 0;
    return number;
}

/* Give the first messages of the batch their place in the order; false when that is not ordinary,
 * and nothing has changed. */
static bool
place(OrdinaryStep *step, const SessionRecord *session, size_t *count)
{
    uint64_t number = begin_flight(step, session);
    uint64_t spare, woken = 0, *words = enter(&step->memory, &spare);
    if (!words)
        return false;
    if (!place_in(step, words, session, count, &woken, number)) {
        leave(&step->memory);
        return false;
    }
    commit(&step->memory, spare);
    step->log->is_caught_up = true;
    wake(&step->memory, woken);
    return true;
}

/* A packet from Python, whose bytes are borrowed; -1 with an exception. */
static int
take_packet(PyObject *bytes, Packet *packet)
{
    char *data;
    Py_ssize_t size;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size) < 0)
        return -1;
    if ((uint64_t)size > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a packet is too long");
        return -1;
    }
    *packet = (Packet){data, (uint32_t)size, bytes};
    return 0;
}

static bool
is_message(const char *data, size_t size)
{
    return size >= WORD_BYTES && !memcmp(data, "MSG ", WORD_BYTES);
}

/* Whether a message of this client may have to wait for a stalled one, with this route; -1 with an
 * exception. */
static int
may_be_held(const SessionRecord *session, const RouteRecord *route)
{
    long long accounts[] = {(long long)session->account, ANYBODY};
    bool is_held = false;
    for (size_t i = 0; PyDict_Size(route->rules) && !is_held && i < 2; i++) {
        PyObject *account = PyLong_FromLongLong(accounts[i]);
        is_held = account && PyDict_GetItemWithError(route->rules, account);
        Py_XDECREF(account);
    }
    return PyErr_Occurred() ? -1 : is_held;
}

/* Gather the messages at the head of the packets, up to this cost and to the first key that is not in
 * the cache: 1 if that makes an ordinary batch, 0 if not, -1 with an exception. */
static int
gather(OrdinaryStep *step, const SessionRecord *session, uint64_t cost_max)
{
    Batch *batch = &step->batch;
    batch_clear(batch);
    for (size_t at = step->done; at < step->packets_count; at++) {
        const Packet *packet = &step->packets[at];
        if (batch->count + batch->deliveries_count >= cost_max)
            break;
        if (!is_message(packet->data, packet->size) || packet->size > session->packet_bytes_max)
            break;
        const char *key = packet->data + WORD_BYTES;
        const char *end = memchr(key, 0, packet->size - WORD_BYTES);
        if (!end)
            break;
        RouteRecord *route = look_up(step, key, (uint32_t)(end - key));
        if (!route)
            break;
        int is_held = *step->memory.stalled ? may_be_held(session, route) : 0;
        if (is_held)
            return is_held < 0 ? -1 : 0;
        OutboxRecord *except = session->echo ? NULL : (OutboxRecord *)session->outbox;
        if (batch_add(step, packet, (uint32_t)(end - key), (uint32_t)batch->count, route, except) < 0)
            return -1;
    }
    return PyErr_Occurred() ? -1 : batch->count > 0;
}

/* Let a successor of this worker know how many packets of a client are read and not done. */
static inline void
share_pending(const OrdinaryStep *step, const SessionRecord *session, size_t pending)
{
    uint64_t *word = &step->memory.slots[session->slot_at + PENDING];
    store(word, (*word >> COUNT_BITS << COUNT_BITS) | pending);
}

/* Keep the packet that was read last for a successor of this worker, because it is no message. */
static void
keep_request(const OrdinaryStep *step, const SessionRecord *session, const char *data, size_t size)
{
    const Memory *memory = &step->memory;
    uint64_t *slot = &memory->slots[session->slot_at], *room = slot + REQUEST;
    if (size > (SLOT_WORDS - REQUEST) * sizeof *room) {
        size_t number = (size_t)session->slot_at / SLOT_WORDS;
        room = memory->slots + memory->slots_words + number * LONG_REQUEST_WORDS;
    }
    if (size > LONG_REQUEST_WORDS * sizeof *room)
        size = LONG_REQUEST_WORDS * sizeof *room;
    store_bytes(room, data, size);
    store(&slot[PENDING], (uint64_t)size << REQUEST_SHIFT | step->packets_count);
}

/* Make the deliveries of a publish batch, which was read at this time, from this one on, and end it;
 * -1 with an exception. */
static int
end_batch(OrdinaryStep *step, size_t at, uint64_t received_us)
{
    uint64_t before = step->counts[ACCEPTED];
    count_accepted(step);
    if (deliver_from(step, at) < 0)
        return -1;
    store(&step->memory.in_flight[BATCH_PROGRESS], DONE);
    record_latency(step, step->looked_ns / 1000 - received_us, step->counts[ACCEPTED] - before);
    return 0;
}

/* Publish the next batch: 1 if that was ordinary, 0 if not and nothing was done, -1 with an
 * exception. */
static int
publish(OrdinaryStep *step, SessionRecord *session, uint64_t cost_max)
{
    Batch *batch = &step->batch;
    int gathered = gather(step, session, cost_max);
    if (gathered <= 0)
        return gathered;
    size_t count = batch->count, at = 0;
    bool placed;
    Py_BEGIN_ALLOW_THREADS
    placed = place(step, session, &count);
    if (placed) {
        set_origin(step, session->client, session->uid, session->gid, session->pid,
                   session->account, step->batch.place);
        share_pending(step, session, step->packets_count - step->done - count);
    }
    if (placed && count == batch->count)
        at = send_from(step, 0);
    Py_END_ALLOW_THREADS
    if (!placed)
        return 0;
    step->counts[MESSAGES_IN] += count;
    step->counts[ROUTE_LOOKUPS] += batch->count;
    if (count < batch->count) {
        batch_cut(batch, count);
        Py_BEGIN_ALLOW_THREADS
        at = send_from(step, 0);
        Py_END_ALLOW_THREADS
    }
    if (end_batch(step, at, (uint64_t)session->received_us) < 0)
        return -1;
    session->messages_in += (long long)count;
    step->done += count;
    return 1;
}

/* Deliver messages to which Python has given their place, and whose origin it has set; -1 with an
 * exception. */
static int
deliver_placed(OrdinaryStep *step, PyObject *messages, uint64_t received_us)
{
    Batch *batch = &step->batch;
    batch->account = step->origin->account;
    batch->place = step->origin->place;
    step->prefix_bytes = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(messages); i++) {
        PyObject *bytes, *key, *route;
        Packet packet;
        if (!PyArg_ParseTuple(PyList_GetItem(messages, i), "OSO", &bytes, &key, &route)
            || take_packet(bytes, &packet) < 0)
            return -1;
        if (!is_route(step, route)) {
            PyErr_SetString(PyExc_TypeError, "a message has no route");
            return -1;
        }
        uint64_t key_bytes = (uint64_t)PyBytes_Size(key);
        if (key_bytes + WORD_BYTES > packet.size) {
            PyErr_SetString(PyExc_ValueError, "a key is longer than its packet");
            return -1;
        }
        if (batch_add(step, &packet, (uint32_t)key_bytes, (uint32_t)batch->count,
                      (RouteRecord *)route, NULL) < 0)
            return -1;
    }
    size_t at;
    batch->progress = &step->memory.in_flight[BATCH_PROGRESS];
    batch->progress_base = 0;
    Py_BEGIN_ALLOW_THREADS
    look_at_clock(step);
    at = send_from(step, 0);
    Py_END_ALLOW_THREADS
    return end_batch(step, at, received_us);
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
        Packet packet;
        if (take_packet(PyList_GetItem(session->packets, session->done + i), &packet) < 0)
            return -1;
        Py_INCREF(packet.bytes);
        step->packets[step->packets_count++] = packet;
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
    int error;            /* of the last call; 0 if there was none */
    bool is_empty;        /* the last packet has no bytes, which may mean the end */
    bool has_descriptors; /* the next packet, which is left for Python */
} Received;

/* Look at the next packet: 1 if it has descriptors, 0 if not, -1 as recv. */
static int
has_descriptors(int fd)
{
    struct msghdr header = {0};
    if (recvmsg(fd, &header, MSG_DONTWAIT | MSG_PEEK) < 0)
        return -1;
    return (header.msg_flags & MSG_CTRUNC) != 0;
}

/* Whether there is nothing to read now. What a client sends only after a reply is for another turn, so
 * this is asked before. */
static bool
is_drained(int fd)
{
    char first;
    return recv(fd, &first, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

/* Receive until the socket is empty, the batch is full, or a packet is no message. Without the
 * interpreter's lock. */
static Received
receive_packets(OrdinaryStep *step, const SessionRecord *session)
{
    Received received = {0};
    size_t size_max = (size_t)session->packet_bytes_max + 1;
    while (step->packets_count < (size_t)session->packets_max
           && received.bytes < session->bytes_max) {
        char *data = step->buffer + received.bytes;
        ssize_t size = session->may_carry_descriptors ? has_descriptors(session->fd) : 0;
        if (size > 0) {
            received.has_descriptors = true;
            break;
        }
        /* Before it is read: a successor must not answer what comes behind a lost subscription. */
        share_pending(step, session, step->packets_count + 1);
        if (!size)
            size = recv(session->fd, data, size_max, MSG_DONTWAIT);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0) {
            received.error = errno;
            break;
        }
        step->packets[step->packets_count++] = (Packet){data, (uint32_t)size, NULL};
        received.bytes += size;
        received.is_empty = !size;
        if (!is_message(data, (size_t)size)) {
            keep_request(step, session, data, (size_t)size);
            if (size && is_drained(session->fd))
                received.error = EAGAIN;
            break;
        }
    }
    share_pending(step, session, step->packets_count);
    return received;
}

/* Have Python look at the next packet, with its descriptors; returns the cost, -1 with an
 * exception. */
static long long
receive_in_python(OrdinaryStep *step, SessionRecord *session)
{
    long long before = session->bytes_in;
    step->called_python = true;
    PyObject *result = PyObject_CallMethod((PyObject *)session, "receive", NULL);
    long long cost = result ? PyLong_AsLongLong(result) : -1;
    Py_XDECREF(result);
    step->counts[BYTES_IN] += (uint64_t)(session->bytes_in - before);
    return cost;
}

/* Read the next batch of a client, as Session.receive does; returns the cost, -1 with an
 * exception. What Python has read is in its list. */
static long long
receive(OrdinaryStep *step, SessionRecord *session)
{
    if (prepare_buffer(step, session) < 0)
        return -1;
    Received received;
    Py_BEGIN_ALLOW_THREADS
    look_at_clock(step);
    session->received_us = (long long)(step->looked_ns / 1000);
    received = receive_packets(step, session);
    Py_END_ALLOW_THREADS
    if (received.has_descriptors && !step->packets_count)
        return receive_in_python(step, session);
    bool is_reset = received.error == ECONNRESET;
    session->is_readable = is_reset || (!received.error && !received.is_empty);
    if (received.error && received.error != EAGAIN && !is_reset) {
        errno = received.error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    session->bytes_in += received.bytes;
    step->counts[BYTES_IN] += (uint64_t)received.bytes;
    return received.bytes / BYTES_PER_UNIT;
}

/* -- waiting ----------------------------------------------------------------------------------- */
typedef struct {
    int epoll_fd, count;
    uint64_t until_ns; /* by then, Python has something to do */
    struct epoll_event ready[EVENTS_PER_POLL + 1];
} Poll;

/* Poll until this time; false with an exception. The clock was looked at just before. */
static bool
poll_until(OrdinaryStep *step, Poll *poll, uint64_t until_ns)
{
    int error;
    do {
        uint64_t left_ns = until_ns - smaller(step->looked_ns, until_ns);
        uint64_t left_ms = left_ns / 1000000 + (left_ns % 1000000 != 0);
        int timeout_ms = until_ns == UINT64_MAX ? -1 : (int)smaller(left_ms, INT32_MAX);
        step->sleeps_from_ns = timeout_ms ? step->looked_ns : 0;
        Py_BEGIN_ALLOW_THREADS
        poll->count = epoll_wait(poll->epoll_fd, poll->ready, EVENTS_PER_POLL, timeout_ms);
        error = errno;
        Py_END_ALLOW_THREADS
        if (poll->count >= 0)
            return true;
        look_at_clock(step);
    } while (error == EINTR && PyErr_CheckSignals() == 0);
    poll->count = 0;
    if (!PyErr_Occurred()) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return false;
}

/* Whether a client that is served without turns still is the only one ready. What it has sent
 * meanwhile is read next. */
static bool
is_still_lone(OrdinaryStep *step, SessionRecord *session, Poll *poll)
{
    if (step->called_python || step->looked_ns >= poll->until_ns || !poll_until(step, poll, 0))
        return false;
    const struct epoll_event *first = poll->ready;
    if (poll->count == 1 && first->data.fd == session->fd && first->events == EPOLLIN) {
        session->is_readable = true;
        poll->count = 0;
    }
    return !poll->count;
}

/* -- one client -------------------------------------------------------------------------------- */
/* Get the client's pending packets or, if it has none, read more; returns the cost of that, -1
 * with an exception. */
static long long
load(OrdinaryStep *step, SessionRecord *session, bool *is_pending)
{
    Py_ssize_t pending = PyList_Size(session->packets) - session->done;
    long long cost = 0;
    if (!pending) {
        cost = receive(step, session);
        pending = PyList_Size(session->packets) - session->done;
    }
    *is_pending = pending > 0;
    if (cost < 0 || !pending)
        return cost;
    return load_pending(step, session, pending) < 0 ? -1 : cost;
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
 * exception. One that is served without turns, while its worker waits in `poll`, goes on after that
 * cost if nobody else is ready; then `cost` begins anew. */
static int
serve(OrdinaryStep *step, SessionRecord *session, long long *cost, long long cost_max, Poll *poll)
{
    bool is_pending;
    int published = session->is_ordinary;
    long long loading = load(step, session, &is_pending);
    if (loading >= 0)
        *cost += loading;
    bool ends = !is_pending && ends_empty(step);
    if (loading < 0 || ends)
        published = 0;
    while (published > 0 && step->done < step->packets_count) {
        if (*cost >= cost_max) {
            if (!poll || !is_still_lone(step, session, poll))
                break;
            *cost = 0;
        }
        published = publish(step, session, (uint64_t)(cost_max - *cost));
        const Batch *batch = &step->batch;
        if (published > 0)
            *cost += 1 + (long long)(batch->count + batch->deliveries_count - batch->left_out
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
        if (batch_add(step, &packet, entry.key_bytes, entry.number, route, NULL) < 0)
            return -1;
    }
    return 1;
}

/* Add to what is counted by account. */
static int
add_for_account(PyObject *by_account, uint32_t place, uint64_t more)
{
    PyObject *account = PyLong_FromUnsignedLong(place);
    PyObject *before = account ? PyDict_GetItemWithError(by_account, account) : NULL;
    uint64_t counted = before ? PyLong_AsUnsignedLongLong(before) : 0;
    PyObject *after = PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(counted + more);
    int result = after ? PyDict_SetItem(by_account, account, after) : -1;
    Py_XDECREF(account);
    Py_XDECREF(after);
    return result;
}

/* Deliver the batch of a walked block; returns the cost, -1 with an exception. */
static long long
deliver_block(OrdinaryStep *step, const BlockHeader *header, uint64_t position, PyObject *costs,
              PyObject *bytes)
{
    Batch *batch = &step->batch;
    batch->progress = &step->memory.in_flight[WALK_PROGRESS];
    batch->progress_base = begin_block(&step->memory, position);
    size_t at;
    Py_BEGIN_ALLOW_THREADS
    at = send_from(step, 0);
    Py_END_ALLOW_THREADS
    uint64_t before = step->counts[ACCEPTED];
    count_accepted(step);
    if (deliver_from(step, at) < 0)
        return -1;
    step->counts[ROUTE_LOOKUPS] += batch->count;
    uint32_t latency_us = (uint32_t)(step->looked_ns / 1000) - header->received_us;
    record_latency(step, latency_us, step->counts[ACCEPTED] - before);
    uint64_t cost = batch->count + batch->deliveries_count - batch->left_out
        + batch->delivery_bytes / BYTES_PER_UNIT;
    if (add_for_account(costs, header->account, cost) < 0
        || add_for_account(bytes, header->account, header->length) < 0)
        return -1;
    return (long long)cost;
}

typedef struct {
    bool is_ordinary;
    uint64_t length, entries; /* those of a block destined here */
    long long cost; /* -1 with an exception */
} Walked;

/* Walk over the block here, of which there are so many bytes at most. Where it is not ordinary,
 * nothing is done. `position` is that of the block in the log. */
static Walked
walk_block(OrdinaryStep *step, const unsigned char *at, uint64_t size, uint64_t position,
           PyObject *costs, PyObject *bytes)
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
    if (header.receipt) {
        walked.is_ordinary = false;
        return walked;
    }
    batch_clear(&step->batch);
    set_origin(step, header.client, header.uid, header.gid, header.pid, header.account,
               header.place);
    int gathered = gather_block(step, at, &header);
    walked.entries = header.count;
    walked.is_ordinary = gathered != 0;
    if (gathered)
        walked.cost = gathered < 0 ? -1 : deliver_block(step, &header, position, costs, bytes);
    return walked;
}

#endif
