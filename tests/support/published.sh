#!/usr/bin/env bash
# Checks that the package that `cargo publish` would upload has every file that library, programs and examples are
# compiled of: published.sh MESSAGES, where MESSAGES is what cargo printed as JSON when it built them.
set -euo pipefail
messages=$(realpath "$1")
cd "$(dirname "$0")/../.."

# A program's name is a link to a file that rustc names, with a file beside it that lists what was read.
inputs() {
    local file
    while read -r file; do
        case $file in
        *.rlib) file=$(dirname "$file")/$(basename "$file" .rlib | sed 's/^lib//') ;;
        *) file=$(find "$(dirname "$file")" "$(dirname "$file")/deps" -maxdepth 1 -samefile "$file" ! -path "$file" -print -quit) ;;
        esac
        # Spaces in paths are escaped, each input has a line with nothing after the colon.
        sed -n 's/\\ / /g; s/:$//p' "${file}.d"
    done
}
used=$(jq --raw-output 'select(.reason == "compiler-artifact" and (.manifest_path | startswith($ENV.PWD))
    and (.profile.test | not) and (.target.kind | inside(["lib", "bin", "example"])))
    | .filenames[] | select(endswith(".rmeta") | not)' "$messages" | inputs |
    xargs --delimiter '\n' realpath --canonicalize-missing --relative-to . | grep --invert-match '^\.\./\|^target/\|^clippy\.toml$' |
    sort --unique)
[ -n "$used" ] || {
    echo "error: $1 names no files" >&2
    exit 1
}
missing=$(comm -23 <(echo "$used") <(cargo package --locked --allow-dirty --list | sort))
if [ -n "$missing" ]; then
    echo "error: these files are compiled, but not in the package: see \`include\` in Cargo.toml" >&2
    echo "$missing" >&2
    exit 1
fi
