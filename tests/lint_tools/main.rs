//! `oci-hooks lint` where CI and editors call it, with the tools that they call: curl, wget, git and pre-commit.
//!
//! Nothing here reaches a network but loopback: releases come from a server of the test.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../lint_ci/action.rs"]
mod action;
#[path = "../lint_ci/env.rs"]
mod env;
mod github;
mod gitlab;
#[path = "../lint_ci/job.rs"]
mod job;
mod pre_commit;
mod releases;
