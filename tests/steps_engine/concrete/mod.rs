//! `builtin://concrete`: whole jobs, with real repositories and GitLab's program played.

mod end;
mod hostile;
mod job;
mod programs;
mod scripts;
mod sources;
mod user_steps;
