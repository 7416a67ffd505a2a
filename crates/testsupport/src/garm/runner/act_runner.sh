#!/bin/sh
# Fake of Gitea's runner: records its input, and runs the job that the token contains.
say() { echo "@ $*"; }
command=
url=
token=
# new
token=$GITEA_RUNNER_REGISTRATION_TOKEN
name=
labels=
flags=
while [ $# -gt 0 ]; do
    case $1 in
        --help) exit 0 ;;
        --version) echo "act_runner version v0.2.13"; exit 0 ;;
        register | daemon) command=$1 ;;
        --instance) url=$2; shift ;;
        --token) token=$2; shift ;;
        # new
        --token-file) token=$(cat "$2"); shift ;;
        --name) name=$2; shift ;;
        --labels) labels=$2; shift ;;
        --config) shift ;;
        --ephemeral | --no-interactive | --once) flags="$flags${1#--} " ;;
        *) echo "Error: unknown flag: $1"; exit 1 ;;
    esac
    shift
done
for flag in $flags; do
    say flag "$flag"
done
case $command in
    register)
        case $flags in
            *no-interactive*) ;;
            # The real runner prompts for missing values.
            *) [ -n "$token" ] || read -r token; [ -n "$labels" ] || read -r labels ;;
        esac
        case $token in
            REG.*) ;;
            *) echo "Error: registration token not found"; exit 1 ;;
        esac
        say config "register url=$url name=$name labels=$labels"
        umask 077
        printf '{"id": 5, "name": "%s", "token": "canary-gitea", "Job": "%s"}\n' "$name" "${token##*.}" >.runner
        ;;
    daemon)
        say cwd "$(pwd)"
        say begin
        say user "$(id -u):$(id -g)"
        tr '\0' '\n' <"/proc/$$/environ" | sed 's/^/@ env /'
        for process in /proc/[0-9]*; do
            say process "${process#/proc/} $(tr '\0' ' ' 2>/dev/null <"$process/cmdline")"
            tr '\0' '\n' 2>/dev/null <"$process/environ" | sed "s/^/@ environ /"
        done
        job=$(sed -n 's/.*"Job": *"\([^"]*\)".*/\1/p' .runner | base64 -d)
        say job "$job"
        echo "time=now level=info msg=\"runner: x, with version: v0.2.13, with labels: [x], declare successfully\"" >&2
        sh -c "$job"
        code=$?
        say end "$code"
        exit "$code"
        ;;
    *) echo "no command"; exit 1 ;;
esac
