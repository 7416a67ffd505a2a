//! The template for GitLab CI, whose job downloads by curl or wget.

use crate::env::{GOOD, World, text};
use crate::job::{TOOLS, play};
use crate::releases::Releases;

#[test]
fn program_is_downloaded_and_checked() {
    // With curl, and where there is only wget.
    for downloaders in [&["curl", "wget"][..], &["wget"]] {
        let tools = [&TOOLS[..], downloaders].concat();
        let world = World::new(&[("a.json", GOOD)], &tools);
        let releases = Releases::serve(&world.path("releases"));
        let url = ("releases", releases.url.as_str());
        let output = play(&world, "sh", &[url]);
        assert!(output.status.success(), "{tools:?} {}", text(&output));
        let digest = releases.sha256_of_archive();
        releases.tamper();
        for digest in ["", digest.as_str()] {
            let output = play(&world, "sh", &[url, ("sha256", digest)]);
            assert!(!output.status.success(), "{}", text(&output));
            assert!(text(&output).contains("did NOT match"), "{}", text(&output));
        }
        releases.remove("SHA256SUMS");
        assert!(!play(&world, "sh", &[url]).status.success());
        let output = play(&world, "sh", &[url, ("sha256", &releases.sha256_of_archive())]);
        assert!(output.status.success(), "{}", text(&output));
    }
}
