# Reserved keys: the segment ! belongs to the protocol
run: workers=1,2

== a reserved key or pattern is refused, and its sender stays
with key=!
with key=!/x
with key=!/cre
with key=a/!
with key=a/!/b
with key=a/!/
with key=!/notices/on
with key=!//
with key=*/!
with key=!/cred/1/2/3
with key=!/cred/01/2/3/x
with key=!/cred/*/2/3/x
with key=!/cred/1/2/3/!/x
with key=!/presence/0/n
AB> CMSG !/notices/on
B> SUB {}
B> SUB */
B> SUB *
A> MSG {key}\0x
A< CMSG !/error\0reserved {text}
A> MSG after\0
B< MSG after\0

== a reserved pattern is refused, and its sender stays
with pattern=!
with pattern=!/
with pattern=!/*
with pattern=!/cre
with pattern=!/notices/on
with pattern=!//
with pattern=!/x
with pattern=a/!
with pattern=a/!/b
with pattern=a/!/
with pattern=a/!/cred/1/2/3/x
with pattern=*/!
A> CMSG !/notices/on
A> SUB {pattern}
A< CMSG !/error\0reserved {text}
A> UNSUB {pattern}
A< CMSG !/error\0reserved {text}
A> MSG {pattern}\0x
A< CMSG !/error\0reserved {text}

== without notices a refusal is silent
A> MSG !/x\0
A> SUB a/!/b
A> UNSUB a/!/b
= reserved=3

== no ordinary pattern matches a reserved key
A> SUB {}
A> SUB *
A> SUB */
A> SUB !*
A> SUB !*/
A> SUB */*/*/*/*/*
A> SUB */cred/
A> SUB !*/cred/
B> MSG {A.cred}/x\0secret

== an exclamation mark within a segment is ordinary
with key=!x
with key=x!
with key=a/!x/b
with key=a/x!
with key=!!
with key=a/!!/
with key=x!/y
AB> SUB {key}
A> MSG {key}\01
AB< MSG {key}\01

== packets around a refused one are served
B> SUB {}
A~> MSG k\01
A~> MSG !/k\02
A~> MSG k\03
A~> SUB a/!
A> MSG k\04
B< MSG k\01
B< MSG k\03
B< MSG k\04
= reserved=2
