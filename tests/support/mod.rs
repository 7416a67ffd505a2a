//! What the tests that start real containers share. Include it with
//! `#[path = "../support/mod.rs"] mod support;`.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub(crate) mod bundle;
pub(crate) mod cgroup;
pub(crate) mod containerd;
pub(crate) mod dockerd;
pub(crate) mod http;
pub(crate) mod podman;
pub(crate) mod program;
pub(crate) mod registry;
pub(crate) mod rootfs;
pub(crate) mod runtime;
