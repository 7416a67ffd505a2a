//! What the tests that start real containers share. Include it with
//! `#[path = "../support/mod.rs"] mod support;`.

#![allow(
    clippy::allow_attributes,
    dead_code,
    reason = "each test program uses its own part of this"
)]

pub(crate) mod api_proxy;
pub(crate) mod bundle;
pub(crate) mod by_user;
pub(crate) mod call;
pub(crate) mod certificates;
pub(crate) mod cgroup;
pub(crate) mod cluster;
pub(crate) mod cluster_images;
pub(crate) mod containerd;
pub(crate) mod debian_root;
pub(crate) mod dockerd;
pub(crate) mod externals;
pub(crate) mod file_server;
pub(crate) mod garm;
pub(crate) mod git;
pub(crate) mod github_runner;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod hub;
pub(crate) mod images;
pub(crate) mod installation;
pub(crate) mod kills;
pub(crate) mod leftovers;
pub(crate) mod packages;
pub(crate) mod podman;
pub(crate) mod program;
pub(crate) mod recipes;
pub(crate) mod registry;
pub(crate) mod rootfs;
pub(crate) mod runtime;
pub(crate) mod static_program;
pub(crate) mod stops;
pub(crate) mod world;
