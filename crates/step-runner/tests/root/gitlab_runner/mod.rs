//! `step-runner` called as gitlab-runner 19.4 calls its helper: with its command lines, in containers run by
//! runc and crun. As root.

mod client;
mod container;
mod docker;
mod helper_image;
mod images;
mod instance;
mod kubernetes;
