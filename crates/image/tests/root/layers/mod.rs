//! Layers and the store, with hostile archives and killed processes, compared with GNU tar and
//! umoci. Owners, devices and whiteouts need root.
//!
//! The threats are listed in `SECURITY.md`.

mod archive;
mod beneath;
mod bombs;
mod compare;
mod import;
mod store;
