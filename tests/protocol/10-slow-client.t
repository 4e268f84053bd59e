# A slow client: what happens to messages that it does not read
# Its socket holds ten packets that fill it, and its backlog four messages.
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=4

== queue and discard: the newest messages are dropped, and the gap is told
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01{x*100}
B> MSG k\02{x*3000}
B> MSG k\03{x*50}
B> MSG k\04{x*2000}
B> MSG k\05
B> MSG k\06{x*5000}
A< MSG k\01{x*100}
A< MSG k\02{x*3000}
A< MSG k\03{x*50}
A< MSG k\04{x*2000}
A< CMSG !/lost\02
B> MSG k\07
A< MSG k\07

== the order stack sends the newest first, and tells of losses before
A> CMSG !/notices/on
A> CMSG order/stack
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B> MSG k\04
B> MSG k\05
A< CMSG !/lost\01
A< MSG k\04
A< MSG k\03
A< MSG k\02
A< MSG k\01
B> MSG k\06
A< MSG k\06

== the order random sends the largest first, and the oldest first of one size
A> CMSG !/notices/on
A> CMSG order/random
A> SUB k
A| full
B> MSG k\01
B> MSG k\02{x*3000}
B> MSG k\03
B> MSG k\04{x*2000}
B> MSG k\05{x*5000}
A< CMSG !/lost\01
A< MSG k\02{x*3000}
A< MSG k\04{x*2000}
A< MSG k\01
A< MSG k\03

== soft discard drops what the socket has no room for
with order=queue
with order=stack
with order=random
with order=latest
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
A< CMSG !/lost\03
B> MSG k\04
A< MSG k\04

== soft error disconnects, and what is in the socket can be read
with order=queue
with order=stack
A> CMSG !/notices/on
A> CMSG blocking/soft/error
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A< CMSG !/error\0too-slow {text}
A end

== hard error disconnects when the backlog is full, too
A> CMSG !/notices/on
A> CMSG blocking/hard/error
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B> MSG k\04
admin clients A backlog=4
B> MSG k\05
A< CMSG !/error\0too-slow {text}
A end

== without notices a gap is not told
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B> MSG k\04
B> MSG k\05
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
B> MSG k\06
A< MSG k\06
= A.lost=1

== without notices a slow client is disconnected without a word
A> CMSG blocking/soft/error
A> SUB k
A| full
B> MSG k\01
A end
= too-slow=1

== a gap is told at its place
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A> CMSG blocking/soft/queue
B> MSG k\03
B> MSG k\04
A< CMSG !/lost\02
A< MSG k\03
A< MSG k\04

== after a drop, the socket counts as full until three quarters are read
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> SUB k
A| full
B> MSG k\01
A| read 2
B> MSG k\02
A| read 2
B> MSG k\03
A| read 5
B> MSG k\04
A< CMSG !/lost\03
A< MSG k\04

== other subscribers receive everything
A> CMSG !/notices/on
ABC> SUB k
A| full
D> MSG k\01
D> MSG k\02
D> MSG k\03
D> MSG k\04
D> MSG k\05
BC< MSG k\01
BC< MSG k\02
BC< MSG k\03
BC< MSG k\04
BC< MSG k\05
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
A< CMSG !/lost\01

== whoami keeps its place in any order
with order=queue one=1 two=2 three=3 four=4
with order=stack one=2 two=1 three=4 four=3
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A> CMSG !/cred/whoami
B> MSG k\03
B> MSG k\04
A< MSG k\0{one}
A< MSG k\0{two}
A< CMSG !/cred/whoami\0{A.cred}
A< MSG k\0{three}
A< MSG k\0{four}

== a refusal is told at its place, too
A> CMSG !/notices/on
A> CMSG order/stack
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A> MSG !/x\0
B> MSG k\03
A< MSG k\02
A< MSG k\01
A< CMSG !/error\0reserved {text}
A< MSG k\03

== a new order applies at once
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A> CMSG order/stack
B> MSG k\03
A< MSG k\03
A< MSG k\02
A< MSG k\01

