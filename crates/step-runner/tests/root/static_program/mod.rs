//! The statically linked `step-runner` of a release, in file systems without a C library and its modules,
//! without users, certificates and shell. As root.

mod certificates;
mod names;
mod roots;
mod setup;
