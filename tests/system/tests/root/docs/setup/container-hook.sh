#!/bin/bash
# What docs/container-hook.md presumes: a runner of GitHub's in its directory.
set -euo pipefail
install --directory --owner runner --group runner /home/runner/actions-runner
