//! Jobs in containers as GitHub's runner has them run: `container-hook` with real runc and crun, real
//! registries under the names that jobs use, real buildah and real node.

mod answers;
mod audit;
mod build_registries;
mod builds;
mod engine;
mod escapes;
mod full;
mod hooks_d;
mod job;
mod killed;
mod killed_admin;
mod left_behind;
mod limits;
mod nesting;
mod newer;
mod opened_once;
mod other_runtimes;
mod parallel;
mod pods;
mod policy;
mod pull;
mod removal;
mod requests;
mod rights;
mod secrets;
mod services;
pub(crate) mod setup;
mod steps;
mod steps_cancelled;
mod stopped;
mod template;
mod traced;
mod user_namespace;
mod volumes;
