//! `builtin://function/oci/build` and `builtin://function/oci/publish`: images of functions, with a registry.

mod build;
mod cli;
mod faults;
mod hostile;
mod logins;
mod publish;
mod setup;
