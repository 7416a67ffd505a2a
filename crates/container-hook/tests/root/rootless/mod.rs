//! Jobs of ordinary users without sudo, with and without subordinate ids, and of root on the same host:
//! `container-hook` as the user installs it, with real runc and crun.

mod beside;
mod build_walls;
mod builds;
mod cdi;
mod cgroups;
mod containers;
mod doctor;
mod escapes;
mod files;
mod jobs;
mod killed;
mod namespace;
mod nesting;
mod pod;
mod probe;
mod records;
mod setup;
mod shell;
mod stopped;
mod storage;
mod trouble;
mod try_job;
mod uplink;
mod volumes;
