//! `oci-hooks lint` as called by CI and by pre-commit, with curl, wget and git.
//!
//! Only the loopback network is used: releases come from a server of the test.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../all/lint_ci/action.rs"]
mod action;
#[path = "../all/lint_ci/env.rs"]
mod env;
mod github;
mod gitlab;
#[path = "../all/lint_ci/job.rs"]
mod job;
mod pre_commit;
mod releases;
