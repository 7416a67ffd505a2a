# shellcheck shell=sh
# Sourced by the hook programs in this directory: reads the container state from standard input,
# with only the shell's own features.
#
# This is not a JSON parser. It relies on the output of runc, crun and youki: no space around colons,
# and "annotations", the only member that a container's user controls, last. A quotation mark in a
# string is written \", so no string can look like a member.

state=$(cat)
own=${state%%',"annotations":'*}
program=${0##*/}

# Fails the hook with a message, which stops the container in stages before its start.
fail() {
    echo "$program: $*" >&2
    exit 1
}

# Prints a member with a string value: id, status or bundle.
state_string() {
    member=${own#*"\"$1\":\""}
    [ "$member" != "$own" ] || fail "the state has no $1"
    echo "${member%%\"*}"
}

# Prints the process id of the container's first process, in the host's PID namespace.
state_pid() {
    member=${own#*'"pid":'}
    [ "$member" != "$own" ] || fail "the state has no pid"
    echo "${member%%[!0-9]*}"
}

# Prints the value of an annotation. Values with escaped characters are rejected.
annotation() {
    user=${state#"$own"}
    value=${user#*"\"$1\":\""}
    [ "$value" != "$user" ] || fail "there is no annotation $1"
    value=${value%%\"*}
    case $value in *\\*) fail "annotation $1 has a character that is not allowed" ;; esac
    echo "$value"
}

# Succeeds if a process is in another namespace (net, mnt, pid …) than this program.
has_own_namespace() {
    [ "$(readlink "/proc/$1/ns/$2")" != "$(readlink "/proc/self/ns/$2")" ]
}
