/* A model of the ordered log, its lock and the flip of the selector, with deaths at any store.
 *
 * Three workers share the control words, a ring of LOG_BLOCKS log blocks, and an eventfd
 * each. Their clients publish MESSAGES messages in all, each for everybody, for clients of the same
 * worker, or for those of another one. DEATHS times a worker dies, anywhere: asleep, with the lock,
 * between two stores, before it has woken the others, in a walk. It is reaped, and a successor
 * goes on where it was.
 *
 * The inlines have the names of what they stand for:
 *
 *     enter, flip, leave                MemoryLock in sbus/shared/shared_memory.py
 *     wake                              SharedMemory, there
 *     low_water_mark ... walk           OrderedLog in sbus/shared/ordered_log.py
 *     begin_batch, note_delivery        InFlight in sbus/shared/in_flight.py
 *     publish, walk_on, take_effect     Sequencer in sbus/broker/worker/sequencer.py
 *     resume                            Resumption in sbus/broker/worker/resumption.py
 *     the loop of `worker`              WorkerMachine in sbus/broker/worker/machine.py
 *
 * Left out are the subscription table, and all reasons to wait but a full log. A publish batch is
 * one message, each worker delivers it once, and log blocks are of one length, which is the unit of
 * positions. A worker with one log block left to walk may copy it (OrderedLog.take_piece). The
 * low-water mark is found anew for each append, so the word that keeps it is as high as it can be.
 *
 * The *place* of a message is its number in the total order, counted as the selector is flipped.
 * `due` are the places of messages for this worker's clients that have been neither delivered nor
 * admitted as lost: a successor admits the delivery that was under way, and its predecessor's
 * message to its own clients. If the log has not kept everything for it, it admits an unknown
 * number, and nothing is due. Checked in every state that can be reached:
 *
 *     mutual exclusion      only the holder of the lock stores a control word (STORE)
 *     never half changed    a critical section begins with what a whole one has left (enter)
 *     at most once          what is delivered is due (deliver)
 *     one total order       nothing before it is due any more (deliver); so any two workers agree
 *     admitted in place     the same of a loss (admit)
 *     cause before effect   follows: what the publisher received has an earlier place
 *     nothing is lost       nothing is due when everybody sleeps (at_rest)
 *     no lost wake-up       no message waits for its place then (at_rest)
 *
 * Another run shows that no worker runs for ever: everybody sleeps in the end, and at_rest is
 * reached. test_ordered_log.py makes these runs, and shows that each MUTANT is found.
 *
 * Steps that no other process can tell apart are one `atomic` step: other processes look at the
 * words only with the lock, so of a critical section they see that it began, and the flip. A death
 * can come before each of its stores all the same (MAY_DIE).
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LOG_BLOCKS
#define LOG_BLOCKS 2
#endif
/* One program makes each MUTANT: the environment has the number of one of these, or none. */
c_decl { int atoi(const char *); char *getenv(const char *); }
hidden byte mutant;
#define EARLY_FLIP 1    /* the selector is flipped before the last store of a critical section */
#define LATE_ASK 2      /* a worker asks to be woken when it has left the critical section */
#define DELIVER_FIRST 3 /* a message is delivered to the publisher's worker before the walk */
#define SILENT_REAP 4   /* the others are not woken when a worker has died */
#define NO_ROOM 5       /* a log block is written over one that has not been walked */
#define BUSY_WAIT 6     /* a message that waits for room is tried again all the time */
#define LATE_NOTE 7     /* a delivery is noted when it is made */
#define NO_BATCH 8      /* a message gets its place without the number of its batch */
#define HIGH_WATER 9    /* the low-water mark that was found last does not fall with the death */
#define NO_MARGIN 10    /* a copied log block is kept though a dead worker may have written there */
#define STALE_NOTE 11   /* the delivery under way is not cleared for the next log block */

#define WORKERS 3
#define SEQUENCES (DEATHS + 1)
#define RELEASE_BLOCKS (LOG_BLOCKS - 1) /* in use when those that wait for room are released */
#define NOBODY 255
#define NONE 255
#define BIT(number) (1 << (number))
#define EVERYBODY (BIT(WORKERS) - 1)

