//! The GitHub Action, which downloads with curl.

use std::path::Path;

use crate::action::{TOOLS, run_step};
use crate::env::{CheckoutEnv, GOOD, VERSION, error};
use crate::releases::{ReleaseServer, archive_name};

fn with_curl() -> Vec<&'static str> {
    [&TOOLS[..], &["curl"]].concat()
}

#[test]
fn program_is_downloaded_and_checked() {
    let world = CheckoutEnv::new(&[("a.json", &error())], &with_curl());
    let releases = ReleaseServer::serve(&world.path("releases"));
    let url = ("releases", releases.url.as_str());
    let played = run_step(&world, &[url]);
    assert_eq!((played.code, played.lines()), (Some(1), vec!["error 3".into()]), "{}", played.log);
    let bin = Path::new(played.path.trim_end());
    assert!(bin.join("oci-hooks").is_file() && bin.starts_with(world.path("temporary")));
    assert!(bin.ends_with(format!("{}/bin", archive_name())));
    assert_eq!(played.outputs["errors"], "1");

    let played = run_step(&world, &[url, ("version", "9.9.9")]);
    assert_eq!(played.code, Some(2), "{}", played.log);
    assert!(played.annotations[0].2.contains("cannot download"), "{}", played.log);

    releases.tamper();
    let played = run_step(&world, &[url]);
    assert_eq!((played.code, played.path.as_str()), (Some(2), ""), "{}", played.log);
    assert!(played.annotations[0].2.starts_with("digest mismatch"), "{}", played.log);
}

#[test]
fn digest_and_version_can_be_pinned() {
    let world = CheckoutEnv::new(&[("a.json", GOOD)], &with_curl());
    let releases = ReleaseServer::serve(&world.path("releases"));
    releases.remove("SHA256SUMS");
    let url = ("releases", releases.url.as_str());
    let version = format!("v{VERSION}");
    let digest = releases.sha256_of_archive();
    let played = run_step(&world, &[url, ("version", &version), ("sha256", &digest)]);
    assert_eq!(played.code, Some(0), "{}", played.log);
    let zeros = "0".repeat(64);
    let played = run_step(&world, &[url, ("version", &version), ("sha256", &zeros)]);
    assert_eq!(played.code, Some(2), "{}", played.log);

    // The program in PATH has this version, so nothing is downloaded.
    let world = world.install();
    let played = run_step(&world, &[("version", VERSION), ("releases", "http://127.0.0.1:1")]);
    assert_eq!((played.code, played.path.as_str()), (Some(0), ""), "{}", played.log);
}
