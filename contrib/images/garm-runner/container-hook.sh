#!/bin/sh
# What the runner starts as its hook.
exec /usr/local/bin/container-hook "$@"