/* -- what is shared ---------------------------------------------------------------------------- */
typedef Words { /* a copy of the control words */
    byte head, low, alive, sleeping, waiting;
    byte start[WORKERS], end[WORKERS], cursor[WORKERS];
    byte step_batch[WORKERS], step_end[WORKERS]
}
typedef LogBlock { byte mask, place } /* its destinations; and which message it is */

Words copies[2];
bit selector;
LogBlock ring[LOG_BLOCKS];
bool eventfds[WORKERS]; /* written, and not noticed yet */
byte walked[WORKERS];   /* what is in flight: all before this position has been delivered, */
byte sequence[WORKERS]; /* the number of that, which repeats: more often than deaths, */
byte under_way[WORKERS]; /* 1 and the number at which a delivery may have been made; 0: cleared, */
byte batch[WORKERS];    /* and the number of the publish batch that is not delivered; or 0 */
byte lock_holder = NOBODY;

/* -- what only this model knows ---------------------------------------------------------------- */
byte unread = MESSAGES;          /* messages that clients have sent */
byte unplaced[WORKERS];          /* whom the message is for that this worker has read; 0: none */
byte placed;                     /* messages that have a place, which begin with 0 */
byte due[WORKERS];
byte batch_place[WORKERS];       /* the place of its message, if it has one */
byte head_due, end_due[WORKERS]; /* the words as the last whole critical section left them */
bool in_doubt[WORKERS];          /* the delivery of the log block that was begun last was noted */
byte deaths;

#define MAY_DIE if :: deaths < DEATHS -> deaths++; goto dies :: true fi

/* -- critical sections ------------------------------------------------------------------------- */
#define words copies[spare]
#define STORE(word, value) MAY_DIE; assert(lock_holder == me); word = value

inline enter() {
    lock_holder == NOBODY -> lock_holder = me;
    spare = 1 - selector;
    d_step {
        words.head = copies[selector].head;
        words.low = copies[selector].low;
        words.alive = copies[selector].alive;
        words.sleeping = copies[selector].sleeping;
        words.waiting = copies[selector].waiting;
        for (i : 0 .. WORKERS - 1) {
            words.start[i] = copies[selector].start[i];
            words.end[i] = copies[selector].end[i];
            words.cursor[i] = copies[selector].cursor[i];
            words.step_batch[i] = copies[selector].step_batch[i];
            words.step_end[i] = copies[selector].step_end[i];
            assert(words.end[i] == end_due[i]);
            assert(words.start[i] <= words.end[i] && words.cursor[i] <= words.head)
        }
        assert(words.head == head_due);
        assert(!(words.sleeping & ~words.alive));
        low_water_mark();
        assert(words.head - low <= LOG_BLOCKS || mutant == NO_ROOM);
        assert(words.low <= low);
        low = 0; i = 0
    }
}

/* The last store. With it the message `has_place`, if it does not have to wait. */
inline flip() {
    MAY_DIE;
    d_step {
        assert(lock_holder == me);
        selector = spare;
        end_due[me] = words.end[me]; /* a successor's first critical section sets it */
        if
        :: has_place ->
            for (i : 0 .. WORKERS - 1) {
                due[i] = due[i] | ((others | unplaced[me] & BIT(me)) & BIT(i) -> BIT(placed) : 0);
                end_due[i] = (others & BIT(i) -> head_due + 1 : end_due[i])
            }
            i = 0;
            head_due = head_due + (others -> 1 : 0);
            own_place = (unplaced[me] & BIT(me) -> placed : NONE);
            batch_place[me] = (unplaced[me] & BIT(me) -> placed : 0);
            placed++;
            unplaced[me] = 0;
            has_place = false
        :: else
        fi;
        others = 0
    }
}

inline leave() {
    MAY_DIE;
    assert(lock_holder == me);
    free_lock()
}

#define IS_PLACED(i) (batch[i] == copies[selector].step_batch[i])

/* The copy that is spare now will not be read. So it is cleared, and the other one put first; and
 * so are words about a batch that is done, or not the last one. States that differ in nothing else
 * are the same then, and there are far fewer. */
