#!/bin/bash
# Not dash, which drops variables such as CARGO_BIN_EXE_oci-hooks.
# Called by cargo as rustc for this package only (RUSTC_WORKSPACE_WRAPPER): links programs statically. The
# library gets the same options, because it resolves names differently in static programs. Without a crate
# name cargo queries the target.
case ${CARGO_CRATE_NAME:-} in
'' | build_script_*) exec "$@" ;;
*) exec "$@" -C target-feature=+crt-static -C strip=symbols ;;
esac
