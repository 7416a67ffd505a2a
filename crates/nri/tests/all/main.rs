//! The program `oci-hooks-nri` with a simulated runtime. Needs no root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod abuse;
mod example;
mod hooks;
mod life;
mod plugin;
mod runtime;
