# Survival of backlogs: an upgrade keeps them, and a death of the worker or of the bus tells their number
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=4

== an upgrade keeps a backlog in its order
# Behind it, the socket has room for a packet, but what waits is not sent before it is nearly empty.
run: event=upgrade
with order=queue one=1 two=2 three=3
with order=stack one=3 two=2 three=1
A> CMSG !/notices/on
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
! {event} A
A| read 3
B> MSG k\03
A< MSG k\0{one}
A< MSG k\0{two}
A< MSG k\0{three}

== an upgrade keeps a backlog sorted by size
run: event=upgrade
A> CMSG order/random
A> SUB k
A| full
B> MSG k\01
B> MSG k\02{x*3000}
! {event} A
B> MSG k\03{x*2000}
A< MSG k\02{x*3000}
A< MSG k\03{x*2000}
A< MSG k\01

== an upgrade keeps gaps at their places
run: event=upgrade
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A> CMSG blocking/soft/queue
B> MSG k\03
! {event} A
B> MSG k\04
A< CMSG !/lost\02
A< MSG k\03
A< MSG k\04

== an upgrade keeps how much room a backlog has left
run: event=upgrade
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
! {event} A
B> MSG k\04
B> MSG k\05
! {event} A
B> MSG k\06
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
A< CMSG !/lost\02

== an upgrade keeps replies at their places
run: event=upgrade
A> CMSG order/stack
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A> CMSG !/sync\0between
B> MSG k\03
! {event} A
B> MSG k\04
A< MSG k\02
A< MSG k\01
A< CMSG !/sync\0between
A< MSG k\04
A< MSG k\03

== an upgrade keeps the newest message of each key replaceable
run: event=upgrade
A> CMSG !/notices/on
A> CMSG order/latest
A> SUB k/*
A| full
B> MSG k/1\01
B> MSG k/2\02
B> MSG k/1\03
! {event} A
B> MSG k/2\04
B> MSG k/3\05
A< MSG k/1\03
A< MSG k/2\04
A< MSG k/3\05
= A.replaced=2

== an upgrade keeps the age of messages
run: event=upgrade
A> CMSG !/notices/on
A> CMSG age/1
A> SUB k
A| full
B> MSG k\01
! {event} A
A< CMSG !/lost\01

== an upgrade keeps publishers held
run: event=upgrade
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
! {event} A
B held
A< MSG k\01
A< MSG k\02
B< CMSG !/sync\0behind

== a death loses a backlog, and its number is told
run: event=die,restart,resume
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
! {event} A
A| read 3
B> MSG k\04
A< CMSG !/lost\03
A< MSG k\04

== a death adds to a gap
run: event=die,restart,resume
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> SUB k
A| full
B> MSG k\01
A> CMSG blocking/soft/queue
B> MSG k\02
! {event} A
A< CMSG !/lost\02

== a reply that waits behind a backlog comes, also behind another death
run: event=die,upgrade,restart,resume
with request=!/sync\0behind reply=!/sync\0behind
with request=!/cred/whoami reply=!/cred/whoami\0{A.cred}
with request=!/me reply=!/me\0{text}
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
A> SUB later
A> CMSG {request}
! {event} A
! die A
A< CMSG !/lost\01
A< CMSG {reply}
B> MSG later\01
A< MSG later\01

== a receipt that waits for its client comes, also behind a second death
run: event=die,upgrade
A> SUB k
A| full
A> CMSG !/publish\0token\0nobody\0
! {event} A
! die A
A< CMSG !/receipt\0token\00 0 0

== a receipt is unknown if the recipient's worker dies before it has the message
run: event=die workers=2,4 place=other
A> SUB k
! stop A
B~> CMSG !/publish\0token\0k\01
B~> CMSG !/sync\0placed
B< CMSG !/sync\0placed
! {event} A
A< MSG k\01
B< CMSG !/receipt\0token\0?

== a message that was held when its publisher's worker died is published once
run: event=die workers=2,4 place=other
A> CMSG blocking/soft/block
A> SUB k
A| full
B> CMSG !/notices/on
B> MSG k\01
B~> CMSG !/publish\0token\0k\02
B held
! {event} B
B held
A< MSG k\01
A< MSG k\02
B< CMSG !/receipt\0token\01 0 0

== publishers are held for a client that blocks, as before, and for another one beside it
run: event=die,move
A> CMSG blocking/soft/block
A> SUB k
! {event} A
B> CMSG blocking/soft/block
B> SUB j
AB| full
C> MSG k\01
C~> MSG k\02
D> MSG j\01
D~> MSG j\02
CD~> CMSG !/sync\0behind
C held
B< MSG j\01
B< MSG j\02
D< CMSG !/sync\0behind
C held
A< MSG k\01
A< MSG k\02
C< CMSG !/sync\0behind

== a client that chooses block again holds nobody by a pattern that it has given up
run: event=die workers=1,2
A> CMSG blocking/soft/block
A> SUB k
A> SUB j
A> CMSG blocking/soft/queue
! {event} A
A> UNSUB j
A> CMSG blocking/soft/block
A| full
B> MSG k\01
B~> MSG j\02
B> CMSG !/sync\0flows
B< CMSG !/sync\0flows
B~> MSG k\03
B~> CMSG !/sync\0behind
B held
A< MSG k\01
A< MSG k\03
B< CMSG !/sync\0behind

== a client with a backlog keeps what it has when others die
run: event=die workers=2,4 place=other
A> SUB k
A| full
B> MSG k\01
! {event} B
B> MSG k\02
A< MSG k\01
A< MSG k\02

== a client that holds publishers outlives its worker, and they go on
run: event=die workers=2,4 place=other
A> CMSG !/notices/on
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
! {event} A
A< CMSG !/lost\01
A< MSG k\02
B< CMSG !/sync\0behind

== a client that holds publishers keeps what it has when theirs die, and holds others
run: event=die workers=2,4 place=other
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
! {event} B
C~> MSG k\02
C~> CMSG !/sync\0behind
C held
A< MSG k\01
A< MSG k\02
C< CMSG !/sync\0behind

== the number of packets that died with a worker is told, also behind an upgrade and another death
# The bus counts the notice of each successor, of which the client is told the last one.
run: workers=1
A> CMSG !/notices/on
A> SUB k
B> CMSG blocking/soft/block
B> SUB held
AB| full
C> MSG held\01
! stop A
A~> MSG held\02
A~> MSG held\03
A~> MSG held\04
! continue A
! die A
! upgrade A
! die A
A< CMSG !/error\0packets-lost 3 {text}
= packets-lost=1 B.lost=1

== an upgrade keeps what a disconnected client has not read, and tells it why behind that
run: event=upgrade
A> CMSG !/notices/on
A> SUB k
A| full
A> HELLO
! {event} B
B> MSG k\01
A< CMSG !/error\0unknown-word {text}
A end
