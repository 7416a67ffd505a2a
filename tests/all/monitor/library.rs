//! Changes that the monitor detects, and hooks that it keeps in force.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks::hooks::monitor::{Monitor, MonitorOptions, WakeReason};
use oci_hooks_testsupport::threads::repeat_during;
use rustix::event::{PollFd, PollFlags, poll};

use crate::monitor::support::{FollowedTree, HookTree, LONG, hook, hook_with, list_in_force};

/// A tree with two directories, `low` with `a.json` and `high`.
fn tree() -> HookTree {
    let tree = HookTree::new();
    tree.mkdir("low");
    tree.mkdir("high");
    tree.write("low/a.json", hook());
    tree
}

const DIRS: [&str; 2] = ["low", "high"];

#[test]
fn initial_snapshot_has_hooks_and_problems() {
    let tree = tree();
    tree.write("high/broken.json", "{");
    let followed = tree.monitor(&["low", "high", "missing"]);
    assert_eq!(followed.hooks_in_force(), "low/a.json");
    let loaded = followed.monitor.snapshot();
    assert_eq!(loaded.problems[0].path, tree.path("high/broken.json"));
    assert_eq!(loaded.missing_dirs, [tree.path("missing")]);
}

#[test]
fn file_changes_are_detected() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    tree.write("low/b.json", hook());
    assert_eq!(followed.next(), "added low/b.json");
    tree.write("low/b.json", hook_with("/bin/sh"));
    assert_eq!(followed.next(), "changed low/b.json");
    tree.write("high/b.json", hook());
    assert_eq!(followed.next(), "added high/b.json, masked low/b.json");
    tree.remove("high/b.json");
    assert_eq!(followed.next(), "removed high/b.json, restored low/b.json");
    tree.remove("low/b.json");
    assert_eq!(followed.next(), "removed low/b.json");
    assert_eq!(followed.hooks_in_force(), "low/a.json");
}

#[test]
fn atomic_replacement_is_one_change() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    tree.write("low/.a.json.tmp", hook_with("/bin/sh"));
    tree.rename("low/.a.json.tmp", "low/a.json");
    assert_eq!(followed.next(), "changed low/a.json");
    // Renamed, as by editors that make backups, and written anew.
    tree.rename("low/a.json", "low/a.json~");
    tree.write("low/a.json", hook());
    assert_eq!(followed.next(), "changed low/a.json");
    tree.rename("low/a.json", "low/b.json");
    assert_eq!(followed.next(), "removed low/a.json, added low/b.json");
}

#[test]
fn file_written_in_steps_within_the_window_is_one_change() {
    let tree = tree();
    // Longer than the steps take on a busy machine.
    let coalesce = Duration::from_secs(2);
    let options = MonitorOptions { coalesce, ..tree.options(&DIRS) };
    let mut followed = FollowedTree { tree: &tree, monitor: Monitor::new(options).unwrap() };
    let text = hook_with("/bin/sh");
    tree.write("low/a.json", "");
    followed.assert_disturbed();
    tree.write("low/a.json", &text[..text.len() / 2]);
    tree.write("low/b.json", "");
    followed.assert_disturbed();
    tree.write("low/a.json", &text);
    tree.write("low/b.json", &text);
    assert_eq!(followed.next(), "changed low/a.json, added low/b.json");
}

#[test]
fn slow_partial_write_is_never_a_removal() {
    let tree = tree();
    tree.write("high/a.json", hook_with("/bin/sh"));
    let mut followed = tree.monitor(&DIRS);
    let text = hook();
    tree.write("high/a.json", "");
    assert_eq!(followed.next(), "broken high/a.json (kept)");
    for partial in ["", &text[..1], &text[..text.len() - 1]] {
        tree.write("high/a.json", partial);
        followed.assert_quiet("low");
        assert_eq!(followed.hooks_in_force(), "high/a.json", "{partial}");
        let loaded = followed.monitor.snapshot();
        assert_eq!(loaded.hooks.iter().next().unwrap().definition.hook.path, "/bin/sh");
        assert_eq!(loaded.problems.len(), 1);
    }
    tree.write("high/a.json", &text);
    assert_eq!(followed.next(), "restored high/a.json");
    assert_eq!(followed.monitor.snapshot().problems.len(), 0);
}

