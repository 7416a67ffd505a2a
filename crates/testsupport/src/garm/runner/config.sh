#!/bin/sh
# Fake of the runner's config.sh: takes options from the command line or the runner's environment variables,
# and stores the job that the token contains.
root=$(cd "$(dirname "$0")" && pwd)
if [ "$(id -u)" = 0 ] && [ -z "$RUNNER_ALLOW_RUNASROOT" ]; then
    echo "Must not run with sudo"
    exit 1
fi
url=$ACTIONS_RUNNER_INPUT_URL
token=$ACTIONS_RUNNER_INPUT_TOKEN
name=$ACTIONS_RUNNER_INPUT_NAME
labels=$ACTIONS_RUNNER_INPUT_LABELS
group=$ACTIONS_RUNNER_INPUT_RUNNERGROUP
flags=$(env | sed -n 's/^ACTIONS_RUNNER_INPUT_\([A-Z_-]*\)=true$/\1/pI' | tr 'A-Z_' 'a-z-' | tr '\n' ' ')
command=configure
while [ $# -gt 0 ]; do
    case $1 in
        remove) command=remove ;;
        --url) url=$2; shift ;;
        --token) token=$2; shift ;;
        --name) name=$2; shift ;;
        --labels) labels=$2; shift ;;
        --runnergroup) group=$2; shift ;;
        --work) shift ;;
        --*) flags="$flags${1#--} " ;;
        *) echo "Unrecognized command-line input arguments: '$1'"; exit 1 ;;
    esac
    shift
done
echo "@ config $command url=$url name=$name labels=$labels group=$group"
for flag in $flags; do
    echo "@ flag $flag"
done
if [ "$command" = remove ]; then
    rm -f "$root/.runner" "$root/.credentials" "$root/.credentials_rsaparams"
    exit 0
fi
case $token in
    REG.*) ;;
    *) echo "Http response code: NotFound from 'POST $url'"; exit 1 ;;
esac
if [ -e "$root/.runner" ]; then
    echo "Cannot configure the runner because it is already configured."
    exit 1
fi
umask 077
job=${token##*.}
# The real runner writes a byte order mark, too.
printf '\357\273\277{\n  "agentId": 77,\n  "agentName": "%s",\n  "Job": "%s"\n}' "$name" "$job" >"$root/.runner"
echo '{"scheme": "OAuth"}' >"$root/.credentials"
echo '{"d": "canary-registered"}' >"$root/.credentials_rsaparams"
echo "Settings Saved."
