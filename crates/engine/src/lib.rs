//! Runs OCI containers without a daemon, on runc or crun, for root and for ordinary users: root file systems,
//! `config.json`, networks, and the life of containers from creation to removal.
//!
//! Each call creates, finds or removes containers by their records on disk, and returns. No process of the
//! engine stays behind, except a small one with each container whose output is kept. Any process may be
//! killed at any moment: a later call removes its leftovers.
//!
//! # From an image to a container
//!
//! 1. [`ImageStore::open`] opens the images of a directory, and [`pull`] adds one from a registry.
//! 2. [`rootfs::mount`] assembles the layers into a root file system. A [`rootfs::LayerStack`] reads unmounted layers.
//! 3. [`bundle::write`] writes `config.json` from the image's configuration, [`bundle::BundleOptions`] and hooks of
//!    hooks.d.
//! 4. [`runtime::OciRuntime`] calls runc or crun.
//! 5. An [`Engine`](container::Engine) does steps 2 to 4 from a [`ContainerSpec`](container::ContainerSpec), with a
//!    record of each container: [`prepare`](container::Engine::prepare), then
//!    [`start`](container::PreparedContainer::start) or [`run`](container::PreparedContainer::run), then
//!    [`remove`](container::Engine::remove).
//! 6. [`network::Network`] connects containers to each other and to the world, and publishes ports.
//!
//! The example `run` (`examples/run.rs`) does all but the last, for root and for ordinary users:
//!
//! ```text
//! cargo run -p oci-hooks-engine --example run -- docker.io/library/busybox echo hello
//! ```
//!
//! # Limits
//!
//! - Linux 5.12 or later only; user namespaces of root's containers need 5.19. runc or crun must be installed, nft for
//!   networks, `mkfs.ext4` for limits of disk space.
//! - An ordinary user enters namespaces first ([`PauseProcess`]), before the process has a second thread. IDs other than
//!   the user's own need `/etc/subuid`, `/etc/subgid` and `newuidmap`; networks need pasta or slirp4netns; limits of
//!   memory, CPUs and processes need a delegated cgroup of version 2.
//! - It builds no images, commits no containers and restarts none.
//! - Records, and so containers, do not survive a reboot of the host.
//! - It reads no settings and no environment variables, and prints nothing: `oci-hooks-engine-cli` does that for
//!   programs.
//!
//! [`ImageStore::open`]: oci_hooks_image::ImageStore::open
//! [`pull`]: oci_hooks_image::pull()
//! [`PauseProcess`]: oci_hooks_host::privilege::PauseProcess

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod bundle;
pub mod container;
pub mod network;
pub mod rootfs;
pub mod runtime;