#[test]
fn broken_file_keeps_the_others() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    tree.write("low/b.json", "{");
    assert_eq!(followed.next(), "broken low/b.json");
    assert_eq!(followed.hooks_in_force(), "low/a.json");
    tree.write("low/b.json", hook());
    assert_eq!(followed.next(), "restored low/b.json");
    assert_eq!(followed.hooks_in_force(), "low/a.json, low/b.json");
}

#[test]
fn removing_a_broken_file_ends_its_hook() {
    let tree = tree();
    tree.write("high/a.json", hook());
    let mut followed = tree.monitor(&DIRS);
    tree.write("high/a.json", "{");
    assert_eq!(followed.next(), "broken high/a.json (kept)");
    tree.remove("high/a.json");
    assert_eq!(followed.next(), "removed high/a.json, restored low/a.json");
}

#[test]
fn other_files_cause_no_events() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    tree.write("low/README", "x");
    tree.write("low/a.json.bak", "x");
    tree.write("other", "x");
    tree.mkdir("low/sub");
    tree.write("low/sub/b.json", hook());
    followed.assert_undisturbed();
    followed.assert_quiet("low");
}

#[test]
fn reading_causes_no_events() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    fs::read(tree.path("low/a.json")).unwrap();
    fs::read_dir(tree.path("low")).unwrap().count();
    assert_eq!(followed.monitor.rescan().unwrap(), []);
    followed.assert_undisturbed();
}

#[test]
fn permissions_and_programs_are_followed() {
    let tree = tree();
    tree.mkdir("bin");
    tree.write("bin/program", "");
    tree.link("program", "bin/link");
    tree.write("low/b.json", hook_with(tree.path("bin/link")));
    tree.write("low/README", "");
    let mut followed = tree.monitor(&DIRS);
    for (path, mode) in [
        ("low/b.json", 0o666),
        ("low", 0o777),
        ("bin", 0o777),
        ("bin/program", 0o777),
        ("bin/program", 0o644),
    ] {
        fs::set_permissions(tree.path(path), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(followed.next(), format!("altered {path}"), "{mode:o}");
    }
    // The definition is the same; the new file has the usual mode.
    tree.put_file("low/b.json", hook_with(tree.path("bin/link")));
    assert_eq!(followed.next(), "altered low/b.json");
    for content in ["#!/bin/sh", "#!/bin/sh\nreboot"] {
        tree.write("bin/program", content);
        assert_eq!(followed.next(), "altered bin/program", "{content}");
    }
    tree.put_file("bin/program", "#!/bin/sh\nreboot");
    assert_eq!(followed.next(), "altered bin/program");
    // A link with a new target, and a directory that is replaced by a link.
    tree.write("bin/evil", "");
    tree.relink("evil", "bin/link");
    assert_eq!(followed.next(), "altered bin/link");
    tree.write("shared.json", hook());
    tree.link("../shared.json", "low/c.json");
    assert_eq!(followed.next(), "added low/c.json");
    tree.write("other.json", hook());
    tree.relink("../other.json", "low/c.json");
    assert_eq!(followed.next(), "altered low/c.json");
    tree.rename("bin", "real");
    tree.link("real", "bin");
    let changes = followed.next();
    assert!(changes.contains("altered bin"), "{changes}");
    for path in ["low/README", "real"] {
        let mode = fs::metadata(tree.path(path)).unwrap().permissions();
        fs::set_permissions(tree.path(path), mode).unwrap();
    }
    followed.assert_quiet("low");
}

#[test]
fn missing_directory_is_watched_once_created() {
    let tree = HookTree::new();
    let mut followed = tree.monitor(&["etc/containers/oci/hooks.d"]);
    assert_eq!(followed.hooks_in_force(), "");
    tree.mkdir("etc");
    followed.assert_disturbed();
    followed.monitor.rescan().unwrap();
    tree.mkdir("etc/other");
    followed.assert_undisturbed();
    tree.mkdir("etc/containers/oci/hooks.d");
    tree.write("etc/containers/oci/hooks.d/a.json", hook());
    assert_eq!(followed.next(), "added etc/containers/oci/hooks.d/a.json");
}

#[test]
fn recreated_directory_is_followed() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    for _ in 0..3 {
        tree.remove("low");
        assert_eq!(followed.next(), "removed low/a.json");
        tree.mkdir("low");
        tree.write("low/a.json", hook());
        assert_eq!(followed.next(), "added low/a.json");
        tree.write("low/a.json", hook_with("/bin/sh"));
        assert_eq!(followed.next(), "changed low/a.json");
    }
    // Within one coalescing window only the new content is visible.
    tree.remove("low");
    tree.mkdir("low");
    tree.write("low/a.json", hook());
    assert_eq!(followed.next(), "changed low/a.json");
    followed.assert_quiet("low");
}

