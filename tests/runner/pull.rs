//! When a registry is asked for an image that is there.

use serde_json::json;

use crate::setup::runner;
use crate::support::host::Host;
use crate::support::hub::{Name, Registry};
use crate::support::installation::Installation;
use crate::support::runtime::Runtime;

#[test]
fn a_registry_that_is_down_stops_no_job_whose_image_is_there_unless_the_settings_say_so() {
    for runtime in Runtime::ALL {
        for (settings, goes_on) in [("", true), ("pull = \"always\"\n", false)] {
            let host = Host::new();
            let hub = Registry::start(&host, Name::Hub, None);
            let installation = Installation::new(&host, runtime, settings);
            let mut job = runner(&installation, "runner-1");
            job.prepare(job.job_container("alpine:3.20"), &[]);
            job.cleanup();
            drop(hub);
            let args = |image| json!({"container": job.job_container(image), "services": []});
            let (there, missing) = (args("alpine:3.20"), args("redis:7"));
            let ended = job.call("prepare_job", there);
            if goes_on {
                let log = ended.success().log();
                let warning = "taking alpine:3.20 from the store, which may be older";
                assert!(log.contains(warning), "{log}");
                job.run("echo on the image of the store").success();
            } else {
                let said = ended.failure();
                assert!(said.contains("cannot reach"), "{said}");
            }
            job.cleanup();
            let said = job.call("prepare_job", missing).failure();
            assert!(said.contains("cannot reach"), "{said}");
            job.cleanup();
        }
    }
}
