//! Parts of the cluster that start anew while a step runs. Nobody else uses the cluster meanwhile.

use std::time::Duration;

use crate::connection::run_with;
use crate::setup::{Pods, cluster_alone, cycles};

#[test]
fn the_api_server_and_the_kubelet_may_start_anew_at_any_moment_of_a_step() {
    let cluster = cluster_alone();
    let pods = Pods::new(&cluster);
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
