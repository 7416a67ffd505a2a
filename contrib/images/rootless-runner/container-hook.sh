#!/bin/sh
# The script that the runner calls as its hook.
exec /usr/local/bin/container-hook "$@"
