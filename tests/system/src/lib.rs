//! An empty library. Tests that span several crates are in `tests`.
