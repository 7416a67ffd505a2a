#!/usr/bin/env bash
# Cargo calls it in place of rustdoc (RUSTDOC) for `cargo test --doc`: the pages are made before the examples are tested,
# of dependencies that are compiled already. `cargo doc` would check all of them again. Warnings are errors.
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
