#!/bin/bash
# Unpacks packages of Debian 13 into a directory, for programs that are too old in Debian 12, without
# installing them and without touching apt's lists and sources: debian-13.sh DIRECTORY PACKAGE…
set -euo pipefail
directory=$1
shift
apt=$directory.apt
rm -rf "$apt" "$directory"
mkdir -p "$apt"/{sources,lists/partial,cache/archives/partial,packages} "$directory"
apt=$(cd "$apt" && pwd)
"$(dirname "$0")/mirror.sh" debian trixie >"$apt/sources/debian-13.list"
# apt verifies downloads with the signature of the archive.
options=(
    -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources"
    -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache"
    -o Acquire::Languages=none -o APT::Sandbox::User=root
)
apt-get "${options[@]}" --quiet update
(cd "$apt/packages" && apt-get "${options[@]}" --quiet download "$@")
for package in "$apt/packages"/*.deb; do
    dpkg-deb --extract "$package" "$directory"
done
rm -r "$apt"
