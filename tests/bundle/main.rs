//! Bundles and root file systems of ours, run by runc and crun. As root.

#[path = "../support/mod.rs"]
mod support;

mod confinement;
mod container;
mod overlay;
mod ownership;
mod paths;
