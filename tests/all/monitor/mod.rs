//! `hooks::Monitor` and `oci-hooks monitor` against real directories.

mod devices;
mod library;
mod links;
mod process;
mod program;
mod support;
