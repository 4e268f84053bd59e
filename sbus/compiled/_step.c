/* The ordinary step, compiled: read a client, give its messages their place, deliver them.
 *
 * `OrdinaryStep.serve` does for one client what Session.receive, Session.gather and
 * Sequencer.publish do, and `walk` what LogWalker.walk_to does, as long as everything is
 * *ordinary*: every packet is a message, every key is in the route cache, the routes are current,
 * no stalled client may hold the publisher, the user is within its rate, the log has room, and
 * nothing has to be walked first. At the first thing that is not, the packets stay pending as they
 * were read, in order, and Python goes on from there. So nothing here decides what Python would
 * decide otherwise, and the Python modules remain the specification.
 *
 * A recipient whose socket is full, that has a backlog, or to whose user sends are timed, is
 * delivered to by its outbox's own method in Python; the rest of the fan-out goes on here.
 *
 * The parts: `_memory.h` is the shared memory and `_fan_out.h` the times of fan-outs, without Python;
 * `_ordinary.h` is what the step does; this file is the types and the module. The rules of all:
 *   - a packet is a client's bytes: no length is used before it was compared
 *   - lengths in the log are compared too, although only the bus writes there
 *   - system calls are made without the interpreter's lock; no Python object is touched then except
 *     the C fields of records, which only this thread changes
 *   - a pointer in a batch is borrowed from an object that the batch has a reference to
 *
 * Only the limited API is used, so one module serves every Python from 3.11 on.
 */
#include "_ordinary.h"

#include <structmember.h>

/* -- OrdinaryStep, for Python ------------------------------------------------------------------ */
/* Begin a call. It has the batch and the buffers until `finish`, so no Python code that it calls may
 * begin another. */
static bool
begin(OrdinaryStep *step)
{
    if (!step->recent) {
        PyErr_SetString(PyExc_RuntimeError, "this OrdinaryStep is not initialized");
        return false;
    }
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
           && session->slot_at <= step->memory.slots_words - SLOT_WORDS
           && PyList_Check(session->packets) && session->done >= 0 && session->outbox;
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
    int result = serve(step, session, &cost, cost_max, NULL);
    finish(step);
    return result < 0 ? NULL : PyLong_FromLongLong(cost);
}

static PyObject *
step_deliver(OrdinaryStep *step, PyObject *args)
{
    PyObject *messages;
    unsigned long long received_us;
    if (!PyArg_ParseTuple(args, "O!K:deliver", &PyList_Type, &messages, &received_us)
        || !begin(step))
        return NULL;
    int result = deliver_placed(step, messages, received_us);
    size_t left_out = step->batch.left_out;
    finish(step);
    return result < 0 ? NULL : PyLong_FromSize_t(left_out);
}

