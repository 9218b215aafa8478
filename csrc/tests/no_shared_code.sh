#!/bin/sh
# Fails if an object compiled for a newer instruction set holds a function that the linker may merge with copies from other
# objects: an older machine could then run it. Usage: no_shared_code.sh NM OBJECT...
nm=$1
shift
[ $# -gt 0 ] || { echo "no objects"; exit 1; }
symbols=$("$nm" -C "$@") || exit 1
shared=$(echo "$symbols" | grep -E ' W ')
[ -z "$shared" ] && exit 0
echo "$shared"
exit 1
