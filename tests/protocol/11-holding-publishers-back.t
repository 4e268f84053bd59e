# Holding publishers back: a client that chose block has no room
# Nobody's held time is used up. The first message that a client has no room for may be kept, too.
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=2 user_held_seconds_max=60

== soft block holds the publishers of a client whose socket is full
A> CMSG !/notices/on
A> CMSG blocking/soft/block
AC> SUB k
C> SUB other
A| full
B> MSG k\01
B~> MSG k\02
B~> MSG other\0behind
B~> CMSG !/sync\0behind
B held
C> MSG other\0flows
C< MSG k\01
C< MSG other\0flows
admin clients A stalled=True
admin clients B waits_for=stall
A< MSG k\01
A< MSG k\02
B< CMSG !/sync\0behind
C< MSG k\02
C< MSG other\0behind

== hard block holds them when its backlog is full
with order=queue one=1 two=2{x*20} three=3{x*10}
with order=stack one=3{x*10} two=2{x*20} three=1
with order=random one=2{x*20} two=3{x*10} three=1
A> CMSG !/notices/on
A> CMSG blocking/hard/block
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02{x*20}
B> MSG k\03{x*10}
B~> MSG k\04
B~> CMSG !/sync\0behind
B held
A< MSG k\0{one}
A< MSG k\0{two}
A< MSG k\0{three}
A< MSG k\04
B< CMSG !/sync\0behind

