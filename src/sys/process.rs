//! Child processes with deadlines.
