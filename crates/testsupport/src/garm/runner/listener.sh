#!/bin/sh
# Fake of the runner's listener: records its input, and runs the job in `.runner`. A job that begins with
# `#deaf` runs without a session. A job writes the exit code of the listener to `.code`, if it is not 0.
# before
if [ "$1" = --version ]; then
    echo 2.328.0
    exit 0
fi
root=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" = 0 ] && [ -z "$RUNNER_ALLOW_RUNASROOT" ]; then
    echo "Must not run interactively with sudo"
    exit 1
fi
say() { echo "@ $*"; }
say begin
say argv "$0 $*"
say root "$root"
say user "$(id -u):$(id -g)"
say groups "$(id -G)"
tr '\0' '\n' <"/proc/$$/environ" | sed 's/^/@ env /'
for file in .runner .credentials .credentials_rsaparams .env .path; do
    [ -e "$root/$file" ] || continue
    real=$(readlink -f "$root/$file")
    say file "$file $(stat -L -c '%a %u:%g' "$root/$file") $(stat -f -c %T "$real") $real"
done
for process in /proc/[0-9]*; do
    say process "${process#/proc/} $(tr '\0' ' ' 2>/dev/null <"$process/cmdline")"
    tr '\0' '\n' 2>/dev/null <"$process/environ" | sed "s/^/@ environ /"
done
mkdir -p "$root/_diag" "$root/_work" && echo log >"$root/_diag/Runner.log" && say writes yes
job=$(sed -n 's/.*"Job": *"\([^"]*\)".*/\1/p' "$root/.runner" | base64 -d)
say job "$job"
cd "$root/_work" || exit 1
case $job in
    '#deaf'*) sh -c "$job"; exit ;;
esac
echo "Connected to GitHub"
echo "Current runner version: '2.328.0'"
echo "$(date -u '+%F %TZ'): Listening for Jobs"
sh -c "$job"
say end "$?"
[ -e .code ] || exit 0
code=$(cat .code)
rm .code
exit "$code"
