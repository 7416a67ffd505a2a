//! Bundles and root file systems of ours, run by runc and crun. As root.

mod confinement;
mod container;
mod hooks;
mod id_mapping;
mod overlay;
mod paths;
mod users;
