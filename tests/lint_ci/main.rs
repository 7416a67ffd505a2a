//! `oci-hooks lint` where CI and editors call it: the GitHub Action, the GitLab template, pre-commit.
//!
//! Nothing here reaches a network but loopback: releases come from a server of the test.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod env;
mod github;
mod gitlab;
mod pre_commit;
mod releases;
