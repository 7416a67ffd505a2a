#!/bin/sh
# Runs crun for an engine that writes a version of the runtime specification which the crun of Debian 12
# does not know yet, and that differs in nothing that it uses: containerd 1.7 is such an engine.
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
