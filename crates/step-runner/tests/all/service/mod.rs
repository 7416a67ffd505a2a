//! The server of `step-runner`, called by real gRPC clients over its socket and through its proxy.

mod abuse;
mod cancel;
mod client;
mod clients;
mod health;
mod jobs;
mod killed;
mod launcher;
mod leaving;
mod library;
mod life;
mod limits;
mod log_format;
mod program;
mod removal;
mod restart;
mod secrets;
mod setup;
mod socket;
mod stalls;
mod steps;
mod submit;
mod variables;
mod vectors;
