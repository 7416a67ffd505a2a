//! Jobs made of steps, run by the engine of `step-runner`.

mod concrete;
mod ends;
mod flow;
mod legacy;
mod play;
mod processes;
mod recorded;
mod secrets;
