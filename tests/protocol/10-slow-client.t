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

== soft discard drops what the socket has no room for, whatever else is chosen
run: workers=2
with order=queue hard=block
with order=queue hard=error
with order=stack hard=error
with order=random hard=block
with order=latest hard=discard
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> CMSG blocking/hard/{hard}
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
run: workers=2
with order=queue hard=block
with order=stack hard=discard
with order=random hard=error
A> CMSG !/notices/on
A> CMSG blocking/soft/error
A> CMSG blocking/hard/{hard}
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A< CMSG !/error\0too-slow {text}
A end

== hard error disconnects when the backlog is full, too
run: workers=2
with order=queue
with order=stack
with order=random
A> CMSG !/notices/on
A> CMSG blocking/hard/error
A> CMSG order/{order}
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

== a change of soft concerns no message that came before it
run: workers=2 place=other
A> CMSG !/notices/on
A> CMSG blocking/soft/discard
A> SUB k
A| full
! stop A
B~> MSG k\01
B~> CMSG !/sync\0
B< CMSG !/sync\0
A~> CMSG blocking/soft/error
! continue A
A< CMSG !/lost\01

== a change to soft discard saves nobody whom a message before it disconnects
run: workers=2 place=other
A> CMSG !/notices/on
A> CMSG blocking/soft/error
A> SUB k
A| full
! stop A
B~> MSG k\01
B~> CMSG !/sync\0
B< CMSG !/sync\0
A~> CMSG blocking/soft/discard
! continue A
A< CMSG !/error\0too-slow {text}
A end

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
with order=queue one=1 two=2{x*50} three=3 four=4{x*50}
with order=stack one=2{x*50} two=1 three=4{x*50} four=3
with order=random one=2{x*50} two=1 three=4{x*50} four=3
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02{x*50}
A> CMSG !/cred/whoami
B> MSG k\03
B> MSG k\04{x*50}
A< MSG k\0{one}
A< MSG k\0{two}
A< CMSG !/cred/whoami\0{A.cred}
A< MSG k\0{three}
A< MSG k\0{four}

== a loss behind a reply is told before it, unless the order is queue
run: workers=2
with order=stack
with order=random
A> CMSG !/notices/on
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
A> CMSG !/cred/whoami
B> MSG k\02
B> MSG k\03{x*50}
B> MSG k\04{x*100}
B> MSG k\05
A< CMSG !/lost\01
A< MSG k\01
A< CMSG !/cred/whoami\0{A.cred}
A< MSG k\04{x*100}
A< MSG k\03{x*50}
A< MSG k\02

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

