//! Cgroups that several containers are in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use oci_hooks::sys::cgroup;

use crate::setup::{spec, with_each_engine};

/// Has somebody remove the parent of all containers' cgroups, as the end of every container does, as
/// often as they can.
#[test]
fn containers_are_made_while_others_remove_empty_cgroups() {
    with_each_engine(|engine, image| {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    cgroup::remove_if_empty("/oci-hooks");
                    // The others are to have their turn.
                    thread::park_timeout(Duration::from_micros(200));
                }
            });
            let results: Vec<_> = (0..10)
                .map(|_| {
                    let record = engine.prepare(spec(image, "sleep 1000"))?.start()?;
                    engine.remove(&record)
                })
                .collect();
            is_over.store(true, Ordering::Relaxed);
            for result in results {
                result.unwrap();
            }
        });
    });
}
