//! The program `oci-hooks-nri` with a real containerd 1.7, and containers of runc and crun created through
//! the CRI. Needs root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod containerd;
mod cri;
mod example;
mod image;
mod pods;