== a new order applies at once to messages that wait, and to losses
run: workers=2
with before=queue after=stack one=4\0{x*20} two=3\0 three=2\0{x*30} four=1\0{x*10}
with before=queue after=random one=2\0{x*30} two=4\0{x*20} three=1\0{x*10} four=3\0
with before=queue after=latest one=1\0{x*10} two=2\0{x*30} three=3\0 four=4\0{x*20}
with before=stack after=queue one=1\0{x*10} two=2\0{x*30} three=3\0 four=4\0{x*20}
with before=stack after=random one=2\0{x*30} two=4\0{x*20} three=1\0{x*10} four=3\0
with before=random after=queue one=1\0{x*10} two=2\0{x*30} three=3\0 four=4\0{x*20}
with before=random after=latest one=1\0{x*10} two=2\0{x*30} three=3\0 four=4\0{x*20}
with before=latest after=stack one=4\0{x*20} two=3\0 three=2\0{x*30} four=1\0{x*10}
A> CMSG !/notices/on
A> CMSG order/{before}
A> SUB k/*
A| full
B> MSG k/1\0{x*10}
B> MSG k/2\0{x*30}
B> MSG k/3\0
B> MSG k/4\0{x*20}
B> MSG k/5\0{x*40}
A> CMSG order/{after}
A< CMSG !/lost\01
A< MSG k/{one}
A< MSG k/{two}
A< MSG k/{three}
A< MSG k/{four}

== the last choice holds, and payloads are ignored
run: workers=2
A> CMSG blocking/soft/error
A> CMSG blocking/soft/discard\0queue
A> CMSG blocking/hard/discard
A> CMSG blocking/hard/error\0\0
A> CMSG order/random
A> CMSG order/stack\0order/queue
admin clients A soft=discard hard=error order=stack

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

== behind a change to soft discard what waits is kept, and more is dropped
run: workers=2 place=other
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
A> CMSG blocking/soft/discard
B> MSG k\02
A< MSG k\01
A< CMSG !/lost\01

== behind a change to an error the next message without room disconnects
run: workers=2
with error=soft
with error=hard
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B> MSG k\04
A> CMSG blocking/{error}/error
admin clients A backlog=4
B> MSG k\05
A< CMSG !/error\0too-slow {text}
A end

== a backlog is bounded in bytes, to the last
bus: backlog_bytes_max=10000 backlog_messages_max=100
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01{x*4993}
B> MSG k\02{x*4986}
B> MSG k\03x
B> MSG k\04
A< MSG k\01{x*4993}
A< MSG k\02{x*4986}
A< CMSG !/lost\01
A< MSG k\04

== each backlog takes at most as much as it leaves to the user's others
# A message of 36 bytes counts as 100.
bus: user_backlog_bytes_max=400
run: workers=2
AB> CMSG !/notices/on
A> SUB a
B> SUB b
AB| full
C> MSG a\01{x*29}
C> MSG a\02{x*29}
C> MSG a\03{x*29}
C> MSG b\04{x*29}
C> MSG b\05{x*29}
A< MSG a\01{x*29}
A< MSG a\02{x*29}
A< CMSG !/lost\01
B< MSG b\04{x*29}
B< CMSG !/lost\01
B| full
C> MSG b\06{x*29}
C> MSG b\07{x*29}
B< MSG b\06{x*29}
B< MSG b\07{x*29}

== a user's backlogs take at most half of what the bus has, and hard decides beyond
bus: bus_backlog_bytes_max=400
run: workers=2 place=other
AB> CMSG !/notices/on
B> CMSG blocking/hard/error
A> SUB a
B> SUB b
AB| full
C> MSG a\01{x*29}
C> MSG a\02{x*29}
C> MSG a\03{x*29}
C> MSG b\04{x*29}
B< CMSG !/error\0too-slow {text}
B end
A< MSG a\01{x*29}
A< MSG a\02{x*29}
A< CMSG !/lost\01

== the order latest keeps the newest message of each key, at the oldest's place and in its room
A> CMSG !/notices/on
A> CMSG order/latest
A> SUB k/*
A| full
B> MSG k/1\01
B> MSG k/2\02
B> MSG k/1\03
B> MSG k/3\04
B> MSG k/4\05
B> MSG k/5\0no room
B> MSG k/2\06
B> MSG k/1\07
admin clients A replaced=3 backlog=4
A< CMSG !/lost\01
A< MSG k/1\07
A< MSG k/2\06
A< MSG k/3\04
A< MSG k/4\05
B> MSG k/1\08
A< MSG k/1\08
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

== messages that have waited too long make room for a newer one
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
B> MSG k/3\0
B> MSG k/4\0
! wait 5
B> MSG k/5\0
A> CMSG age/86400000
A< CMSG !/lost\04
A< MSG k/5\0

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

== a client that is kicked while its socket is full is told when it reads
run: workers=2
A> CMSG !/notices/on
A| full
admin kick A why
! wait 600
A< CMSG !/error\0kicked why
A end

== a client that breaks the protocol while its socket is full is told when it reads
A> CMSG !/notices/on
A| full
A~> HELLO
A< CMSG !/error\0unknown-word {text}
A end

== a client that was disconnected may leave without having read
with notices=!/notices/on
with notices=echo/on
A> CMSG {notices}
B> SUB k
A| full
A~> HELLO
B> MSG k\01
! close A
B> MSG k\02
B< MSG k\01
B< MSG k\02
= unknown-word=1

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

== a full client that leaves takes its backlog along, and the others receive everything
AB> SUB k
A| full
C> MSG k\01
C> MSG k\02
! close A
C> MSG k\03
B< MSG k\01
B< MSG k\02
B< MSG k\03
