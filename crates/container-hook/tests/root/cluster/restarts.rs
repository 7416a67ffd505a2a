//! Parts of the cluster that restart while a step runs, with exclusive use of the cluster.

use std::time::Duration;

use crate::cluster::connection::run_with;
use crate::cluster::setup::{NamespaceHook, cluster_alone, cycles};

#[test]
fn step_survives_restarts_of_api_server_and_kubelet() {
    let cluster = cluster_alone();
    let pods = NamespaceHook::new(&cluster);
    let restart = |part: &'static str| {
        let cluster = &cluster;
        move || cluster.restart(part)
    };
    let (apiserver, kubelet) = (restart("apiserver"), restart("kubelet"));
    let faults: Vec<(Duration, &dyn Fn())> = (0..cycles(6))
        .map(|cycle| {
            let part: &dyn Fn() = if cycle % 3 == 2 { &kubelet } else { &apiserver };
            (Duration::from_millis(u64::from(cycle * 300 % 2000)), part)
        })
        .collect();
    run_with(&pods, "restarts", &faults);
    pods.check_gone("restarts");
}
