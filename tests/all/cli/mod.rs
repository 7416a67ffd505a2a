//! The program `oci-hooks`, run as a user would: output, exit codes, files written.

mod containers;
mod devices;
mod directories;
mod doctor;
mod env;
mod events;
mod explain;
mod inject;
mod library;
mod list;
mod man;
mod manage;
mod migrate;
mod pattern;
mod picture;
mod schema;
mod terminal;
mod validate;
