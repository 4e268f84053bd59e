# Survival: what clients keep when a worker dies, when they are moved, and when the bus is replaced
run: event=*

== subscriptions, each as often as it was made
A> SUB a/*
A> SUB a/*
A> SUB b/**
A> SUB gone
A> UNSUB gone
B> SUB k
! {event} A
B> MSG a/x\01
B> MSG b/x\02
B> MSG gone\03
A> MSG k\04
A< MSG a/x\01
A< MSG b/x\02
B< MSG k\04
A> UNSUB a/*
B> MSG a/x\05
A< MSG a/x\05
A> UNSUB a/*
A> UNSUB b/**
B> MSG a/x\06
B> MSG b/x\07

== choices
A> CMSG echo/off
A> CMSG !/notices/on
A> CMSG sender/on
A> CMSG blocking/soft/discard
A> CMSG blocking/hard/error
A> CMSG order/stack
A> CMSG age/86400000
A> SUB k
! {event} A
A> MSG k\0not echoed
A> MSG !/x\0
A< CMSG !/error\0reserved {text}
B> MSG k\01
A< CMSG !/from\0{n} {B.client} {B.gid} {B.uid} {B.pid} MSG k\01
admin clients A soft=discard hard=error order=stack age_ms_max=86400000

== choices that were taken back
A> CMSG echo/off
A> CMSG sender/on
A> CMSG order/latest
A> CMSG age/5
A> CMSG echo/on
A> CMSG sender/off
A> CMSG order/queue
A> CMSG age/0
A> SUB k
! {event} A
A> MSG k\01
A< MSG k\01
A> MSG !/x\0
= reserved=1
admin clients A soft=queue hard=discard order=queue age_ms_max=0

== messages in sockets, and the order of later ones
AB> CMSG !/notices/on
AB> SUB k
C> MSG k\01
! {event} A
C> MSG k\02
B> MSG k\03
AB< MSG k\01
AB< MSG k\02
AB< MSG k\03

== identities and secret subscriptions
A> SUB {A.cred}/own
A> SUB !/cred////any
B> MSG {A.cred}/own\01
! {event} A
A> CMSG !/cred/whoami
B> MSG {A.cred}/own\02
B> MSG {A.cred}/any\03
B> MSG !/cred/4294967290///any\04
A< MSG {A.cred}/own\01
A< CMSG !/cred/whoami\0{A.cred}
A< MSG {A.cred}/own\02
A< MSG {A.cred}/any\03
A> UNSUB {A.cred}/own
A> UNSUB !/cred////any
B> MSG {A.cred}/own\05

== names and wills: no leave, and the will is published once
A> CMSG !/join\0a\0k\0will
A< CMSG !/join\0a
B> SUB !/presence/*/*
B> SUB k
! {event} A
B> CMSG !/members\0*/*
B< CMSG !/members\0end\n{A.uid} a {A.client} {A.gid} {A.pid}
B> CMSG !/join\0a
B< CMSG !/join\0a\0name-taken {text}
A> CMSG !/join\0b
A< CMSG !/join\0b\0has-name {text}
A> CMSG !/join\0a\0k\0will
A< CMSG !/join\0a
! close A
B< MSG k\0will
B< MSG !/presence/{A.uid}/a\0leave {A.client} {A.gid} {A.pid} left
B> CMSG !/join\0a
B< MSG !/presence/{B.uid}/a\0join {B.client} {B.gid} {B.pid}
B< CMSG !/join\0a

== a name that was given up, and one that is given up behind it
A> CMSG !/join\0a
A< CMSG !/join\0a
A> CMSG !/leave
A< CMSG !/leave\0a
A> CMSG !/join\0b\0k\0will
A< CMSG !/join\0b
B> SUB !/presence/*/*
! {event} A
A> CMSG !/leave
A< CMSG !/leave\0b
B< MSG !/presence/{A.uid}/b\0leave {A.client} {A.gid} {A.pid} gave-up
B> CMSG !/members\0*/*
B< CMSG !/members\0end
B> CMSG !/join\0a
B< MSG !/presence/{B.uid}/a\0join {B.client} {B.gid} {B.pid}
B< CMSG !/join\0a

== receipts of later messages
A> SUB k
B> CMSG !/publish\01\0k\01
B< CMSG !/receipt\01\01 0 0
! {event} A
B> CMSG !/publish\02\0k\02
B< CMSG !/receipt\02\01 0 0
A> CMSG !/publish\03\0nobody\0
A< MSG k\01
A< MSG k\02
A< CMSG !/receipt\03\00 0 0

== places go on growing, and connections keep their numbers
A> CMSG sender/on
A> SUB k
B> MSG k\01
A< CMSG !/from\0{place:1} {B.client} {B.gid} {B.uid} {B.pid} MSG k\01
! {event} A
B> MSG k\02
A< CMSG !/from\0{place:2} {B.client} {B.gid} {B.uid} {B.pid} MSG k\02
C> MSG k\03
A< CMSG !/from\0{place:3} {C.client} {C.gid} {C.uid} {C.pid} MSG k\03

== a connection whose receiving side is shut may publish
AB> SUB k
! shutdown-read A
! {event} B
A> MSG k\01
B< MSG k\01

== what is refused still is, and who breaks the protocol is disconnected
A> CMSG !/notices/on
! {event} A
A> SUB a/!
A< CMSG !/error\0reserved {text}
A~> HELLO
A< CMSG !/error\0unknown-word {text}
A end

== echo is switched again
A> CMSG echo/off
AB> SUB k
! {event} A
A> MSG k\01
A> CMSG echo/on
A> MSG k\02
A< MSG k\02
B< MSG k\01
B< MSG k\02

== requests that a dying worker had not read are answered by its successor
run: event=die
A> SUB k
! stop A
A~> CMSG !/sync\0first
A~> MSG k\01
A~> CMSG !/sync\0second
! {event} A
A< CMSG !/sync\0first
A< MSG k\01
A< CMSG !/sync\0second

== messages in the log of a dying worker are delivered by its successor
run: event=die workers=2,4 place=other
A> SUB k
! stop A
B~> MSG k\01
B~> CMSG !/sync\0accepted
B< CMSG !/sync\0accepted
! {event} A
B> MSG k\02
A< MSG k\01
A< MSG k\02

== a client's figures
run: event=move,upgrade
A> SUB k
A> MSG k\01
B> MSG k\02
A< MSG k\01
A< MSG k\02
A> MSG !/x\0
! {event} A
admin clients A messages_in=1 accepted=2 delivered=2 delivered_bytes=14 refused=1
admin clients A bytes_in=20 discarded=0 backlog=0 subscriptions=1
= reserved=1