#[test]
fn directory_replaced_by_rename_is_followed() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    tree.mkdir("new");
    tree.write("new/a.json", hook_with("/bin/sh"));
    tree.rename("low", "old");
    tree.rename("new", "low");
    assert_eq!(followed.next(), "changed low/a.json");
    tree.write("old/b.json", hook());
    followed.assert_undisturbed();
    followed.assert_quiet("low");
}

#[test]
fn renaming_a_parent_removes_and_restores_the_hooks() {
    let tree = HookTree::new();
    tree.mkdir("etc/oci/hooks.d");
    tree.write("etc/oci/hooks.d/a.json", hook());
    let mut followed = tree.monitor(&["etc/oci/hooks.d"]);
    tree.rename("etc", "etc.old");
    assert_eq!(followed.next(), "removed etc/oci/hooks.d/a.json");
    tree.rename("etc.old", "etc");
    assert_eq!(followed.next(), "added etc/oci/hooks.d/a.json");
    followed.assert_quiet("etc/oci/hooks.d");
}

#[test]
fn directory_replaced_by_a_file_is_a_problem_until_restored() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    tree.remove("low");
    tree.write("low", "");
    assert_eq!(followed.next(), "broken low, removed low/a.json");
    tree.remove("low");
    tree.mkdir("low");
    assert_eq!(followed.next(), "readable low");
    followed.assert_quiet("low");
}

#[test]
fn hook_appears_and_disappears_with_its_program() {
    let tree = HookTree::new();
    tree.mkdir("hooks.d");
    tree.write("hooks.d/a.json", hook_with(tree.path("usr/libexec/program")));
    let mut followed = tree.monitor(&["hooks.d"]);
    assert_eq!(followed.hooks_in_force(), "");
    tree.mkdir("usr/libexec");
    tree.write("usr/libexec/program", "");
    assert_eq!(followed.next(), "restored hooks.d/a.json");
    tree.write("usr/libexec/other", "");
    followed.assert_undisturbed();
    tree.remove("usr/libexec/program");
    assert_eq!(followed.next(), "broken hooks.d/a.json");
    assert_eq!(followed.hooks_in_force(), "");
    tree.link("real", "usr/libexec/program");
    tree.write("usr/libexec/real", "");
    assert_eq!(followed.next(), "restored hooks.d/a.json");
    tree.remove("usr/libexec/real");
    assert_eq!(followed.next(), "broken hooks.d/a.json");
}

#[test]
fn watches_for_programs_have_a_limit() {
    let tree = HookTree::new();
    tree.mkdir("hooks.d");
    tree.write("hooks.d/a.json", hook_with(tree.path("bin/program")));
    tree.mkdir("bin");
    let options = MonitorOptions { max_watches: 1, ..tree.options(&["hooks.d"]) };
    let mut followed = FollowedTree { tree: &tree, monitor: Monitor::new(options).unwrap() };
    assert_eq!(followed.monitor.unwatched_count(), 1);
    tree.write("bin/program", "");
    followed.assert_undisturbed();
    // The change is detected with the next event.
    tree.write("hooks.d/b.json", hook());
    assert_eq!(followed.next(), "restored hooks.d/a.json, added hooks.d/b.json");
}

#[test]
fn changes_after_a_queue_overflow_are_detected() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    // Alternating names, because the kernel merges identical consecutive events.
    for _ in 0..limit / 2 + 1 {
        for name in ["low/x", "low/y"] {
            tree.write(name, "");
        }
    }
    tree.remove("high");
    tree.mkdir("high");
    tree.write("low/last.json", hook());
    assert_eq!(followed.next(), "added low/last.json");
    followed.assert_quiet("low");
    followed.assert_quiet("high");
}

