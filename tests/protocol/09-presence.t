# Presence: clients take names, and others are told of it

== watchers are told who joins and leaves
AB> SUB !/presence/*/*
C> SUB !/presence/{C.uid}/worker-*
D> CMSG !/join\0worker-1
D< CMSG !/join\0worker-1
ABC< MSG !/presence/{D.uid}/worker-1\0join {D.client} {D.gid} {D.pid}
D> CMSG !/leave
D< CMSG !/leave\0worker-1
ABC< MSG !/presence/{D.uid}/worker-1\0leave {D.client} {D.gid} {D.pid} gave-up
D> CMSG !/leave
D< CMSG !/leave\0

== a pattern of names matches
with pattern=*/* name=a
with pattern={A.uid}/* name=a
with pattern=*/a-* name=a-1
with pattern={A.uid}/a name=a
with pattern=*/a name=a
with pattern=*/a* name=a
A> SUB !/presence/{pattern}
B> CMSG !/join\0{name}
B< CMSG !/join\0{name}
A< MSG !/presence/{B.uid}/{name}\0join {B.client} {B.gid} {B.pid}
A> CMSG !/members\0{pattern}
A< CMSG !/members\0end\n{B.uid} {name} {B.client} {B.gid} {B.pid}
A> UNSUB !/presence/{pattern}

== a pattern of names does not match
with pattern=4294967290/a* name=a
with pattern=*/c* name=a
with pattern=*/a name=ab
with pattern=*/a-* name=a
A> SUB !/presence/{pattern}
B> CMSG !/join\0{name}
B< CMSG !/join\0{name}
A> CMSG !/members\0{pattern}
A< CMSG !/members\0end

== other patterns of names are refused
with pattern=
with pattern=*
with pattern=*/
with pattern=01/a
with pattern=1/a*b
with pattern=a/b
with pattern=1/a/b
with pattern=*/**
A> CMSG !/notices/on
A> SUB !/presence/{pattern}
A< CMSG !/error\0bad-name {text}
A> CMSG !/members\0{pattern}
A< CMSG !/members\0refused bad-name {text}

== members are listed by user and name
A> CMSG !/join\0b
A< CMSG !/join\0b
B> CMSG !/join\0a-1
B< CMSG !/join\0a-1
C> CMSG !/join\0a
C< CMSG !/join\0a
D> CMSG !/members\0*/*
D< CMSG !/members\0end\n{C.uid} a {C.client} {C.gid} {C.pid}\n{B.uid} a-1 {B.client} {B.gid} {B.pid}\n{A.uid} b {A.client} {A.gid} {A.pid}
D> CMSG !/members\0*/a*
D< CMSG !/members\0end\n{C.uid} a {C.client} {C.gid} {C.pid}\n{B.uid} a-1 {B.client} {B.gid} {B.pid}
D> CMSG !/members\0{A.uid}/a-*
D< CMSG !/members\0end\n{B.uid} a-1 {B.client} {B.gid} {B.pid}
D> CMSG !/members\0*/*\0{A.uid}/a
D< CMSG !/members\0end\n{B.uid} a-1 {B.client} {B.gid} {B.pid}\n{A.uid} b {A.client} {A.gid} {A.pid}

== a client that closes its connection leaves its will behind, then its name
AB> SUB !/presence/*/*
AB> SUB wills/*
C> CMSG !/join\0mortal\0wills/mortal\0I was\0here
C< CMSG !/join\0mortal
AB< MSG !/presence/{C.uid}/mortal\0join {C.client} {C.gid} {C.pid}
C~> MSG wills/alive\0
! close C
AB< MSG wills/alive\0
AB< MSG wills/mortal\0I was\0here
AB< MSG !/presence/{C.uid}/mortal\0leave {C.client} {C.gid} {C.pid} left

== a client that shuts down its sending side leaves
A> SUB !/presence/*/*
B> CMSG !/join\0b\0k\0will
B< CMSG !/join\0b
A> SUB k
! shutdown-write B
B end
A< MSG !/presence/{B.uid}/b\0join {B.client} {B.gid} {B.pid}
A< MSG k\0will
A< MSG !/presence/{B.uid}/b\0leave {B.client} {B.gid} {B.pid} left

== a client that gives its name up leaves no will
A> SUB {}
A> CMSG echo/off
B> CMSG !/join\0careful\0wills/careful\0never
B< CMSG !/join\0careful
B> CMSG !/leave
B< CMSG !/leave\0careful
! close B

== a client that is disconnected leaves for that reason
A> SUB !/presence/*/rude
B> CMSG !/join\0rude
B< CMSG !/join\0rude
B~> HELLO
B end
A< MSG !/presence/{B.uid}/rude\0join {B.client} {B.gid} {B.pid}
A< MSG !/presence/{B.uid}/rude\0leave {B.client} {B.gid} {B.pid} unknown-word
= unknown-word=1

== a client that is kicked leaves for that reason
A> SUB !/presence/*/b
B> CMSG !/join\0b
B< CMSG !/join\0b
admin kick B why
B end
A< MSG !/presence/{B.uid}/b\0join {B.client} {B.gid} {B.pid}
A< MSG !/presence/{B.uid}/b\0leave {B.client} {B.gid} {B.pid} kicked
= kicked=1

