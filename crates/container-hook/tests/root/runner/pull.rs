//! Conditions for asking a registry about an image that is already in the store.

use std::fs::{self, File};
use std::time::SystemTime;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::runner::setup::runner;

#[test]
fn stored_image_is_used_if_the_registry_is_down_by_default() {
    for &runtime in TestRuntime::selected(0) {
        for (settings, goes_on) in [("", true), ("pull = \"always\"\n", false)] {
            let host = TestHost::new();
            let hub = HostRegistry::start(&host, RegistryName::Hub, None);
            let installation = HookInstallation::new(&host, runtime, settings);
            let mut job = runner(&installation, "runner-1");
            job.prepare(job.job_container("alpine:3.20"), &[]);
            job.cleanup();
            drop(hub);
            let args = |image| json!({"container": job.job_container(image), "services": []});
            let (there, missing) = (args("alpine:3.20"), args("redis:7"));
            let ended = job.call("prepare_job", there.clone());
            if goes_on {
                let log = ended.success().log();
                let warning = "using alpine:3.20 from the store, which may be older";
                assert!(log.contains(warning), "{log}");
                job.run("echo on the image of the store").success();
                job.cleanup();
                // Sets the time of the failure to now, however long the job took.
                for entry in fs::read_dir(installation.store().join("unreachable")).unwrap() {
                    let file = File::options().write(true).open(entry.unwrap().path()).unwrap();
                    file.set_modified(SystemTime::now()).unwrap();
                }
                let log = job.call("prepare_job", there).success().log();
                assert!(
                    log.contains(warning)
                        && log.contains("is asked again only 60 s after a failure"),
                    "{log}"
                );
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
