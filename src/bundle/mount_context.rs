//! What mounts are prepared from: a container, its image, and where both are.

use std::path::Path;

use super::devices::Node;
use super::options::Options;
use super::rootfs_dir::RootfsDir;
use super::user::User;
use crate::image::ImageConfig;

/// Whose mounts are prepared, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct MountContext<'a> {
    pub(super) image: &'a ImageConfig,
    pub(super) options: &'a Options,
    pub(super) inside: &'a RootfsDir,
    pub(super) user: &'a User,
    pub(super) rootfs: &'a Path,
    /// The directory of the bundle.
    pub(super) dir: &'a Path,
    /// Devices that are mounted since nobody can make them in the container.
    pub(super) nodes: &'a [Node],
}
