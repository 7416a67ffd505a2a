//! `oci-hooks lint`: findings on whole files and directories, its formats and fixes.

mod cases;
mod directories;
mod env;
mod fixes;
mod output;
mod programs;
