# Keys and patterns: which messages a subscription receives
run: workers=1,2

== a pattern matches
with pattern=a/b key=a/b
with pattern=a/b* key=a/b
with pattern=a/b* key=a/bcd
with pattern=a/*/c key=a/x/c
with pattern=a/*/c key=a//c
with pattern=a/*/c/ key=a/b/c/
with pattern=a/*/c/ key=a/b/c/d/e
with pattern=* key=a
with pattern=* key=
with pattern=*/ key=a/
with pattern=*/ key=a/b/c
with pattern=*/ key=/
with pattern= key=a/b
with pattern= key=
with pattern= key=/
with pattern=a** key=abc
with pattern=/ key=/x
with pattern=a// key=a//b
with pattern=\xff* key=\xff\n\x01
with pattern=a/*/*/d key=a/b//d
A> SUB {pattern}
B> MSG {key}\0payload
A< MSG {key}\0payload

== a pattern does not match
with pattern=a/b key=a
with pattern=a/b key=a/b/
with pattern=a/b key=a/b/c
with pattern=a/b key=a/bc
with pattern=a/b* key=a/c
with pattern=a/b* key=a/bcd/e
with pattern=a/*/c key=a/c
with pattern=a/*/c key=a/x/y/c
with pattern=a/*/c/ key=a/b/c
with pattern=a/*/c/ key=a/c/d
with pattern=* key=a/b
with pattern=* key=/
with pattern=*/ key=a
with pattern=a/*x key=a/x
with pattern=a/*x key=a/yx
with pattern=a/*x key=a/*x
with pattern=a*b/ key=ab/
with pattern=a key=A
with pattern=*b*/ key=b/c
with pattern=a/ key=a
with pattern=/ key=x
A> SUB {pattern}
B> MSG {key}\0payload

== a star in a key stands for itself
A> SUB a/b
B> SUB a/*
C> MSG a/*\01
B< MSG a/*\01

== the longest and deepest keys and patterns are in use
with key={k*4096}
with key={k/*127}k
with key={k/*127}
A> CMSG !/notices/on
A> SUB {key}
B> MSG {key}\0payload
A< MSG {key}\0payload
A> UNSUB {key}

== a segment begins with what stands before the star
A> SUB host/web*/cpu/
B> MSG host/web3/cpu/0/busy\01
B> MSG host/db1/cpu/0/busy\02
B> MSG host/web/cpu/\03
B> MSG host/web3/cpu\04
A< MSG host/web3/cpu/0/busy\01
A< MSG host/web/cpu/\03
