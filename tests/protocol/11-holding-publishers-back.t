# Holding publishers back: a client that chose block has no room
# Nobody's held time is used up. The first message that a client has no room for may be kept, too.
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=4 user_held_seconds_max=60

== soft block holds the publishers of a client whose socket is full
A> CMSG !/notices/on
A> CMSG blocking/soft/block
AC> SUB k
C> SUB other
A| full
B> MSG k\01
B~> MSG k\02
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

== hard block holds them when its backlog is full
A> CMSG !/notices/on
A> CMSG blocking/hard/block
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
B> MSG k\03
B> MSG k\04
B> MSG k\05
B~> MSG k\06
B~> CMSG !/sync\0behind
B held
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
A< MSG k\05
A< MSG k\06
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

== where nobody may be held back, block acts as discard
bus: user_held_seconds_max=0
A> CMSG !/notices/on
A> CMSG blocking/soft/block
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
B> MSG k\04
B> MSG k\05
A< MSG k\01
A< MSG k\02
A< MSG k\03
A< MSG k\04
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
