//! The first process of job containers, tested without a container: as an ordinary process, and as
//! the first of a PID namespace.

#![expect(clippy::unwrap_used, reason = "what cannot go on in a test has failed")]

mod cancel;
mod connection;
mod endurance;
mod first;
mod hostile;
mod kept;
mod output;
mod run;
