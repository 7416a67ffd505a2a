//! The host: files, processes. Everything above talks to the system through here or `std`.

pub mod fs;
pub mod process;
