//! What GitLab's step runner takes and refuses, and what is said about mistakes.

mod lint;
mod messages;
mod schema;
mod vectors;
