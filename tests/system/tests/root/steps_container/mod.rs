//! A server of `step-runner` in containers run by runc and crun, called from outside. As root.

mod proxy;
mod setup;