inline free_lock() {
    d_step {
        for (i : 0 .. WORKERS - 1) {
            copies[0].start[i] = copies[selector].start[i]; copies[1].start[i] = 0;
            copies[0].end[i] = copies[selector].end[i]; copies[1].end[i] = 0;
            copies[0].cursor[i] = copies[selector].cursor[i]; copies[1].cursor[i] = 0;
            copies[0].step_end[i] = (IS_PLACED(i) -> copies[selector].step_end[i] : 0);
            copies[0].step_batch[i] = (IS_PLACED(i) -> batch[i] : 0);
            copies[1].step_end[i] = 0; copies[1].step_batch[i] = 0
        }
        i = 0;
        copies[0].head = copies[selector].head; copies[1].head = 0;
        copies[0].low = copies[selector].low; copies[1].low = 0;
        copies[0].alive = copies[selector].alive; copies[1].alive = 0;
        copies[0].sleeping = copies[selector].sleeping; copies[1].sleeping = 0;
        copies[0].waiting = copies[selector].waiting; copies[1].waiting = 0;
        selector = 0; spare = 0;
        lock_holder = NOBODY
    }
}

/* -- the ordered log, with the lock ------------------------------------------------------------ */
#define FIRST(i) (words.cursor[i] > words.start[i] -> words.cursor[i] : words.start[i])

inline low_water_mark() {
    low = words.head;
    for (i : 0 .. WORKERS - 1) {
        if
        :: words.alive & BIT(i) && words.cursor[i] < words.end[i] && FIRST(i) < low ->
            low = FIRST(i)
        :: else
        fi
    }
}

/* A mark that is higher than the word is found; one that is lower is not asked for. */
inline find_low() {
    low_water_mark();
    words.low = (low > words.low -> low : words.low);
    low = 0; i = 0
}

inline release_waiting() {
    d_step { find_low(); has_room = words.head - words.low <= RELEASE_BLOCKS };
    if
    :: words.waiting && has_room -> woken = woken | words.waiting; STORE(words.waiting, 0)
    :: else
    fi;
    has_room = false
}

inline destined_end() {
    end = words.end[me];
    cursor = (cursor < end && cursor < words.start[me] -> words.start[me] : cursor)
}

inline share_cursor() {
    STORE(words.cursor[me], cursor);
    release_waiting()
}

/* For the last destination, if no batch is placed, and the worker will not ask to be woken. */
#define IS_LAST_STORE (!(others >> (to + 1)) && !(unplaced[me] & BIT(me)) && cursor < end)

inline append() {
    d_step {
        find_low();
        has_room = words.head + 1 - words.low <= LOG_BLOCKS || mutant == NO_ROOM
    };
    if
    :: words.waiting || !has_room -> STORE(words.waiting, words.waiting | BIT(me)); must_wait = true
    :: else ->
        STORE(ring[words.head % LOG_BLOCKS].mask, others);
        STORE(ring[words.head % LOG_BLOCKS].place, placed);
        STORE(words.head, words.head + 1);
        woken = woken | others & words.sleeping;
        STORE(words.sleeping, words.sleeping & ~others);
        has_place = true;
        for (to : 0 .. WORKERS - 1) {
            if
            :: others & BIT(to) ->
                if
                :: words.cursor[to] >= words.end[to] -> STORE(words.start[to], words.head - 1)
                :: else
                fi;
                if
                :: mutant == EARLY_FLIP && IS_LAST_STORE -> flip()
                :: else
                fi;
                STORE(words.end[to], words.head)
            :: else
            fi
        }
        to = 0
    fi;
    has_room = false
}

/* Copy a log block, and share that it has been walked. */
inline take_piece() {
    if
    :: cursor + 1 == end ->
        d_step {
            piece = (ring[cursor % LOG_BLOCKS].mask & BIT(me) ->
                     ring[cursor % LOG_BLOCKS].place : NONE);
            cursor = end; end = 0
        }
    :: else
    fi
}

inline ask_to_be_woken() {
    is_caught_up = cursor >= words.end[me];
    if
    :: is_caught_up -> STORE(words.sleeping, words.sleeping | BIT(me))
    :: else
    fi
}

/* -- without the lock -------------------------------------------------------------------------- */
inline wake() {
    for (to : 0 .. WORKERS - 1) {
        if
        :: woken & BIT(to) -> MAY_DIE; eventfds[to] = true
        :: else
        fi
    }
    to = 0; woken = 0
}

