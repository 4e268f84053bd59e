# The dot dialect: dots separate, keys that begin with ! are reserved, and there is no CMSG
bus: dialect=dot
run: workers=1,2

== a pattern matches by dots
with pattern=a.b key=a.b
with pattern=a.b* key=a.bcd
with pattern=a.*.c. key=a.b.c.d.e
with pattern=a. key=a.
with pattern=*. key=.
with pattern=* key=a/b
with pattern=a/* key=a/b
with pattern=a/* key=a/b/c
with pattern= key=a.b
with pattern= key=a/b.c
with pattern=.* key=.
with pattern=a.! key=a.!
with pattern=a.!.b key=a.!.b
with pattern=a.* key=a.!
with pattern=x! key=x!
with pattern=/!/ key=/!/
with pattern=a/!/b key=a/!/b
with pattern=*.* key=\xff.*
A> SUB {pattern}
B> MSG {key}\0payload
A< MSG {key}\0payload

== a pattern does not match
with pattern=a.b key=a.b.c
with pattern=a/ key=a/b
with pattern=a.*.c key=a.c
with pattern=*. key=a
with pattern=* key=a.b
with pattern=a.*x key=a.yx
A> SUB {pattern}
B> MSG {key}\0payload

== a key that begins with an exclamation mark is refused
with key=!
with key=!x
with key=!.x
with key=!cred.1.2.3
with key=!/cred/1/2/3/x
AB> SUB {}
AB> SUB *
A> MSG {key}\01
A> SUB {key}
A> UNSUB {key}
A> MSG after\0
AB< MSG after\0
= reserved=3

== there are no control messages
with key=!/cred/whoami
with key=echo/off
with key=echo.off
with key={}
with key=!/notices/on
B> SUB {}
A> CMSG {key}
A end
= unknown-word=1

== a publisher receives its own messages
A> SUB a.*
A> MSG a.b\01
A< MSG a.b\01
A> UNSUB a.*
A> MSG a.b\02

== the choices of the bus hold
bus: hard=error socket_buffer_bytes=20000 packet_bytes_max=8000 backlog_messages_max=1
A> SUB k
A| full
B> MSG k\01
B> MSG k\02
A end
= too-slow=1