== a change of soft leaves the backlog, and disconnects nobody
with soft=discard
with soft=error
A> SUB k
A| full
B> MSG k\01
A> CMSG blocking/soft/{soft}
A< MSG k\01
B> MSG k\02
A< MSG k\02

== a backlog is bounded in bytes
bus: backlog_bytes_max=10000 backlog_messages_max=100
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01{x*4000}
B> MSG k\02{x*4000}
B> MSG k\03{x*4000}
B> MSG k\04
A< MSG k\01{x*4000}
A< MSG k\02{x*4000}
A< CMSG !/lost\01
A< MSG k\04

== the order latest keeps the newest message of each key, at the place of the oldest
A> CMSG !/notices/on
A> CMSG order/latest
A> SUB k/*
A| full
B> MSG k/1\01
B> MSG k/2\02
B> MSG k/1\03
B> MSG k/3\04
B> MSG k/2\05
B> MSG k/1\06
admin clients A replaced=3 backlog=3
A< MSG k/1\06
A< MSG k/2\05
A< MSG k/3\04
B> MSG k/1\07
A< MSG k/1\07
= A.replaced=3

== the order latest goes by the key also where messages have senders
A> CMSG sender/on
A> CMSG order/latest
A> SUB k
A| full
B> MSG k\01
C> MSG k\02
A< CMSG !/from\0{n} {C.client} {C.gid} {C.uid} {C.pid} MSG k\02
= A.replaced=1

== a message behind a reply replaces none before it
A> CMSG order/latest
A> SUB k
A| full
B> MSG k\01
A> CMSG !/sync\0
B> MSG k\02
B> MSG k\03
A< MSG k\01
A< CMSG !/sync\0
A< MSG k\03
= A.replaced=1

== a message that has waited too long is dropped
with order=queue
with order=stack
with order=random
with order=latest
A> CMSG !/notices/on
A> CMSG order/{order}
A> CMSG age/1
A> SUB k/*
A| full
B> MSG k/1\0
B> MSG k/2\0
! wait 5
A< CMSG !/lost\02
admin clients A age_ms_max=1 discarded=2
B> MSG k/3\0
A< MSG k/3\0

== without an age nothing is too old
A> CMSG age/1
A> CMSG age/0
A> SUB k
A| full
B> MSG k\01
! wait 5
A< MSG k\01

== a message is as old as its arrival, or as the choice if that came later
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
! wait 5
A> CMSG age/86400000
A< MSG k\01

== age makes room for newer messages
A> CMSG !/notices/on
A> CMSG age/1
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B> MSG k\04
! wait 5
A> CMSG age/86400000
B> MSG k\05
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
A< CMSG !/lost\01

== the choices of the bus hold for clients that make none
bus: soft=discard order=stack
A> CMSG !/notices/on
AB> SUB k
AB| full
B> CMSG blocking/soft/queue
C> MSG k\01
C> MSG k\02
A< CMSG !/lost\02
B< MSG k\02
B< MSG k\01

== a client that does not read its replies is not read
B> SUB k
A> SUB news
A| full
A> CMSG !/sync\01
A~> MSG k\01
A~> CMSG !/sync\02
A held
B> MSG news\01
A< CMSG !/sync\01
A< MSG news\01
A< CMSG !/sync\02
B< MSG k\01

== a client with unread replies and a shut sending side keeps its name and is sent its backlog
A> CMSG !/join\0a
A< CMSG !/join\0a
A> SUB k
A| full
A> CMSG !/sync\01
B> MSG k\01
! shutdown-write A
B> SUB !/presence/*/*
B> CMSG !/members\0*/*
B< CMSG !/members\0end\n{A.uid} a {A.client} {A.gid} {A.pid}
A< CMSG !/sync\01
A< MSG k\01
A end
B< MSG !/presence/{A.uid}/a\0leave {A.client} {A.gid} {A.pid} left
B> CMSG !/members\0*/*
B< CMSG !/members\0end

== a full client that shuts down its receiving side is slow until it leaves
AB> SUB k
A| full
C> MSG k\01
! shutdown-read A
C> MSG k\02
admin clients A backlog=2
B< MSG k\01
B< MSG k\02
