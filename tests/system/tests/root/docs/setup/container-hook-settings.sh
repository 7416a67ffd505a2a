#!/bin/bash
# What docs/container-hook-settings.md presumes: container-hook is installed, and a runner of GitHub's in its directory.
set -euo pipefail
install --directory --owner runner --group runner /home/runner/actions-runner
apt-get install --quiet --yes --no-install-recommends /home/runner/container-hook_*.deb uidmap >/dev/null