== publishers of other messages flow
A> CMSG blocking/soft/block
A> SUB k
C> SUB other/*
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
CD> MSG other/x\01
C< MSG other/x\01
C< MSG other/x\01
A< MSG k\01
A< MSG k\02
B< CMSG !/sync\0behind

== a publisher waits for both of two clients
run: workers=1,2
AC> CMSG blocking/soft/block
AC> SUB k
AC| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
A< MSG k\01
B held
C< MSG k\01
AC< MSG k\02
B< CMSG !/sync\0behind

== publishers wait only for the client to which they publish
run: workers=1,2
AC> CMSG blocking/soft/block
A> SUB k
C> SUB j
AC| full
B> MSG k\01
B~> MSG k\02
D> MSG j\01
D~> MSG j\02
D~> CMSG !/sync\0behind
A< MSG k\01
A< MSG k\02
D held
C< MSG j\01
C< MSG j\02
D< CMSG !/sync\0behind

== two clients that hold each other go on when they read
run: workers=1,2
AB> CMSG blocking/soft/block
A> SUB k
B> SUB j
AB| full
A> MSG j\01
A~> MSG j\02
B> MSG k\01
B~> MSG k\02
admin clients A waits_for=stall
admin clients B waits_for=stall
A< MSG k\01
A< MSG k\02
B< MSG j\01
B< MSG j\02

== a client that holds others is served, and with echo off does not hold itself
run: workers=1,2
AC> SUB k
A> CMSG blocking/soft/block
A> CMSG echo/off
A| full
B> MSG k\01
A> MSG k\0not for itself
A> CMSG !/sync\0own
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
C< MSG k\01
C< MSG k\0not for itself
A< MSG k\01
A< CMSG !/sync\0own
AC< MSG k\02
B< CMSG !/sync\0behind

== nobody is held for a client that a secret key does not mean
run: workers=1,2
with key=!/cred/4294967290///s
with key=!/cred//4294967290//s
with key=!/cred///4294967290/s
A> CMSG blocking/soft/block
A> SUB !/cred////s
A| full
B> MSG !/cred////s\01
B> MSG {key}\0for nobody
B> CMSG !/sync\0flows
B< CMSG !/sync\0flows
B~> MSG {A.cred}/s\02
B~> CMSG !/sync\0behind
B held
A< MSG !/cred////s\01
A< MSG {A.cred}/s\02
B< CMSG !/sync\0behind

== a subscription of a client that holds others holds publishers, too
run: workers=1,2
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
A> SUB j
C~> MSG j\02
C~> CMSG !/sync\0behind
C held
A< MSG k\01
A< MSG j\02
C< CMSG !/sync\0behind

== publishers are held for as long as any of the client's patterns matches
run: workers=2
with pattern=k
with pattern=*
with pattern={}
A> SUB {pattern}
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
A> UNSUB k
B held
A< MSG k\01
A< MSG k\02
B< CMSG !/sync\0behind

== a publisher goes on when the client unsubscribes
A> CMSG !/notices/on
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
A> UNSUB k
B< CMSG !/sync\0behind
A< MSG k\01

== a publisher goes on when the client chooses to lose messages instead
A> CMSG !/notices/on
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
A> CMSG blocking/soft/discard
B< CMSG !/sync\0behind
A< MSG k\01
A< CMSG !/lost\01

== a publisher goes on when the client chooses to queue instead
run: workers=2 place=other
A> CMSG !/notices/on
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
A> CMSG blocking/soft/queue
B< CMSG !/sync\0behind
A< MSG k\01
A< MSG k\02

== a publisher goes on when the client gives up hard block
run: workers=2
with choice=blocking/soft/discard
with choice=blocking/hard/discard
A> CMSG !/notices/on
A> CMSG blocking/hard/block
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B~> MSG k\04
B~> CMSG !/sync\0behind
B held
A> CMSG {choice}
B< CMSG !/sync\0behind
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< CMSG !/lost\01

== a publisher goes on when the client chooses to be disconnected instead
run: workers=2 place=other
A> CMSG !/notices/on
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
A> CMSG blocking/soft/error
B< CMSG !/sync\0behind
A< CMSG !/error\0too-slow {text}
A end

== a publisher goes on waiting when the client makes other choices
run: workers=2
with choice=blocking/hard/error
with choice=blocking/hard/block
with choice=order/stack
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
A> CMSG {choice}
B held
A< MSG k\01
A< MSG k\02
B< CMSG !/sync\0behind

== a publisher goes on waiting when the client chooses the other kind of block
run: workers=1,2
A> CMSG blocking/hard/block
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B~> MSG k\04
B~> CMSG !/sync\0behind
A> CMSG blocking/soft/block
B held
A> CMSG blocking/soft/queue
B held
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
B< CMSG !/sync\0behind

== a client that chooses block while its backlog is full holds publishers from then on
run: workers=1,2
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
A> CMSG blocking/hard/block
B> MSG k\04
B~> MSG k\05
B~> CMSG !/sync\0behind
B held
A< MSG k\01
A< MSG k\02
A< CMSG !/lost\01
A< MSG k\04
A< MSG k\05
B< CMSG !/sync\0behind

== what a held publisher has sent before it left is delivered
run: workers=1,2
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> MSG k\03
! close B
A< MSG k\01
A< MSG k\02
A< MSG k\03

== a publisher goes on when the client has left
A> CMSG blocking/soft/block
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
! close A
B< CMSG !/sync\0behind

== a publisher goes on when the client is kicked
A> CMSG blocking/soft/block
A> CMSG !/notices/on
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
admin kick A why
B< CMSG !/sync\0behind
A< CMSG !/error\0kicked why
A end

== a client that blocks is bounded by what its user's others leave, and loses nothing
# A message of 36 bytes counts as 100.
bus: user_backlog_bytes_max=400
run: workers=2
A> SUB a
B> CMSG blocking/hard/block
B> SUB b
AB| full
C> MSG a\01{x*29}
C> MSG a\02{x*29}
C> MSG b\03{x*29}
C> MSG b\04{x*29}
C~> MSG b\05{x*29}
C~> CMSG !/sync\0behind
B< MSG b\03{x*29}
B< MSG b\04{x*29}
B< MSG b\05{x*29}
C< CMSG !/sync\0behind
A< MSG a\01{x*29}
A< MSG a\02{x*29}

== where as many clients hold publishers as may, block acts as discard
run: workers=1
bus: blocking_clients_max=2
AB> CMSG !/notices/on
A> CMSG blocking/soft/block
B> CMSG blocking/soft/block
B< CMSG !/error\0too-many-blocking {text}
B> SUB k
B| full
C> MSG k\01
C> MSG k\02
B< CMSG !/lost\02

== where nobody may be held back, block acts as discard
run: workers=2
bus: user_held_seconds_max=0
with order=queue hard=error
with order=stack hard=block
with order=random hard=discard
A> CMSG !/notices/on
A> CMSG blocking/soft/block
A> CMSG blocking/hard/{hard}
A> CMSG order/{order}
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A< CMSG !/lost\02

== where nobody may be held back, hard block acts as hard discard
bus: user_held_seconds_max=0
A> CMSG !/notices/on
A> CMSG blocking/hard/block
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
A< MSG k\01
A< MSG k\02
A< CMSG !/lost\01

== a held publisher may be the client itself
A> CMSG blocking/soft/block
A> SUB k
A| full
A> MSG k\01
A~> MSG k\02
admin clients A waits_for=stall
A< MSG k\01
A< MSG k\02

== the bus may choose block for clients that make no choice
bus: soft=block
run: workers=2 place=other
A> SUB k
A| full
B> MSG k\01
B~> MSG k\02
B~> CMSG !/sync\0behind
B held
A< MSG k\01
A< MSG k\02
B< CMSG !/sync\0behind
