# Transport: the four packets of a client, the two of the bus, and how a client leaves

== a message goes byte for byte to each client that has a matching pattern
with payload=
with payload=text
with payload=\0
with payload=\0after a NUL\0
with payload=\n\xff\x01MSG k
AB> SUB k
C> SUB other
C> MSG k\0{payload}
AB< MSG k\0{payload}

== a message goes once to a client with several patterns that match
A> SUB k/x
A> SUB k/*
A> SUB k/
A> SUB {}
A> SUB k/x
B> MSG k/x\01
A< MSG k/x\01

== a pattern is undone as often as it was subscribed to
A> SUB k
A> SUB k
A> UNSUB k
B> MSG k\01
A< MSG k\01
A> UNSUB k
B> MSG k\02

== undoing one pattern leaves the others
A> SUB k
A> SUB k*
A> UNSUB k
B> MSG k\01
B> MSG kk\02
A< MSG k\01
A< MSG kk\02

== an unsubscription without a subscription is ignored
A> CMSG !/notices/on
A> SUB k*
B> SUB k
A>? UNSUB k
A>? UNSUB nothing
B>? UNSUB k*
B> MSG k\01
AB< MSG k\01

== what follows a NUL in a pattern is ignored
A> SUB k\0more
B> MSG k\01
B> MSG kmore\02
A< MSG k\01
A> UNSUB k\0other
B> MSG k\03

== the first NUL of a message ends its key
A> SUB {}
B> MSG k\0a\0b
A< MSG k\0a\0b
B> MSG \0
A< MSG \0
B> MSG \0\0
A< MSG \0\0
A> UNSUB {}
B> MSG \0\0

== a publisher receives its own messages
A> SUB k
A> MSG k\01
A< MSG k\01

== packets around others are served in their order
B> SUB k
A~> MSG k\01
A~> MSG other\0x
A~> SUB k
A~> MSG k\02
A~> UNSUB k
A~> MSG k\03
A~> CMSG !/cred/whoami
A< MSG k\02
A< CMSG !/cred/whoami\0{A.cred}
B< MSG k\01
B< MSG k\02
B< MSG k\03

== a packet of any size passes whole, to the largest
with payload={x*58}
with payload={0123456789a*372}
with payload={0123456789a*2979}
with payload={0123456789a*5957}
with payload={0123456789a*11915}
with payload={0123456789a*19363}
with payload={0123456789a*23831}
with payload={x*409593}
with payload={x*409594}
AB> SUB k
A> MSG k\0{payload}
AB< MSG k\0{payload}

== what a client sent before it closed its socket is processed, also if it has not read everything
with pattern=k
with pattern=other
A> SUB {pattern}
B> SUB k
A> MSG k\01
A~> MSG k\02
! close A
B< MSG k\01
B< MSG k\02

== a client that has left receives nothing, and the others all
AB> SUB k
C> MSG k\01
A< MSG k\01
! close A
C> MSG k\02
B< MSG k\01
B< MSG k\02

== a client that shuts down its sending side has left, and can read what it was sent
AB> SUB k
C> MSG k\01
! shutdown-write A
C> MSG k\02
A< MSG k\01
A end
B< MSG k\01
B< MSG k\02

== what a client sent before it shut down its sending side is processed
AB> SUB k
A~> MSG k\01
A~> MSG k\02
! shutdown-write A
A< MSG k\01
A< MSG k\02
A end
B< MSG k\01
B< MSG k\02

== a client that shuts down its receiving side stays, and may publish
with pattern=k
with pattern=other
A> SUB {pattern}
B> SUB k
! shutdown-read A
A> MSG k\01
C> MSG k\02
A> MSG k\03
B< MSG k\01
B< MSG k\02
B< MSG k\03
