//! Recorded behaviour of podman's Go code.

mod filter;
mod hooks;
mod patterns;
