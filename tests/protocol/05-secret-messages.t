# Secret messages: keys that say who may receive them
# 4294967290 is an id that nobody here has.
run: workers=1,2

== ids of a subscription against ids of a key: the receivers of each key
A> SUB !/cred////s
B> SUB !/cred/{A.gid}///s
C> SUB !/cred//{A.uid}//s
D> SUB !/cred///{A.pid}/s
E> SUB !/cred/{A.gid}/{A.uid}//s
F> SUB !/cred/{A.gid}//{A.pid}/s
G> SUB !/cred//{A.uid}/{A.pid}/s
H> SUB {A.cred}/s
I> MSG !/cred////s\0000
A< MSG !/cred////s\0000
I> MSG !/cred/{A.gid}///s\0100
AB< MSG !/cred/{A.gid}///s\0100
I> MSG !/cred//{A.uid}//s\0010
AC< MSG !/cred//{A.uid}//s\0010
I> MSG !/cred///{A.pid}/s\0001
AD< MSG !/cred///{A.pid}/s\0001
I> MSG !/cred/{A.gid}/{A.uid}//s\0110
ABCE< MSG !/cred/{A.gid}/{A.uid}//s\0110
I> MSG !/cred/{A.gid}//{A.pid}/s\0101
ABDF< MSG !/cred/{A.gid}//{A.pid}/s\0101
I> MSG !/cred//{A.uid}/{A.pid}/s\0011
ACDG< MSG !/cred//{A.uid}/{A.pid}/s\0011
I> MSG {A.cred}/s\0111
ABCDEFGH< MSG {A.cred}/s\0111

== a message that names another's id is for nobody here
with key=!/cred/4294967290///s
with key=!/cred//4294967290//s
with key=!/cred///4294967290/s
with key=!/cred/4294967290/{A.uid}//s
with key=!/cred/4294967290//{A.pid}/s
with key=!/cred/{A.gid}/4294967290//s
with key=!/cred//4294967290/{A.pid}/s
with key=!/cred/{A.gid}//4294967290/s
with key=!/cred//{A.uid}/4294967290/s
with key=!/cred/4294967290/{A.uid}/{A.pid}/s
with key=!/cred/{A.gid}/4294967290/{A.pid}/s
with key=!/cred/{A.gid}/{A.uid}/4294967290/s
with key=!/cred/4294967290/4294967290//s
with key=!/cred/4294967290//4294967290/s
with key=!/cred//4294967290/4294967290/s
with key=!/cred/4294967290/4294967290/{A.pid}/s
with key=!/cred/4294967290/{A.uid}/4294967290/s
with key=!/cred/{A.gid}/4294967290/4294967290/s
with key=!/cred/4294967290/4294967290/4294967290/s
A> SUB !/cred////s
B> SUB !/cred/{A.gid}///s
C> SUB !/cred//{A.uid}//s
D> SUB !/cred///{A.pid}/s
E> SUB !/cred/{A.gid}/{A.uid}//s
F> SUB !/cred/{A.gid}//{A.pid}/s
G> SUB !/cred//{A.uid}/{A.pid}/s
H> SUB {A.cred}/
I> SUB {}
AI> MSG {key}\0secret

== the rest of a secret pattern matches as any pattern does
with rest= key=a/b
with rest=a/ key=a/b
with rest=a/* key=a/b
with rest=a* key=abc
with rest=a/*/ key=a/b/c
with rest=!/cred/1/2/3/x key=!/cred/1/2/3/x
with rest=!/cred/*/2/*/x key=!/cred/1/2/3/x
with rest=!/cred///2/x key=!/cred///2/x
A> SUB !/cred////{rest}
B> MSG {A.cred}/{key}\0secret
A< MSG {A.cred}/{key}\0secret

== the rest of a secret pattern does not match
with rest=a key=a/b
with rest=a/ key=a
with rest=!/cred/1//3/x key=!/cred/1/2/3/x
A> SUB !/cred////{rest}
B> MSG {A.cred}/{key}\0secret

== further parts of a pattern are ids, or stars
with rest=!/cred/1*/2/3/x
with rest=!/cred/1/2
with rest=!/x
A> CMSG !/notices/on
A> SUB !/cred////{rest}
A< CMSG !/error\0reserved {text}

== an invalid secret pattern ends the connection
with pattern=!/cred/*/*/*/
with pattern=!/cred/
with pattern=!/cred/1/2/3
with pattern=!/cred/00///
with pattern=!/cred/1*///
A> CMSG !/notices/on
A~> SUB {pattern}
A< CMSG !/error\0bad-secret-pattern {text}
A end

== another's id in a pattern ends the connection
with pattern=!/cred/4294967290///
with pattern=!/cred//4294967290//
with pattern=!/cred///4294967290/
with pattern=!/cred///1/
with pattern=!/cred/{A.gid}/{A.uid}/4294967290/
A> CMSG !/notices/on
A~> SUB {pattern}
A< CMSG !/error\0not-yours {text}
A end

== the same holds where it is undone
with pattern=!/cred/*/*/*/ code=bad-secret-pattern
with pattern=!/cred/ code=bad-secret-pattern
with pattern=!/cred/1/2/3 code=bad-secret-pattern
with pattern=!/cred/00/// code=bad-secret-pattern
with pattern=!/cred/4294967290/// code=not-yours
with pattern=!/cred//4294967290// code=not-yours
with pattern=!/cred///4294967290/ code=not-yours
with pattern=!/cred///1/ code=not-yours
A> CMSG !/notices/on
A~> UNSUB {pattern}
A< CMSG !/error\0{code} {text}
A end

== an unsubscription names the same pattern as its subscription
A> SUB !/cred////a/
A> SUB !/cred////a/
A>? UNSUB {A.cred}/a/
A> UNSUB !/cred////a/
A> MSG {A.cred}/a/b\01
A< MSG {A.cred}/a/b\01
A> UNSUB !/cred////a/
A> MSG {A.cred}/a/b\02
A>? UNSUB !/cred////a/

== echo is off for secret messages, too
AB> SUB {A.cred}/s
A> CMSG echo/off
A> MSG {A.cred}/s\01
B< MSG {A.cred}/s\01
