//! The program `oci-hooks-nri` beside a real containerd 1.7, with containers of runc and crun that are
//! made as Kubernetes makes them. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/cgroup.rs"]
mod cgroup;
mod containerd;
#[path = "../support/cri.rs"]
mod cri;
mod image;
mod pods;
#[path = "../support/program.rs"]
#[expect(dead_code, reason = "other test programs use the rest")]
mod program;
#[path = "../support/rootfs.rs"]
mod rootfs;