inline deliver(message) {
    MAY_DIE;
    assert(due[me] & BIT(message));
    assert(!(due[me] & (BIT(message) - 1)));
    due[me] = due[me] & ~BIT(message)
}

/* A delivery counts as lost that was under way: so it may have been made. */
inline admit(message) {
    MAY_DIE;
    assert(!(due[me] & (BIT(message) - 1)));
    due[me] = due[me] & ~BIT(message)
}

inline begin_batch() {
    MAY_DIE;
    batch[me] = (copies[selector].step_batch[me] == 1 -> 2 : 1) /* not that which is there */
}

inline end_batch() {
    MAY_DIE;
    d_step { batch[me] = 0; batch_place[me] = 0 }
}

/* Two stores: the position with its number, then the word of the delivery. */
inline begin_block(position) {
    MAY_DIE;
    d_step { walked[me] = position; sequence[me] = (sequence[me] + 1) % SEQUENCES; in_doubt[me] = false };
    if
    :: mutant != STALE_NOTE -> MAY_DIE; under_way[me] = 0
    :: else
    fi
}

inline note_delivery() {
    MAY_DIE;
    d_step { under_way[me] = 1 + sequence[me]; in_doubt[me] = true }
}

inline deliver_noted(message) {
    if
    :: mutant != LATE_NOTE -> note_delivery()
    :: else
    fi;
    deliver(message);
    if
    :: mutant == LATE_NOTE -> note_delivery()
    :: else
    fi
}

inline walk() {
    if
    :: piece != NONE ->
        begin_block(cursor - 1);
        deliver_noted(piece);
        piece = NONE
    :: else
    fi;
    do
    :: cursor < end ->
        if
        :: ring[cursor % LOG_BLOCKS].mask & BIT(me) ->
            begin_block(cursor);
            deliver_noted(ring[cursor % LOG_BLOCKS].place)
        :: else
        fi;
        cursor++
    :: else -> end = 0; break
    od;
    begin_block(cursor)
}

/* -- the steps of a worker: a critical section, a walk, and the effect ------------------------- */
inline publish() {
    if
    :: unplaced[me] & BIT(me) -> begin_batch()
    :: else
    fi;
    enter();
    destined_end();
    share_cursor();
    others = unplaced[me] & ~BIT(me) & words.alive;
    if
    :: others -> append()
    :: else -> has_place = true
    fi;
    if
    :: has_place && unplaced[me] & BIT(me) && mutant != NO_BATCH ->
        STORE(words.step_end[me], end);
        STORE(words.step_batch[me], batch[me])
    :: else
    fi;
    if
    :: mutant != LATE_ASK -> ask_to_be_woken()
    :: else -> is_caught_up = cursor >= end
    fi;
    if
    :: selector != spare -> flip()
    :: else /* mutant == EARLY_FLIP */
    fi
}

inline walk_on() {
    enter();
    destined_end();
    take_piece();
    share_cursor();
    if
    :: mutant != LATE_ASK -> ask_to_be_woken()
    :: else -> is_caught_up = cursor >= end
    fi;
    flip()
}

inline take_effect() {
    if
    :: mutant == DELIVER_FIRST && own_place != NONE -> deliver(own_place); own_place = NONE
    :: else
    fi;
    walk();
    if
    :: own_place != NONE -> deliver(own_place); own_place = NONE; end_batch()
    :: else
    fi
}

/* -- a successor, when it has left its first critical section ---------------------------------- */
inline resume() {
    if
    :: under_way[me] == 1 + sequence[me] && cursor == walked[me] ->
        assert(in_doubt[me]);
        admit(ring[cursor % LOG_BLOCKS].place);
        cursor++;
        begin_block(cursor)
    :: else
    fi;
    walk();
    if
    :: own_place != NONE -> admit(own_place); own_place = NONE; end_batch()
    :: else
    fi
}

