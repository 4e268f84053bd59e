# Control messages: whoami, sync, me and echo

== whoami tells the ids of the kernel
with payload=
with payload=\0
with payload=\0any payload
A> CMSG !/cred/whoami{payload}
A< CMSG !/cred/whoami\0{A.cred}

== whoami comes behind everything that was accepted before
A> SUB k
B> MSG k\01
A~> MSG k\02
A~> CMSG !/cred/whoami
A~> MSG k\03
A< MSG k\01
A< MSG k\02
A< CMSG !/cred/whoami\0{A.cred}
A< MSG k\03

== what was subscribed to before whoami is in force on the whole bus
A~> SUB k
A~> CMSG !/cred/whoami
A< CMSG !/cred/whoami\0{A.cred}
B> MSG k\01
C> MSG k\02
A< MSG k\01
A< MSG k\02
A~> UNSUB k
A~> CMSG !/cred/whoami
A< CMSG !/cred/whoami\0{A.cred}
BC> MSG k\03

== subscriptions begin and end at their places, also where a worker is late
run: workers=2,4 place=other
A> SUB old
! stop A
B~> MSG old\01
B~> MSG new\01
B~> CMSG !/sync\0accepted
B< CMSG !/sync\0accepted
A~> SUB new
A~> UNSUB old
A~> CMSG !/sync\0behind
! continue A
A< MSG old\01
A< CMSG !/sync\0behind
B> MSG old\02
B> MSG new\02
A< MSG new\02

== sync answers with the first 64 bytes of its payload
with token= answer=
with token=7 answer=7
with token=\0\x01\n\xff/!*? answer=\0\x01\n\xff/!*?
with token={x*64} answer={x*64}
with token={x*65} answer={x*64}
with token={y*10000} answer={y*64}
A> SUB k
A> MSG k\0before
A> CMSG !/sync\0{token}
A< MSG k\0before
A< CMSG !/sync\0{answer}

== sync without a payload
A> CMSG !/sync
A< CMSG !/sync\0

== replies come in the order of their requests
A~> CMSG !/sync\01
A~> CMSG !/cred/whoami
A~> CMSG !/sync\02
A< CMSG !/sync\01
A< CMSG !/cred/whoami\0{A.cred}
A< CMSG !/sync\02

== echo is on at first, and switched at a point in the stream
with payload=
with payload=\0
with payload=\0payload is ignored
ABC> SUB k
A> MSG k\01
A> CMSG echo/off{payload}
A> MSG k\02
A~> MSG k\03
A~> CMSG echo/on{payload}
A~> MSG k\04
A~> CMSG echo/off{payload}
A> MSG k\05
A< MSG k\01
A< MSG k\04
BC< MSG k\01
BC< MSG k\02
BC< MSG k\03
BC< MSG k\04
BC< MSG k\05

== echo off concerns no messages of others, and no other client
A> CMSG echo/off
AB> SUB k
A> SUB {}
B> MSG k\01
C> MSG k\02
AB< MSG k\01
AB< MSG k\02

== unknown control keys are ignored, and nothing is passed on
with key=
with key=key
with key=!/unknown
with key=echo
with key=echo/
with key=echo/ON
with key=!/lost
with key=MSG
with key=age/-1
with key=age/1.5
with key=age/86400001
with key=age/01
with key=age/+1
with key=age/1_0
with key=age/\x201
with key=age/1\n
with key=age/\xd9\xa1
with key=age/
with key=order/newest
with key=order/
with key=order/queue/
with key=blocking/soft
with key=blocking/hard/queue
A> CMSG !/notices/on
AB> SUB {}
A>? CMSG {key}
A>? CMSG {key}\0payload

== me tells of the client's own user, at its place in the order
A> SUB k
B> MSG k\0before
A~> CMSG !/me
A~> MSG k\0after
A< MSG k\0before
A< CMSG !/me\0{text}
A< MSG k\0after

== many questions get an answer each
A~> CMSG !/me
A~> CMSG !/me
B~> CMSG !/me
A~> CMSG !/sync\0behind
AB< CMSG !/me\0{text}
A< CMSG !/me\0{text}
A< CMSG !/sync\0behind
