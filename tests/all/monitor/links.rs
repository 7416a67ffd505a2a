//! Symlinks in the paths of hook directories and hook files.

use crate::monitor::support::{HookTree, hook, hook_with};

#[test]
fn directory_behind_a_link_and_the_link_are_followed() {
    let tree = HookTree::new();
    tree.mkdir("v1/hooks.d");
    tree.mkdir("v2/hooks.d");
    tree.write("v1/hooks.d/a.json", hook());
    tree.write("v2/hooks.d/b.json", hook());
    tree.link("v1", "current");
    let mut followed = tree.monitor(&["current/hooks.d"]);
    assert_eq!(followed.hooks_in_force(), "current/hooks.d/a.json");
    tree.write("v1/hooks.d/c.json", hook());
    assert_eq!(followed.next(), "added current/hooks.d/c.json");
    tree.relink("v2", "current");
    assert_eq!(
        followed.next(),
        "altered current, removed current/hooks.d/a.json, added current/hooks.d/b.json, removed current/hooks.d/c.json"
    );
    tree.write("v1/hooks.d/d.json", hook());
    followed.assert_undisturbed();
    followed.assert_quiet("current/hooks.d");
}

#[test]
fn link_to_a_later_directory_is_followed() {
    let tree = HookTree::new();
    tree.link("a/../real", "hooks.d");
    let mut followed = tree.monitor(&["hooks.d"]);
    tree.mkdir("a");
    tree.mkdir("real");
    tree.write("real/a.json", hook());
    assert_eq!(followed.next(), "added hooks.d/a.json");
}

#[test]
fn in_place_edit_of_a_linked_hook_file_is_detected() {
    let tree = HookTree::new();
    tree.mkdir("hooks.d");
    tree.mkdir("share/hooks");
    tree.write("share/hooks/a", hook());
    tree.link("../share/hooks/a", "hooks.d/a.json");
    let mut followed = tree.monitor(&["hooks.d"]);
    tree.write("share/hooks/a", hook_with("/bin/sh"));
    assert_eq!(followed.next(), "changed hooks.d/a.json");
    tree.write("share/hooks/b", hook());
    followed.assert_undisturbed();
    tree.rename("share/hooks/b", "share/hooks/a");
    assert_eq!(followed.next(), "changed hooks.d/a.json");
    tree.remove("share/hooks/a");
    assert_eq!(followed.next(), "broken hooks.d/a.json");
    assert_eq!(followed.hooks_in_force(), "");
    tree.remove("share");
    tree.mkdir("share/hooks");
    tree.write("share/hooks/a", hook());
    assert_eq!(followed.next(), "restored hooks.d/a.json");
    tree.remove("hooks.d/a.json");
    assert_eq!(followed.next(), "removed hooks.d/a.json");
    tree.write("share/hooks/a", "");
    followed.assert_undisturbed();
}

#[test]
fn files_of_a_kubernetes_volume_change_together() {
    let tree = HookTree::new();
    tree.mkdir("hooks.d/..1");
    tree.write("hooks.d/..1/a.json", hook());
    tree.link("..1", "hooks.d/..data");
    tree.link("..data/a.json", "hooks.d/a.json");
    let mut followed = tree.monitor(&["hooks.d"]);
    tree.mkdir("hooks.d/..2");
    tree.write("hooks.d/..2/a.json", hook_with("/bin/sh"));
    tree.relink("..2", "hooks.d/..data");
    tree.remove("hooks.d/..1");
    assert_eq!(followed.next(), "altered hooks.d/..data, changed hooks.d/a.json");
    tree.write("hooks.d/..2/a.json", hook());
    assert_eq!(followed.next(), "changed hooks.d/a.json");
}

#[test]
fn directory_that_becomes_unlistable_keeps_its_hooks() {
    let tree = HookTree::new();
    tree.mkdir("hooks.d");
    tree.write("hooks.d/a.json", hook());
    let mut followed = tree.monitor(&["hooks.d"]);
    tree.remove("hooks.d");
    tree.link("hooks.d", "hooks.d");
    assert_eq!(followed.next(), "broken hooks.d, broken hooks.d/a.json (kept)");
    assert_eq!(followed.hooks_in_force(), "hooks.d/a.json");
    tree.remove("hooks.d");
    assert_eq!(followed.next(), "removed hooks.d, removed hooks.d/a.json");
    tree.mkdir("hooks.d");
    followed.assert_quiet("hooks.d");
}
