# shellcheck shell=sh
# Sourced by the hook programs beside it: reads the container state that the runtime writes to
# standard input, with the shell's own means.
#
# This is no JSON parser. It relies on what runc, crun and youki do: no space around colons, and
# "annotations", the one member that a container's user fills, last. A quotation mark inside a
# string is written \", so no string can look like a member.

state=$(cat)
own=${state%%',"annotations":'*}
program=${0##*/}

# Ends the hook, and in the stages before start the container as well, with a message.
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

# Prints the process id of the container's first process, as this host sees it.
state_pid() {
    member=${own#*'"pid":'}
    [ "$member" != "$own" ] || fail "the state has no pid"
    echo "${member%%[!0-9]*}"
}

# Prints the value of an annotation. A value with an escaped character is refused.
annotation() {
    user=${state#"$own"}
    value=${user#*"\"$1\":\""}
    [ "$value" != "$user" ] || fail "there is no annotation $1"
    value=${value%%\"*}
    case $value in *\\*) fail "annotation $1 has a character that is not allowed" ;; esac
    echo "$value"
}

# Succeeds if a process has a namespace (net, mnt, pid …) of its own, and not this program's.
has_own_namespace() {
    [ "$(readlink "/proc/$1/ns/$2")" != "$(readlink "/proc/self/ns/$2")" ]
}
