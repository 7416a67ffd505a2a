//! Jobs made of steps, run by the engine of `step-runner`.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

mod concrete;
mod ends;
mod flow;
mod legacy;
mod play;
mod processes;
mod recorded;
mod secrets;
