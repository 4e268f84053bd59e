# Receipts: the publisher learns how many clients have its message

== the receipt tells of how many clients have the message
ABC> SUB k
D> CMSG !/publish\0token\0k\01
D< CMSG !/receipt\0token\03 0 0
ABC< MSG k\01

== the publisher counts, too, if it receives the message
AB> SUB k
A> CMSG !/publish\01\0k\0payload
A< MSG k\0payload
A< CMSG !/receipt\01\02 0 0
A> CMSG echo/off
A> CMSG !/publish\02\0k\0payload
A< CMSG !/receipt\02\01 0 0
B< MSG k\0payload
B< MSG k\0payload

== nobody receives a message without recipients
with key=nobody
with key=
with key=!/cred/4294967290///s
A> CMSG !/publish\0t\0{key}\0payload
A< CMSG !/receipt\0t\00 0 0

== a token has 1 to 64 bytes, and may be used several times
with token=t
with token={x*64}
with token=\x01\xff
A> SUB k
A~> CMSG !/publish\0{token}\0k\0
A~> CMSG !/publish\0{token}\0k\0\0
A< MSG k\0
A< CMSG !/receipt\0{token}\01 0 0
A< MSG k\0\0
A< CMSG !/receipt\0{token}\01 0 0

== a message with a receipt is like any other
A> CMSG sender/on
A> SUB k
B> CMSG !/publish\0t\0k\0a\0b
A< CMSG !/from\0{n} {B.client} {B.gid} {B.uid} {B.pid} MSG k\0a\0b
B< CMSG !/receipt\0t\01 0 0

== a message that is refused has a receipt that says why, and no notice
with key=!/x
with key=a/!
with key=!/presence/0/n
A> CMSG !/notices/on
B> SUB {}
A> CMSG !/publish\0t\0{key}\0x
A< CMSG !/receipt\0t\0refused reserved {text}

== what would disconnect as a message disconnects as a request
with request=\0t\0{k*4097}\0 code=key-too-long
with request=\0t\0{k/*128}\0 code=key-too-deep
with request=\0t\0k code=no-nul
with request=\0t code=no-nul
with request=\0\0k\0 code=bad-token
with request=\0{x*65}\0k\0 code=bad-token
with request= code=bad-token
A> CMSG !/notices/on
B> SUB {}
A~> CMSG !/publish{request}
A< CMSG !/error\0{code} {text}
A end

== receipts of messages for the same clients come in the order of these
AB> SUB k
C~> CMSG !/publish\01\0k\01
C~> CMSG !/publish\02\0k\02
C~> CMSG !/publish\03\0k\03
C< CMSG !/receipt\01\02 0 0
C< CMSG !/receipt\02\02 0 0
C< CMSG !/receipt\03\02 0 0
AB< MSG k\01
AB< MSG k\02
AB< MSG k\03

== a receipt comes before the next packet where the publisher's worker serves all recipients
run: place=same
A> SUB k
B~> CMSG !/publish\01\0k\01
B~> CMSG !/sync\01
B~> CMSG !/publish\02\0k\02
B~> CMSG !/sync\02
B< CMSG !/receipt\01\01 0 0
B< CMSG !/sync\01
B< CMSG !/receipt\02\01 0 0
B< CMSG !/sync\02
A< MSG k\01
A< MSG k\02

== a message in a backlog waits, and one that is dropped is lost
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=1
A> CMSG !/notices/on
AB> SUB k
A| full
C> CMSG !/publish\01\0k\01
C< CMSG !/receipt\01\01 1 0
C> CMSG !/publish\02\0k\02
C< CMSG !/receipt\02\01 0 1
A< MSG k\01
A< CMSG !/lost\01
B< MSG k\01
B< MSG k\02

== a message that the socket has no room for and is not to wait is lost
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=1
run: workers=2
A> CMSG blocking/soft/discard
A> SUB k
A| full
B> CMSG !/publish\0t\0k\0
B< CMSG !/receipt\0t\00 0 1
= A.lost=1

== a message that disconnects its recipient is lost
bus: socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=1
run: workers=2
A> CMSG blocking/soft/error
A> SUB k
A| full
B> CMSG !/publish\0t\0k\0
B< CMSG !/receipt\0t\00 0 1
A end
= too-slow=1
