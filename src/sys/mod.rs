//! The host: errors, files, processes. Everything above talks to the system through here or `std`.

pub mod error;
pub mod fs;
pub mod lock;
pub mod process;
pub mod rollback;
