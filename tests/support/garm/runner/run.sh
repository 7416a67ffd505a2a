#!/bin/sh
# Stands in for the runner's own script, which GARM's instances start.
echo "@ cwd $(pwd)"
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/bin/Runner.Listener" run "$@"
