//! Hooks that refuse a container.

use serde_json::json;

use crate::example::{Example, annotate, refusal};
use crate::support::bundle::Bundle;
use crate::support::runtime::Runtime;

#[test]
fn a_refused_command_does_not_run() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("");
        bundle.edit(|config| config["process"]["args"] = json!(["/bin/touch", "/ran"]));
        Example::read("10-refuse-commands").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("no remote shells"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn an_image_tagged_latest_does_not_run() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("touch /ran");
        annotate(&bundle, "io.kubernetes.cri-o.ImageName", "registry.example.com/app:latest");
        Example::read("10-refuse-latest-images").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("none tagged latest"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}
