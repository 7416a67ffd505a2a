//! Steps in container images, pulled from a registry with a password. As root, to become another user.

mod images;
mod setup;
mod user;
