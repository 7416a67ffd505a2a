//! `builtin://concrete`: whole jobs, with real repositories and a fake of GitLab's program.

mod end;
mod hostile;
mod job;
mod programs;
mod scripts;
mod sources;
mod user_steps;
