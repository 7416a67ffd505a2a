#!/usr/bin/env bash
# Checks that each package uploaded by `cargo publish` contains all files that its library, programs and
# examples are compiled from: published.sh MESSAGES, where MESSAGES is the JSON output of cargo's build.
set -euo pipefail
messages=$(realpath "$1")
cd "$(dirname "$0")/../.."

# A program's name is a hard link to rustc's output, which has a file beside it with the list of inputs.
inputs() {
    local file
    while read -r file; do
        case $file in
        *.rlib) file=$(dirname "$file")/$(basename "$file" .rlib | sed 's/^lib//') ;;
        *) file=$(find "$(dirname "$file")" "$(dirname "$file")/deps" -maxdepth 1 -samefile "$file" ! -path "$file" -print -quit) ;;
        esac
        # Spaces in paths are escaped. Each input has a line with an empty right-hand side.
        sed -n 's/\\ / /g; s/:$//p' "${file}.d"
    done
}

failed=0
while read -r manifest; do
    directory=$(dirname "$manifest")
    used=$(jq --raw-output --arg manifest "$manifest" 'select(.reason == "compiler-artifact"
        and .manifest_path == $manifest and (.profile.test | not) and (.target.kind | inside(["lib", "bin", "example"])))
        | .filenames[] | select(endswith(".rmeta") | not)' "$messages" | inputs |
        xargs --delimiter '\n' realpath --canonicalize-missing --relative-to "$directory" |
        grep --invert-match --extended-regexp '/target/|^target/|clippy\.toml$|^../../Cargo\.toml$' | sort --unique)
    [ -n "$used" ] || {
        echo "error: $1 names no files of $manifest" >&2
        exit 1
    }
    missing=$(comm -23 <(echo "$used") <(cargo package --locked --allow-dirty --list --manifest-path "$manifest" | sort))
    if [ -n "$missing" ]; then
        echo "error: these files are compiled, but not in the package of $directory: see \`include\` in Cargo.toml" >&2
        echo "$missing" >&2
        failed=1
    fi
done < <(cargo metadata --locked --no-deps --format-version 1 |
    jq --raw-output '.packages[] | select(.publish != []) | .manifest_path')
exit "$failed"