== a name is unique among those of a user
A> CMSG !/join\0only
A< CMSG !/join\0only
B> CMSG !/join\0only
B< CMSG !/join\0only\0name-taken {text}
A> CMSG !/join\0other
A< CMSG !/join\0other\0has-name {text}
A> CMSG !/leave
A< CMSG !/leave\0only
B> CMSG !/join\0only
B< CMSG !/join\0only

== a join that is repeated with the same will is published once
A> SUB !/presence/*/*
B> CMSG !/join\0b\0k\0will
B< CMSG !/join\0b
B> CMSG !/join\0b\0k\0will
B< CMSG !/join\0b
B> CMSG !/join\0b\0k\0another
B< CMSG !/join\0b\0has-name {text}
A< MSG !/presence/{B.uid}/b\0join {B.client} {B.gid} {B.pid}

== a join that is refused says why, and there is no notice
with request= reply=\0bad-name
with request=a b reply=a b\0bad-name
with request=a/b reply=a/b\0bad-name
with request={x*65} reply={x*64}\0bad-name
with request=n\0key reply=n\0bad-will
with request=n\0key\0{x*4093} reply=n\0bad-will
with request=n\0!/presence/0/n\0join 1 1 1 reply=n\0reserved
with request=n\0a/!/b\0 reply=n\0reserved
A> CMSG !/notices/on
A> CMSG !/join\0{request}
A< CMSG !/join\0{reply} {text}
A> CMSG !/members\0*/*
A< CMSG !/members\0end

== a name has letters, digits and a few other characters
with name=Z
with name=0
with name=.
with name=_
with name=:
with name=@
with name=+
with name=-
with name=Az09._:@+-
A> SUB !/presence/*/{name}
B> CMSG !/join\0{name}
B< CMSG !/join\0{name}
A< MSG !/presence/{B.uid}/{name}\0join {B.client} {B.gid} {B.pid}
A> CMSG !/members\0*/{name}
A< CMSG !/members\0end\n{B.uid} {name} {B.client} {B.gid} {B.pid}

== the longest name and will are accepted
A> SUB {}
B> CMSG !/join\0{x*64}\0{k*2000}\0{p*2095}
B< CMSG !/join\0{x*64}
! close B
A< MSG {k*2000}\0{p*2095}

== a client that watches itself receives its own joins and leaves, even without echo
A> CMSG echo/off
A> SUB !/presence/*/*
A> CMSG !/join\0a
A< MSG !/presence/{A.uid}/a\0join {A.client} {A.gid} {A.pid}
A< CMSG !/join\0a
A> CMSG !/leave
A< MSG !/presence/{A.uid}/a\0leave {A.client} {A.gid} {A.pid} gave-up
A< CMSG !/leave\0a

== a list of members has a place in the order
A> SUB !/presence/*/*
B> CMSG !/join\01
A~> CMSG !/members\0*/*
B< CMSG !/join\01
A< MSG !/presence/{B.uid}/1\0join {B.client} {B.gid} {B.pid}
A< CMSG !/members\0end\n{B.uid} 1 {B.client} {B.gid} {B.pid}
B> CMSG !/leave
A~> CMSG !/members\0*/*
B< CMSG !/leave\01
A< MSG !/presence/{B.uid}/1\0leave {B.client} {B.gid} {B.pid} gave-up
A< CMSG !/members\0end

== nobody but the bus publishes presence messages
with payload=join 1 1 1
with payload=leave 1 1 1 left
with payload=
A> SUB !/presence/*/*
B> CMSG !/notices/on
B> MSG !/presence/{B.uid}/a\0{payload}
B< CMSG !/error\0reserved {text}

== no ordinary pattern matches presence messages
A> SUB {}
A> SUB */
A> SUB */*/*/*
A> SUB !*/*/*/*
B> CMSG !/join\0quiet
B< CMSG !/join\0quiet
B> CMSG !/leave
B< CMSG !/leave\0quiet

== presence messages have senders
A> CMSG sender/on
A> SUB !/presence/*/*
B> CMSG !/join\0b
B< CMSG !/join\0b
A< CMSG !/from\0{place:1} {B.client} {B.gid} {B.uid} {B.pid} MSG !/presence/{B.uid}/b\0join {B.client} {B.gid} {B.pid}

== a name counts as a subscription
bus: user_subscriptions_max=2
A> CMSG !/join\0a
A< CMSG !/join\0a
B> CMSG !/join\0b
B< CMSG !/join\0b\0too-many-patterns {text}
A> CMSG !/leave
A< CMSG !/leave\0a
B> CMSG !/join\0b
B< CMSG !/join\0b
