//! The program `oci-hooks`, run as a user would: output, exit codes, files written.

mod env;
mod explain;
mod inject;
mod list;
