#!/usr/bin/env bash
# Called by cargo as rustdoc (RUSTDOC) for `cargo test --doc`: builds the pages before the examples are
# tested, with the already compiled dependencies, which `cargo doc` would check again. Warnings are errors.
set -euo pipefail

if [[ " $* " = *' --test '* ]]; then
    options=()
    is_value=
    for option; do
        case $is_value$option in
        --test) ;;
        --test-run-directory | --test-args) is_value=1 ;;
        1*) is_value= ;;
        *) options+=("$option") ;;
        esac
    done
    rustdoc "${options[@]}" --deny warnings --out-dir "${CARGO_TARGET_DIR:-target}/doc"
fi
exec rustdoc "$@"
