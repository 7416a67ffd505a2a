//! The engine by itself, with real runc and crun. As root.

mod cgroups;
mod deletion;
mod disk;
mod layers;
mod setup;
mod streams;
