//! The progress of a pull.