static PyObject *
step_walk(OrdinaryStep *step, PyObject *args)
{
    unsigned long long end;
    long long cost_max, cost = 0;
    PyObject *costs, *bytes;
    if (!PyArg_ParseTuple(args, "KO!O!L:walk", &end, &PyDict_Type, &costs, &PyDict_Type, &bytes,
                          &cost_max)
        || !begin(step))
        return NULL;
    Walked walked = {.is_ordinary = true};
    look_at_clock(step);
    while (step->log->cursor < end && cost < cost_max) {
        uint64_t place = step->log->cursor % step->memory.log_bytes;
        walked = walk_block(step, step->memory.log + place, step->memory.log_bytes - place,
                            step->log->cursor, costs, bytes);
        if (!walked.is_ordinary || walked.cost < 0)
            break;
        step->log->cursor += walked.length;
        step->log->entries += walked.entries;
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
    unsigned long long start;
    PyObject *costs, *bytes;
    if (!PyArg_ParseTuple(args, "y#KO!O!:walk_piece", &piece, &size, &start, &PyDict_Type, &costs,
                          &PyDict_Type, &bytes)
        || !begin(step))
        return NULL;
    Walked walked = {.is_ordinary = true};
    uint64_t at = 0;
    look_at_clock(step);
    while (at < (uint64_t)size) {
        walked = walk_block(step, (const unsigned char *)piece + at, (uint64_t)size - at,
                            start + at, costs, bytes);
        if (!walked.is_ordinary || walked.cost < 0)
            break;
        at += walked.length;
    }
    finish(step);
    return walked.cost < 0 ? NULL : PyLong_FromUnsignedLongLong(at);
}

/* -- a lone client ----------------------------------------------------------------------------- */
/* The only client that is ready, if it can be served at once: it has sent something, and was not
 * waiting at the end of its last turn. Borrowed; NULL if there is none. */
static SessionRecord *
find_lone(OrdinaryStep *step, PyObject *sessions, const Poll *poll)
{
    if (poll->count != 1 || poll->ready[0].events != EPOLLIN)
        return NULL;
    PyObject *fd = PyLong_FromLong(poll->ready[0].data.fd);
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
serve_lone(OrdinaryStep *step, SessionRecord *session, Poll *poll, long long cost_max)
{
    long long cost = 1;
    Py_INCREF((PyObject *)session);
    step->called_python = false;
    store(step->memory.served, session->client);
    bool is_done = serve(step, session, &cost, cost_max, poll) == 0 && !step->called_python
                   && step->done == step->packets_count;
    store(step->memory.served, 0);
    batch_clear(&step->batch);
    packets_clear(step);
    store_bytes(step->shared_counts, step->counts, step->counts_max * sizeof *step->counts);
    Py_DECREF((PyObject *)session);
    return is_done;
}

/* The events as Python's epoll objects return them. */
static PyObject *
list_events(const Poll *poll)
{
    PyObject *list = PyList_New(poll->count);
    for (int i = 0; list && i < poll->count; i++) {
        const struct epoll_event *event = &poll->ready[i];
        PyObject *pair = Py_BuildValue("(iI)", event->data.fd, event->events);
        if (!pair || PyList_SetItem(list, i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* Serve a client until its socket is empty; false if it needs a turn before that, and then `poll`
 * has what else is ready. */
static bool
serve_while_lone(OrdinaryStep *step, SessionRecord *session, Poll *poll, long long cost_max)
{
    do {
        poll->count = 0;
        if (!serve_lone(step, session, poll, cost_max))
            return false;
        if (!session->is_readable)
            return true;
    } while (is_still_lone(step, session, poll));
    return false;
}

/* Poll until the time is up, and meanwhile serve a client that is alone; false with an exception. */
static bool
poll_and_serve(OrdinaryStep *step, PyObject *sessions, Poll *poll, long long cost_max)
{
    while (poll_until(step, poll, poll->until_ns)) {
        SessionRecord *session = find_lone(step, sessions, poll);
        if (!session)
            return !PyErr_Occurred();
        struct epoll_event lone = poll->ready[0];
        bool is_done = serve_while_lone(step, session, poll, cost_max);
        if (PyErr_Occurred())
            return false;
        if (!is_done)
            poll->ready[poll->count++] = lone;
        if (!is_done || step->looked_ns >= poll->until_ns)
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
    Poll poll;
    if (!PyArg_ParseTuple(args, "OO!dL:poll", &poller, &PyDict_Type, &sessions, &seconds_max,
                          &cost_max))
        return NULL;
    poll.epoll_fd = PyObject_AsFileDescriptor(poller);
    if (poll.epoll_fd < 0 || !begin(step))
        return NULL;
    look_at_clock(step);
    poll.count = 0;
    poll.until_ns = UINT64_MAX;
    if (seconds_max < 1e9)
        poll.until_ns = step->looked_ns + (seconds_max > 0 ? (uint64_t)(seconds_max * 1e9) : 0);
    bool polled = poll_and_serve(step, sessions, &poll, cost_max);
    if (step->sleeps_from_ns)
        look_at_clock(step);
    finish(step);
    return polled ? list_events(&poll) : NULL;
}

static int
step_traverse(PyObject *self, visitproc visit, void *arg)
{
    OrdinaryStep *step = (OrdinaryStep *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(step->recent);
    Py_VISIT(step->log);
    Py_VISIT(step->table);
    Py_VISIT(step->origin);
    return 0;
}

static int
step_clear(PyObject *self)
{
    OrdinaryStep *step = (OrdinaryStep *)self;
    Py_CLEAR(step->recent);
    Py_CLEAR(step->log);
    Py_CLEAR(step->table);
    Py_CLEAR(step->origin);
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
    Py_CLEAR(step->leave_out);
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
        PyErr_SetString(PyExc_ValueError, "the shared words are not aligned");
        return NULL;
    }
    *words = (size_t)buffer->len / sizeof(uint64_t);
    return buffer->buf;
}

static int
view_memory(OrdinaryStep *step, PyObject *words, PyObject *accounts, PyObject *stalls,
            PyObject *log, PyObject *counts, PyObject *shared_counts, PyObject *served,
            PyObject *slots, PyObject *timed_until_ns, PyObject *fan_out, PyObject *in_flight)
{
    Memory *memory = &step->memory;
    size_t words_count, accounts_words, stalls_count, log_words, shared_max, served_words;
    size_t timed_count, fan_out_words, in_flight_words;
    if (!(memory->words = view(step, 0, words, &words_count))
        || !(memory->accounts = view(step, 1, accounts, &accounts_words))
        || !(memory->stalled = view(step, 2, stalls, &stalls_count))
        || !(memory->log = view(step, 3, log, &log_words))
        || !(step->counts = view(step, 4, counts, &step->counts_max))
        || !(step->shared_counts = view(step, 5, shared_counts, &shared_max))
        || !(memory->served = view(step, 6, served, &served_words))
        || !(memory->slots = view(step, 7, slots, &memory->slots_words))
        || !(step->timed_until_ns = view(step, 8, timed_until_ns, &timed_count))
        || !(memory->in_flight = view(step, 9, in_flight, &in_flight_words))
        || !(step->fan_out = view(step, 10, fan_out, &fan_out_words)))
        return -1;
    size_t own_words = WORKER_WORDS + (size_t)memory->workers * WORDS_PER_WORKER;
    size_t shares = (size_t)memory->workers * WORDS_PER_DESTINATION;
    if (memory->block_words < own_words || words_count < COPIES + 2 * memory->block_words
        || memory->share_at <= PAID_UNTIL_NS || memory->drops_at >= memory->share_at
        || memory->account_words < memory->share_at + shares
        || !stalls_count || log_words < 2 * sizeof(BlockHeader) / sizeof(uint64_t)
        || (size_t)step->views[3].len % BLOCK_ALIGN_BYTES
        || step->latency_at <= LATENCY_SUM_US || step->counts_max <= step->latency_at
        || shared_max != step->counts_max || !served_words
        || memory->slots_words < SLOT_WORDS + LONG_REQUEST_WORDS
        || in_flight_words < IN_FLIGHT_WORDS
        || fan_out_words * sizeof(uint64_t) != sizeof(FanOutTimes)
        || timed_count != accounts_words / memory->account_words) {
        PyErr_SetString(PyExc_ValueError, "the shared memory is not laid out as it should be");
        return -1;
    }
    memory->slots_words = memory->slots_words / (SLOT_WORDS + LONG_REQUEST_WORDS) * SLOT_WORDS;
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
            PyErr_SetString(PyExc_ValueError, "worker, workers and eventfds do not match");
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
                            "accounts", "account_words", "share_at", "drops_at", "stalls",
                            "log_bytes", "counts", "shared_counts", "served", "slots",
                            "timed_until_ns", "fan_out", "in_flight", "latency_at", "recent", "log",
                            "table", "origin", NULL};
    OrdinaryStep *step = (OrdinaryStep *)self;
    Memory *memory = &step->memory;
    PyObject *words, *eventfds, *accounts, *stalls, *log_bytes, *counts, *recent, *log, *table, *origin;
    PyObject *shared_counts, *served, *slots, *timed_until_ns, *fan_out, *in_flight;
    Py_ssize_t block_words, account_words, share_at, drops_at, latency_at;
    if (step->recent) {
        PyErr_SetString(PyExc_RuntimeError, "this OrdinaryStep is initialized already");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iOnIIO!OnnnOOOOOOOOOnO!O!O!O!:OrdinaryStep", names, &memory->lock_fd, &words,
            &block_words, &memory->workers, &memory->worker, &PyTuple_Type, &eventfds, &accounts,
            &account_words, &share_at, &drops_at, &stalls, &log_bytes, &counts, &shared_counts,
            &served, &slots, &timed_until_ns, &fan_out, &in_flight, &latency_at, &PyDict_Type,
            &recent, step->module->types[LOG], &log, step->module->types[TABLE], &table,
            step->module->types[ORIGIN], &origin))
        return -1;
    if (block_words < 0 || account_words < 1 || share_at < 0 || drops_at < 0
        || latency_at < 0) {
        PyErr_SetString(PyExc_ValueError, "a place cannot be negative");
        return -1;
    }
    memory->block_words = (size_t)block_words;
    memory->account_words = (size_t)account_words;
    memory->share_at = (size_t)share_at;
    memory->drops_at = (size_t)drops_at;
    step->latency_at = (size_t)latency_at;
    if (take_eventfds(memory, eventfds) < 0
        || view_memory(step, words, accounts, stalls, log_bytes, counts, shared_counts, served,
                       slots, timed_until_ns, fan_out, in_flight) < 0)
        return -1;
    Py_INCREF(recent);
    Py_INCREF(log);
    Py_INCREF(table);
    Py_INCREF(origin);
    step->recent = recent;
    step->log = (LogRecord *)log;
    step->table = (TableRecord *)table;
    step->origin = (OriginRecord *)origin;
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
    step->leave_out = PyUnicode_InternFromString("leave_out");
    if (!step->module || !step->deliver || !step->leave_out)
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
    {"deliver", (PyCFunction)step_deliver, METH_VARARGS,
     "deliver(messages, received_us) -> left_out\n\n"
     "Deliver messages, (packet, key, route), that have their place in the order; `origin` says whose "
     "they are."},
    {"walk", (PyCFunction)step_walk, METH_VARARGS,
     "walk(end, costs, walked_bytes, cost_max) -> cost\n\n"
     "Walk the log up to `end` or that cost, and add to `costs` and `walked_bytes`, by account. Stops "
     "before a block that is not ordinary."},
    {"walk_piece", (PyCFunction)step_walk_piece, METH_VARARGS,
     "walk_piece(piece, costs, walked_bytes) -> bytes\n\n"
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
    {"wants_sender", T_BOOL, offsetof(OutboxRecord, wants_sender), 0, NULL},
    {"accepted", T_LONGLONG, offsetof(OutboxRecord, accepted), 0, NULL},
    {"slot_at", T_ULONGLONG, offsetof(OutboxRecord, slot_at), 0, NULL},
    {"account_place", T_ULONGLONG, offsetof(OutboxRecord, account), 0, NULL},
    {"delivered_bytes", T_LONGLONG, offsetof(OutboxRecord, delivered_bytes), 0, NULL},
    {"drops_from_bytes", T_LONGLONG, offsetof(OutboxRecord, drops_from_bytes), 0, NULL},
    {"spared_account", T_LONGLONG, offsetof(OutboxRecord, spared_account), 0, NULL},
    {"drop_counter", T_ULONGLONG, offsetof(OutboxRecord, drop_counter), 0, NULL},
    {"new_drops", T_LONGLONG, offsetof(OutboxRecord, new_drops), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef route_members[] = {
    {"mask", T_ULONGLONG, offsetof(RouteRecord, mask), 0, NULL},
    {"recipients", T_OBJECT_EX, offsetof(RouteRecord, recipients), 0, NULL},
    {"backpressure_rules", T_OBJECT_EX, offsetof(RouteRecord, rules), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef session_members[] = {
    {"packets", T_OBJECT_EX, offsetof(SessionRecord, packets), 0, NULL},
    {"outbox", T_OBJECT_EX, offsetof(SessionRecord, outbox), 0, NULL},
    {"echo", T_BOOL, offsetof(SessionRecord, echo), 0, NULL},
    {"done", T_PYSSIZET, offsetof(SessionRecord, done), 0, NULL},
    {"fd", T_INT, offsetof(SessionRecord, fd), 0, NULL},
    {"is_ordinary", T_BOOL, offsetof(SessionRecord, is_ordinary), 0, NULL},
    {"is_readable", T_BOOL, offsetof(SessionRecord, is_readable), 0, NULL},
    {"is_at_rest", T_BOOL, offsetof(SessionRecord, is_at_rest), 0, NULL},
    {"may_carry_descriptors", T_BOOL, offsetof(SessionRecord, may_carry_descriptors), 0, NULL},
    {"client", T_ULONGLONG, offsetof(SessionRecord, client), 0, NULL},
    {"uid", T_ULONGLONG, offsetof(SessionRecord, uid), 0, NULL},
    {"gid", T_ULONGLONG, offsetof(SessionRecord, gid), 0, NULL},
    {"pid", T_ULONGLONG, offsetof(SessionRecord, pid), 0, NULL},
    {"account_place", T_ULONGLONG, offsetof(SessionRecord, account), 0, NULL},
    {"slot_at", T_ULONGLONG, offsetof(SessionRecord, slot_at), 0, NULL},
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
    {"entries", T_ULONGLONG, offsetof(LogRecord, entries), 0, NULL},
    {"window", T_ULONGLONG, offsetof(LogRecord, window), 0, NULL},
    {"entry_bytes", T_ULONGLONG, offsetof(LogRecord, entry_bytes), 0, NULL},
    {"is_caught_up", T_BOOL, offsetof(LogRecord, is_caught_up), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef table_members[] = {
    {"epoch", T_ULONGLONG, offsetof(TableRecord, epoch), 0, NULL},
    {"position", T_ULONGLONG, offsetof(TableRecord, position), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef origin_members[] = {
    {"client", T_ULONGLONG, offsetof(OriginRecord, client), 0, NULL},
    {"uid", T_ULONGLONG, offsetof(OriginRecord, uid), 0, NULL},
    {"gid", T_ULONGLONG, offsetof(OriginRecord, gid), 0, NULL},
    {"pid", T_ULONGLONG, offsetof(OriginRecord, pid), 0, NULL},
    {"account_place", T_ULONGLONG, offsetof(OriginRecord, account), 0, NULL},
    {"place", T_ULONGLONG, offsetof(OriginRecord, place), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
route_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((RouteRecord *)self)->recipients);
    Py_VISIT(((RouteRecord *)self)->rules);
    return 0;
}

static int
route_clear(PyObject *self)
{
    Py_CLEAR(((RouteRecord *)self)->recipients);
    Py_CLEAR(((RouteRecord *)self)->rules);
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

static int
session_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((SessionRecord *)self)->packets);
    Py_VISIT(((SessionRecord *)self)->outbox);
    return 0;
}

static int
session_clear(PyObject *self)
{
    Py_CLEAR(((SessionRecord *)self)->packets);
    Py_CLEAR(((SessionRecord *)self)->outbox);
    return 0;
}

static void
session_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    session_clear(self);
    free_record(self);
}

static PyType_Slot outbox_slots[] = {{Py_tp_members, outbox_members}, {0, NULL}};
static PyType_Slot route_slots[] = {
    {Py_tp_members, route_members}, {Py_tp_traverse, route_traverse},
    {Py_tp_clear, route_clear},     {Py_tp_dealloc, route_dealloc},
    {0, NULL},
};
static PyType_Slot session_slots[] = {
    {Py_tp_members, session_members}, {Py_tp_traverse, session_traverse},
    {Py_tp_clear, session_clear},     {Py_tp_dealloc, session_dealloc},
    {0, NULL},
};
static PyType_Slot log_slots[] = {{Py_tp_members, log_members}, {0, NULL}};
static PyType_Slot table_slots[] = {{Py_tp_members, table_members}, {0, NULL}};
static PyType_Slot origin_slots[] = {{Py_tp_members, origin_members}, {0, NULL}};

#define RECORD_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE)
static PyType_Spec specs[TYPES] = {
    {"sbus.compiled._step.OutboxRecord", sizeof(OutboxRecord), 0, RECORD_FLAGS, outbox_slots},
    {"sbus.compiled._step.RouteRecord", sizeof(RouteRecord), 0,
     RECORD_FLAGS | Py_TPFLAGS_HAVE_GC, route_slots},
    {"sbus.compiled._step.SessionRecord", sizeof(SessionRecord), 0,
     RECORD_FLAGS | Py_TPFLAGS_HAVE_GC, session_slots},
    {"sbus.compiled._step.LogRecord", sizeof(LogRecord), 0, RECORD_FLAGS, log_slots},
    {"sbus.compiled._step.TableRecord", sizeof(TableRecord), 0, RECORD_FLAGS, table_slots},
    {"sbus.compiled._step.OriginRecord", sizeof(OriginRecord), 0, RECORD_FLAGS, origin_slots},
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
    PLACE(shared_memory, LAST_PLACE),
    PLACE(shared_memory, LOG_LOW),
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
    PLACE(shared_memory, LOG_ENTRIES),
    PLACE(shared_memory, LOG_WALKED),
    PLACE(shared_memory, LOG_ENTRY_BYTES),
    PLACE(shared_memory, WORDS_PER_WORKER),
    PLACE(shared_memory, SELECTOR),
    PLACE(shared_memory, COPIES),
    PLACE(shared_memory, STEP_BATCH),
    PLACE(shared_memory, IN_FLIGHT_WORDS),
    PLACE(in_flight, WALKED),
    PLACE(in_flight, WALK_PROGRESS),
    PLACE(in_flight, BATCH),
    PLACE(in_flight, BUT_FOR),
    PLACE(in_flight, BATCH_PROGRESS),
    PLACE(in_flight, KEYS),
    PLACE(in_flight, FIRST_KEY),
    PLACE(in_flight, SEQUENCE_BITS),
    PLACE(in_flight, SEQUENCE_SHIFT),
    PLACE(in_flight, NUMBER_SHIFT),
    PLACE(client_slots, WAITING_MESSAGES),
    PLACE(client_slots, PENDING),
    PLACE(client_slots, REQUEST),
    PLACE(client_slots, SLOT_WORDS),
    PLACE(client_slots, LONG_REQUEST_WORDS),
    PLACE(client_slots, REQUEST_SHIFT),
    PLACE(client_slots, COUNT_BITS),
    PLACE(accounts, NS_PER_MESSAGE),
    PLACE(accounts, PAID_UNTIL_NS),
    PLACE(accounts, RATE_BURST_NS),
    PLACE(log_share, WORDS_PER_DESTINATION),
    {"log_share._ROUND", SHARE_ROUND},
    {"log_share._BYTES", SHARE_BYTES},
    {"log_share._PRICE", SHARE_PRICE},
    PLACE(log_share, PRICE_UNIT),
    PLACE(log_share, DEBT_WINDOWS_MAX),
    PLACE(log_window, MODEST_PART),
    PLACE(log_block, BLOCK_ALIGN_BYTES),
    PLACE(worker_statistics, MESSAGES_IN),
    PLACE(worker_statistics, BYTES_IN),
    PLACE(worker_statistics, ACCEPTED),
    PLACE(worker_statistics, ACCEPTED_BYTES),
    PLACE(worker_statistics, DROPPED_BYTES),
    PLACE(worker_statistics, UNDELIVERED),
    PLACE(worker_statistics, UNDELIVERED_BYTES),
    PLACE(worker_statistics, ROUTE_LOOKUPS),
    PLACE(worker_statistics, LATENCY_SUM_US),
    PLACE(worker_statistics, DROPPED_FAN_OUT),
    {"worker_statistics._FIRST_BOUND_BITS", FIRST_BOUND_BITS},
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
let_stores_take(PyObject *module, PyObject *each_ns)
{
    (void)module;
    store_ns = PyLong_AsUnsignedLongLong(each_ns);
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
    {"let_stores_take", let_stores_take, METH_O, "From now on each takes so long on that clock."},
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
