# Senders: who has published a message, and its place in the order

== each message comes with its sender and its place, the same for all recipients
AB> CMSG sender/on
AB> SUB k
C> SUB k
C> MSG k\01
AB< CMSG !/from\0{place:1} {C.client} {C.gid} {C.uid} {C.pid} MSG k\01
D> MSG k\02
AB< CMSG !/from\0{place:2} {D.client} {D.gid} {D.uid} {D.pid} MSG k\02
A> MSG k\0\03
AB< CMSG !/from\0{place:3} {A.client} {A.gid} {A.uid} {A.pid} MSG k\0\03
C< MSG k\01
C< MSG k\02
C< MSG k\0\03

== the choice applies from its own place in the stream on
A> SUB k
A~> MSG k\01
A~> CMSG sender/on
A~> MSG k\02
A~> CMSG sender/off
A> MSG k\03
A< MSG k\01
A< CMSG !/from\0{n} {A.client} {A.gid} {A.uid} {A.pid} MSG k\02
A< MSG k\03

== secret messages have senders
A> CMSG sender/on
A> SUB {A.cred}/
B> MSG {A.cred}/k\0secret
A< CMSG !/from\0{n} {B.client} {B.gid} {B.uid} {B.pid} MSG {A.cred}/k\0secret

== a message of the largest size has a sender
A> CMSG sender/on
A> SUB k
B> MSG k\0{x*409594}
A< CMSG !/from\0{n} {B.client} {B.gid} {B.uid} {B.pid} MSG k\0{x*409594}

== echo off holds with senders
A> CMSG sender/on
A> CMSG echo/off
A> SUB k
A> MSG k\01
B> MSG k\02
A< CMSG !/from\0{n} {B.client} {B.gid} {B.uid} {B.pid} MSG k\02

== messages that wait in a backlog have their senders and places
bus: socket_buffer_bytes=20000 packet_bytes_max=8000
A> CMSG sender/on
A> SUB k
A| full
B> MSG k\01
C> MSG k\02
A< CMSG !/from\0{place:1} {B.client} {B.gid} {B.uid} {B.pid} MSG k\01
A< CMSG !/from\0{place:2} {C.client} {C.gid} {C.uid} {C.pid} MSG k\02