/* -- the processes ----------------------------------------------------------------------------- */
proctype worker(byte me) {
    byte cursor, end, own_place = NONE, piece = NONE;
    bool is_caught_up = true, must_wait;
    byte spare, others, woken, low, i, to;
    bool has_place, has_room;

lives:
    /* Asleep, unless one of these can be done. */
    if
    :: atomic {
        /* A client's message is ready. That worker 0 publishes first leaves out only what is the
         * same with other numbers. */
        lock_holder == NOBODY && unread && !unplaced[me] && (unread < MESSAGES || me == 0) ->
        unread--;
        if
        :: unplaced[me] = EVERYBODY
        :: unplaced[me] = BIT(me)
        :: unplaced[me] = BIT((me + 1) % WORKERS)
        fi;
        publish()
    }
    :: atomic {
        lock_holder == NOBODY && unplaced[me] && (!must_wait || mutant == BUSY_WAIT) ->
        publish()
    }
    :: atomic {
        lock_holder == NOBODY && (eventfds[me] || !is_caught_up) ->
        must_wait = must_wait && !eventfds[me];
        eventfds[me] = false;
        walk_on()
    }
    :: atomic { deaths < DEATHS -> deaths++; goto dies }
    fi;
    atomic {
        leave();
        if
        :: mutant == LATE_ASK && is_caught_up -> goto asks_late
        :: else
        fi;
goes_on:
        wake();
        if
        :: end <= cursor && own_place == NONE && piece == NONE -> goto lives
        :: else
        fi
    };
    atomic { take_effect(); goto lives };

asks_late:
    atomic {
        enter();
        STORE(words.sleeping, words.sleeping | BIT(me));
        flip();
        free_lock();
        goto goes_on
    };

dies:
    atomic {
        /* The kernel frees the lock. What only this worker had is lost. */
        if
        :: lock_holder == me -> free_lock()
        :: else
        fi;
        cursor = 0; end = 0; own_place = NONE; piece = NONE; is_caught_up = false; must_wait = false;
        spare = 0; others = 0; woken = 0; low = 0; i = 0; to = 0;
        has_place = false; has_room = false;
        unplaced[me] = 0
    };
    atomic {
        /* The front: Reaper.reap and OrderedLog.reap. Another death here makes it begin anew, which
         * is more than the product must stand: the bus ends with its front. */
        enter();
        words.sleeping = words.sleeping & ~BIT(me);
        words.waiting = words.waiting & ~BIT(me);
        if
        :: walked[me] >= words.cursor[me] ||
           words.head + (mutant == NO_MARGIN -> 0 : 1) - walked[me] <= LOG_BLOCKS ->
            words.start[me] = (words.start[me] > walked[me] && walked[me] < words.cursor[me] ->
                               walked[me] : words.start[me]);
            words.cursor[me] = walked[me]
        :: words.alive = words.alive & ~BIT(me); /* or if its successor will come late */
            words.cursor[me] = words.end[me]
        fi;
        if
        :: mutant != HIGH_WATER -> d_step { words.low = 0; find_low() }
        :: else
        fi;
        release_waiting();
        flip();
        free_lock();
        due[me] = (copies[selector].alive & BIT(me) -> due[me] : 0);
        woken = (mutant == SILENT_REAP -> 0 : EVERYBODY);
        wake()
    };
    atomic {
        /* The successor: OrderedLog.resume, or else OrderedLog.start. */
        enter();
        if
        :: words.alive & BIT(me) ->
            cursor = walked[me];
            destined_end();
            own_place = (batch[me] && batch[me] == words.step_batch[me] -> batch_place[me] : NONE);
            end = (own_place != NONE -> words.step_end[me] : 0)
        :: else ->
            cursor = words.head;
            STORE(words.cursor[me], cursor);
            STORE(words.end[me], cursor);
            STORE(words.alive, words.alive | BIT(me));
            d_step {
                walked[me] = cursor; under_way[me] = 0; in_doubt[me] = false;
                batch[me] = 0; batch_place[me] = 0
            }
        fi;
        flip();
        leave()
    };
    atomic { resume(); goto lives }
}

/* Nobody can do anything. */
proctype at_rest() {
    byte i;
    atomic {
        timeout;
        assert(!unread);
        for (i : 0 .. WORKERS - 1) {
            assert(!unplaced[i]);
            assert(!due[i])
        }
    }
}

init {
    atomic {
        c_code { mutant = getenv("MUTANT") ? atoi(getenv("MUTANT")) : 0; };
        copies[0].alive = EVERYBODY;
        copies[0].sleeping = EVERYBODY;
        run worker(0); run worker(1); run worker(2); run at_rest()
    }
}
