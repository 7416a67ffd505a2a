#!/bin/sh
# Fake of the runner's run.sh, which GARM's instances start: restarts the listener after updates, and always
# exits with 0.
echo "@ cwd $(pwd)"
here=$(cd "$(dirname "$0")" && pwd)
while :; do
    "$here/bin/Runner.Listener" run "$@"
    code=$?
    case $code in
        0) echo "Runner listener exit with 0 return code, stop the service, no retry needed." ;;
        1) echo "Runner listener exit with terminated error, stop the service, no retry needed." ;;
        2) echo "Runner listener exit with retryable error, re-launch runner in 5 seconds." ;;
        3 | 4) echo "Runner listener exit because of updating, re-launch runner after successful update" ;;
        5) echo "Runner listener exit with Session Conflict error, stop the service, no retry needed." ;;
        *) echo "Exiting with unknown error code: $code" ;;
    esac
    case $code in
        2 | 3 | 4) echo "Restarting runner..." ;;
        *) echo "Exiting runner..."; exit 0 ;;
    esac
done
