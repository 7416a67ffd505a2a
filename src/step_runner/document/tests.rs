//! Step files that GitLab's step runner accepts and rejects, and messages about mistakes.

mod lint;
mod messages;
mod schema;
mod vectors;
mod yaml;
