//! The program `oci-hooks-nri` beside a runtime that is played. This needs no root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod abuse;
#[path = "../support/completion.rs"]
mod completion;
mod hooks;
mod life;
mod plugin;
#[path = "../support/program.rs"]
#[expect(dead_code, reason = "other test programs use the rest")]
mod program;
#[path = "../support/nri.rs"]
mod runtime;
