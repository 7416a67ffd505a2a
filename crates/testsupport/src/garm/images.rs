//! Images of instances: busybox with users, with and without a preinstalled runner.

use std::path::PathBuf;

use serde_json::json;

use super::super::images::{SharedLayers, TestImage, digest};
use super::super::{hub, program};
use super::runner;

const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n\
    runner:x:1001:1001::/home/runner:/bin/sh\nci:x:2000:2000::/home/ci:/bin/sh\n";

const GROUPS: &str = "root:x:0:\nrunner:x:1001:\nci:x:2000:\nextra:x:1234:runner\n";

const HOME: &str = "home/runner/actions-runner/";

/// Returns a registry storage directory with all images of instances, created once for each version of the sources.
pub fn storage() -> PathBuf {
    let sources = [
        include_str!("images.rs"),
        include_str!("runner.rs"),
        include_str!("runner/run.sh"),
        include_str!("runner/config.sh"),
        include_str!("runner/listener.sh"),
        include_str!("runner/installdependencies.sh"),
        include_str!("runner/act_runner.sh"),
        include_str!("../images.rs"),
    ];
    let name = format!("garm-{}", digest(sources.concat().as_bytes()).replace(':', "-"));
    program::made_once(&name, |making| {
        hub::push_all(making, all_images().iter().map(|(name, image)| (*name, image)));
    })
}

fn all_images() -> Vec<(&'static str, TestImage)> {
    let plain = SharedLayers::new().alpine();
    let base = plain.with_layer(|tree| {
        tree.file("etc/passwd", 0o644, USERS);
        tree.file("etc/group", 0o644, GROUPS);
        tree.owned_directory("home/runner", 0o755, 1001);
        tree.owned_directory("home/ci", 0o755, 2000);
        tree.directory("etc/ssl", 0o755);
        tree.directory("etc/ssl/certs", 0o755);
        tree.file("etc/ssl/certs/ca-certificates.crt", 0o644, "");
    });
    let at = |directory: &'static str, owner| {
        base.with_layer(|tree| {
            // Image builders also store the parent directories.
            tree.owned_directory("home/runner", 0o755, 1001);
            tree.directory("opt", 0o755);
            tree.owned_directory(directory.trim_end_matches('/'), 0o755, owner);
            runner::fill(tree, directory, "");
        })
    };
    let bash = SharedLayers::new().debian().with_layer(|tree| {
        tree.file("etc/passwd", 0o644, USERS);
        tree.file("etc/group", 0o644, GROUPS);
    });
    vec![
        // For GARM's own scripts.
        ("garm/bash:1", bash),
        // Without a runner and its user.
        ("garm/plain:1", plain.clone()),
        ("garm/base:1", base.clone()),
        ("garm/runner:1", at(HOME, 1001)),
        ("garm/elsewhere:1", at("opt/runner/", 2000)),
        (
            "garm/gitea:1",
            base.with_layer(|tree| {
                tree.script("usr/local/bin/act_runner", &runner::old_act_runner());
            }),
        ),
        ("garm/env:1", at(HOME, 1001).with(json!({"Env": ["PATH=/usr/bin:/bin", "IMAGE=kept"]}))),
    ]
}
