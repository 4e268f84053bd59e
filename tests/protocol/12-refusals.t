# What is refused, and what disconnects
run: workers=1,2

== a packet that breaks the protocol ends its sender's connection, and nobody else notices
with code=empty-packet packet=
with code=unknown-word packet=HELLO world\0
with code=unknown-word packet=msg k\0payload
with code=unknown-word packet=sub k
with code=unknown-word packet=\x20SUB k
with code=unknown-word packet=SUB
with code=unknown-word packet=SUB\tk
with code=unknown-word packet=UNSUB
with code=unknown-word packet=MSG\0payload
with code=unknown-word packet=MSGk\0payload
with code=unknown-word packet=CMSG
with code=unknown-word packet=\0
with code=unknown-word packet={\xff\0*150000}
with code=no-nul packet=MSG\x20
with code=no-nul packet=MSG k
with code=key-too-long packet=MSG {k*4097}\0
with code=key-too-long packet=MSG {k*300000}\0
with code=key-too-deep packet=MSG {k/*128}\0
with code=pattern-too-long packet=SUB {p*4097}
with code=pattern-too-deep packet=SUB {p/*128}
with code=pattern-too-long packet=UNSUB {p*4097}
with code=pattern-too-deep packet=UNSUB {p/*128}
with code=packet-too-long packet=MSG k\0{x*409595}
with code=packet-too-long packet=MSG k\0{x*410594}
BC> SUB {}
A> CMSG !/notices/on
A> SUB before
A~> MSG before\0x
A~> {packet}
A< MSG before\0x
A< CMSG !/error\0{code} {text}
A end
B> MSG meanwhile\0
BC< MSG before\0x
BC< MSG meanwhile\0

== without notices the connection ends without a word
with code=empty-packet packet=
with code=unknown-word packet=HELLO world\0
with code=unknown-word packet=msg k\0payload
with code=unknown-word packet=sub k
with code=unknown-word packet=\x20SUB k
with code=unknown-word packet=SUB
with code=unknown-word packet=SUB\tk
with code=unknown-word packet=UNSUB
with code=unknown-word packet=MSG\0payload
with code=unknown-word packet=MSGk\0payload
with code=unknown-word packet=CMSG
with code=unknown-word packet=\0
with code=unknown-word packet={\xff\0*150000}
with code=no-nul packet=MSG\x20
with code=no-nul packet=MSG k
with code=key-too-long packet=MSG {k*4097}\0
with code=key-too-long packet=MSG {k*300000}\0
with code=key-too-deep packet=MSG {k/*128}\0
with code=pattern-too-long packet=SUB {p*4097}
with code=pattern-too-deep packet=SUB {p/*128}
with code=pattern-too-long packet=UNSUB {p*4097}
with code=pattern-too-deep packet=UNSUB {p/*128}
A> SUB k
A> MSG k\01
A~> {packet}
A< MSG k\01
A end
= {code}=1

== packets behind one that breaks the protocol are not processed
B> SUB {}
A> SUB k
! stop A
A~> MSG k\01
A~> HELLO
A~> MSG k\02
! continue A
A< MSG k\01
A end
B< MSG k\01
= unknown-word=1

== a packet that is too long is never passed on cut short
bus: packet_bytes_max=8000
A> CMSG !/notices/on
AB> SUB k
A> MSG k\0{x*7994}
AB< MSG k\0{x*7994}
A~> MSG k\0{x*7995}
A< CMSG !/error\0packet-too-long {text}
A end

== subscriptions beyond a quota are refused
bus: user_subscriptions_max=4
A> CMSG !/notices/on
A> SUB a
A> SUB b
A> SUB c
A< CMSG !/error\0too-many-patterns {text}
B> MSG c\01
B> MSG b\02
A< MSG b\02
A> UNSUB a
A> SUB c
B> MSG c\03
A< MSG c\03

== each client takes at most as many subscriptions as it leaves to the user's others
bus: user_subscriptions_max=4
ABC> CMSG !/notices/on
A> SUB a
A> SUB b
A> SUB c
A< CMSG !/error\0too-many-patterns {text}
B> SUB a
B> SUB b
B< CMSG !/error\0too-many-patterns {text}
C> SUB a
C< CMSG !/error\0too-many-patterns {text}
! close A
C> SUB a
D> MSG a\01
BC< MSG a\01

== each occurrence of a pattern counts
bus: user_subscriptions_max=4
A> CMSG !/notices/on
A> SUB k
A> SUB k
A> SUB k
A< CMSG !/error\0too-many-patterns {text}
A> UNSUB k
A>? UNSUB unknown
A> SUB k
B> MSG k\01
A< MSG k\01

== patterns of one user are bounded in bytes, 64 for each segment
bus: user_subscription_bytes_max=499
run: workers=2 place=other
AB> CMSG !/notices/on
A> SUB {a*36}
A> SUB {b*36}
A> SUB {c*36}
A< CMSG !/error\0too-many-patterns {text}
B> SUB {d*36}
B> SUB {e*36}
B< CMSG !/error\0too-many-patterns {text}
C> MSG {d*36}\01
C> MSG {e*36}\02
B< MSG {d*36}\01

== a user's patterns take at most half of what the bus has for all
bus: bus_subscription_bytes_max=400
run: workers=2 place=other
AB> CMSG !/notices/on
A> SUB {a*36}
A> SUB {b*36}
A> SUB {c*36}
A< CMSG !/error\0too-many-patterns {text}
B> SUB {d*36}
B< CMSG !/error\0too-many-patterns {text}

== patterns of one client are bounded in bytes
bus: client_subscription_bytes_max=200
A> CMSG !/notices/on
A> SUB {a*60}
A> SUB {b*100}
A< CMSG !/error\0too-many-patterns {text}
B> SUB {b*100}
C> MSG {b*100}\01
B< MSG {b*100}\01

== a pattern that could make matches long is refused
bus: user_match_steps_max=5
A> CMSG !/notices/on
A> SUB a/b*/c
A< CMSG !/error\0too-many-steps {text}
A> SUB a/b
A> SUB x/y/z
B> MSG a/b\01
B> MSG a/bx/c\02
A< MSG a/b\01

== one connection too many is refused, and is told why
# One of the three is no client of this section.
bus: user_connections_max=3
run: workers=1
AB> SUB k
C< CMSG !/error\0too-many-connections {text}
C end
A> MSG k\01
AB< MSG k\01
! close A
D> MSG k\02
B< MSG k\02

== a client that is kicked is told why
A> CMSG !/notices/on
AB> SUB k
C> MSG k\01
admin kick A make room
A< MSG k\01
A< CMSG !/error\0kicked make room
A end
admin kick B
B< MSG k\01
B end
= kicked=1

== other clients keep what they have when one is disconnected
A> CMSG blocking/soft/error
B> SUB k
B> CMSG echo/off
A~> HELLO
A end
B> MSG k\0not echoed
C> MSG k\01
B< MSG k\01
= unknown-word=1
