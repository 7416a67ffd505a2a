//! Hooks that reject a container.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::examples::example::{HookExample, annotate, refusal};

#[test]
fn refused_command_does_not_run() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("");
        let shell = bundle.inside("/bin/sshd");
        fs::write(&shell, "#!/bin/sh\ntouch /ran\n").expect("the root has no sshd");
        fs::set_permissions(&shell, Permissions::from_mode(0o755)).expect("it is ours");
        bundle.edit(|config| config["process"]["args"] = json!(["/bin/sshd"]));
        HookExample::read("10-refuse-commands").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("no remote shells"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn image_tagged_latest_does_not_run() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("touch /ran");
        annotate(&bundle, "io.kubernetes.cri-o.ImageName", "registry.example.com/app:latest");
        HookExample::read("10-refuse-latest-images").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("none tagged latest"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}
