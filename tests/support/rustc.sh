#!/bin/bash
# Called by cargo as rustc for the packages of this repository (RUSTC_WORKSPACE_WRAPPER): lints what it compiles, and links
# programs statically, as in a release. Libraries get the same options, because they resolve names differently in static
# programs. Not dash, which drops variables such as CARGO_BIN_EXE_oci-hooks.
# Without a crate name, cargo queries the target.
case "${CARGO_CRATE_NAME:-} $* " in
' '* | build_script_* | *' --test '*) exec clippy-driver "$@" ;;
*) exec clippy-driver "$@" -C target-feature=+crt-static -C strip=debuginfo ;;
esac
