#!/bin/bash
# Not dash, which drops variables such as CARGO_BIN_EXE_oci-hooks.
# Cargo calls it in place of rustc for this package alone (RUSTC_WORKSPACE_WRAPPER): programs are linked statically. The
# library is told so too, since it then looks names up in another way. Without a name of a crate Cargo asks about the target.
case ${CARGO_CRATE_NAME:-} in
'' | build_script_*) exec "$@" ;;
*) exec "$@" -C target-feature=+crt-static -C strip=symbols ;;
esac
