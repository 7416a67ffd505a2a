#!/usr/bin/env bash
# Installs a newer Python gRPC library than Debian 12's, which sends the path of a Unix socket as
# `:authority`, into a directory, by default target/grpcio.
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${1:-target/grpcio}
[ ! -x "$dir/bin/python" ] || exit 0
python3 -m venv "$dir.part"
"$dir.part/bin/pip" install --quiet --disable-pip-version-check 'grpcio==1.85.1' 'protobuf==6.*'
# Its scripts contain the directory's path, but no script is run here.
mv "$dir.part" "$dir"
