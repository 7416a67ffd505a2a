//! The template for GitLab CI, whose job downloads with curl or wget.

use crate::env::{CheckoutEnv, GOOD, text};
use crate::job::{TOOLS, run_job};
use crate::releases::ReleaseServer;

#[test]
fn program_is_downloaded_and_checked() {
    // With curl, and with only wget.
    for downloaders in [&["curl", "wget"][..], &["wget"]] {
        let tools = [&TOOLS[..], downloaders].concat();
        let world = CheckoutEnv::new(&[("a.json", GOOD)], &tools);
        let releases = ReleaseServer::serve(&world.path("releases"));
        let url = ("releases", releases.url.as_str());
        let output = run_job(&world, "sh", &[url]);
        assert!(output.status.success(), "{tools:?} {}", text(&output));
        let digest = releases.sha256_of_archive();
        releases.tamper();
        for digest in ["", digest.as_str()] {
            let output = run_job(&world, "sh", &[url, ("sha256", digest)]);
            assert!(!output.status.success(), "{}", text(&output));
            assert!(text(&output).contains("did NOT match"), "{}", text(&output));
        }
        releases.remove("SHA256SUMS");
        assert!(!run_job(&world, "sh", &[url]).status.success());
        let output = run_job(&world, "sh", &[url, ("sha256", &releases.sha256_of_archive())]);
        assert!(output.status.success(), "{}", text(&output));
    }
}