#[test]
fn event_storm_does_not_delay_changes() {
    let tree = tree();
    // Longer than the pauses between events.
    let coalesce = Duration::from_millis(50);
    let options = MonitorOptions { coalesce, ..tree.options(&DIRS) };
    let mut followed = FollowedTree { tree: &tree, monitor: Monitor::new(options).unwrap() };
    // Together they write faster than events can be read.
    let storm = || tree.write("high/storm.json", "{");
    let change = || {
        tree.write("low/b.json", hook());
        followed.monitor.wait(Some(Instant::now() + LONG))
    };
    let wake = repeat_during(storm, || repeat_during(storm, || repeat_during(storm, change)));
    assert!(matches!(wake.unwrap(), WakeReason::Changed(_)));
    assert_eq!(followed.hooks_in_force(), "low/a.json, low/b.json");
    tree.write("low/c.json", hook());
    while followed.hooks_in_force() != "low/a.json, low/b.json, low/c.json" {
        let wake = followed.monitor.wait(Some(Instant::now() + LONG)).unwrap();
        assert!(matches!(wake, WakeReason::Changed(_)));
    }
}

#[test]
fn existing_snapshot_never_changes() {
    let tree = tree();
    let mut followed = tree.monitor(&DIRS);
    let current = followed.monitor.current_hooks();
    let old = current.snapshot();
    tree.remove("low/a.json");
    tree.write("low/b.json", hook());
    assert_eq!(followed.next(), "removed low/a.json, added low/b.json");
    assert_eq!(list_in_force(&tree, &old), "low/a.json");
    let new = thread::spawn(move || current.snapshot()).join().unwrap();
    assert_eq!(list_in_force(&tree, &new), "low/b.json");
}

#[test]
fn monitor_in_a_thread_is_stopped_from_another() {
    let tree = tree();
    let mut monitor = Monitor::new(tree.options(&DIRS)).unwrap();
    let stopper = monitor.stopper();
    let thread = thread::spawn(move || {
        let first = monitor.wait(Some(Instant::now() + LONG)).unwrap();
        (first, monitor.wait(None).unwrap())
    });
    stopper.stop();
    stopper.stop();
    assert_eq!(thread.join().unwrap(), (WakeReason::Stopped, WakeReason::Stopped));
}

#[test]
fn past_deadline_returns_at_once() {
    let tree = tree();
    let mut monitor = Monitor::new(tree.options(&DIRS)).unwrap();
    assert_eq!(monitor.wait(Some(Instant::now())).unwrap(), WakeReason::Deadline);
}

#[test]
fn descriptor_is_readable_after_an_event() {
    let tree = tree();
    let mut monitor = Monitor::new(tree.options(&DIRS)).unwrap();
    let readable = |monitor: &Monitor, within: Duration| {
        let within = within.try_into().unwrap();
        poll(&mut [PollFd::new(monitor, PollFlags::IN)], Some(&within)).unwrap() == 1
    };
    assert!(!readable(&monitor, Duration::ZERO));
    tree.write("low/b.json", hook());
    // Another thread reads the event first.
    assert!(readable(&monitor, LONG));
    assert_eq!(monitor.poll().unwrap(), []);
    assert!(!readable(&monitor, Duration::ZERO));
    let due = monitor.due_time().unwrap();
    while Instant::now() < due {
        thread::yield_now();
    }
    assert_eq!(tree.show(&monitor.poll().unwrap()), "added low/b.json");
}

#[test]
fn a_changed_file_does_not_wait_as_long_as_a_load_of_all_files() {
    let tree = tree();
    for number in 0..2000 {
        tree.write(&format!("low/{number}.json"), hook());
    }
    let mut followed = tree.monitor(&DIRS);
    tree.write("low/a.json", hook_with("/bin/sh"));
    assert_eq!(followed.monitor.poll().unwrap(), []);
    let due = followed.monitor.due_time().expect("the change waits for a load");
    assert!(due <= Instant::now() + MonitorOptions::default().coalesce);
    assert_eq!(followed.next(), "changed low/a.json");
}
