#!/bin/sh
# Runs crun for an engine that writes a newer version of the runtime specification than Debian 12's crun
# knows, but uses no new feature: for example containerd 1.7.
bundle=
before=
for argument in "$@"; do
    [ "$before" != --bundle ] || bundle=$argument
    before=$argument
done
if [ -n "$bundle" ]; then
    sed -i 's/^{"ociVersion":"[0-9.]*"/{"ociVersion":"1.0.2"/' "$bundle/config.json"
fi
exec "$(dirname "$0")/crun.sh" "$@"
