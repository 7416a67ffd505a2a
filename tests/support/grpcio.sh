#!/usr/bin/env bash
# Installs a Python library for gRPC that is newer than Debian 12's into a directory, by default
# target/grpcio: one that names a Unix socket by its path in `:authority`.
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${1:-target/grpcio}
[ ! -x "$dir/bin/python" ] || exit 0
python3 -m venv "$dir.part"
"$dir.part/bin/pip" install --quiet --disable-pip-version-check 'grpcio==1.85.1' 'protobuf==6.*'
# Scripts in it name the directory that it is in; nothing here runs them.
mv "$dir.part" "$dir"
