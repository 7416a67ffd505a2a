//! Step files that GitLab's step runner accepts and rejects, and messages for mistakes.

mod lint;
mod messages;
mod schema;
mod vectors;
mod yaml;
