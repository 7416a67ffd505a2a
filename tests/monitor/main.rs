//! `hooks::Monitor` and `oci-hooks monitor` against real directories.

mod library;
mod links;
mod program;
mod support;
