//! Checks of the test machinery: ordinary users on hosts as distributions set them up.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;

use oci_hooks_testsupport::program;
use oci_hooks_testsupport::world::{OUTSIDE, RANGE, UserIds, UserWorld};

#[test]
fn test_users_have_sessions_and_unused_ids() {
    let world = UserWorld::new();
    let [ranges, none] = [UserIds::Ranges, UserIds::None].map(|ids| world.user(ids));
    for user in [&ranges, &none] {
        let seen = world
            .shell_as(user, "id -u; id -g; id -G; echo $HOME; touch here $XDG_RUNTIME_DIR/x; pwd");
        let (id, home) = (user.id, user.home.display());
        assert_eq!(seen, format!("{id}\n{id}\n{id}\n{home}\n{home}\n"));
        assert_eq!(user.find_foreign_files(&world, &user.home), "");
    }
    assert_ne!(ranges.id, none.id);
    let theirs = world.host().shell("cat /etc/subuid /etc/subgid");
    let line = format!("{}:{}:{RANGE}\n", ranges.name, ranges.first.unwrap());
    assert_eq!(theirs, line.repeat(2));
    // The machine's own files are unchanged.
    let machine = std::fs::read_to_string("/etc/passwd").unwrap();
    assert!(!machine.contains(&ranges.name), "{machine}");
    let sees = world.run_as(&none, Command::new("ls").arg(&ranges.runtime));
    assert!(sees.failure().contains("Permission denied"));
}

#[test]
fn foreign_files_are_found() {
    let world = UserWorld::new();
    let user = world.user(UserIds::Ranges);
    let made = user.home.join("made").display().to_string();
    world.host().shell(&format!("touch {made}; chown {}:7 {made}", user.id));
    assert_eq!(user.find_foreign_files(&world, &user.home), format!("{made} {}:7\n", user.id));
}

/// All subordinate ids are mapped with the distribution's programs.
#[test]
fn kernel_allows_user_namespaces() {
    let world = UserWorld::new();
    let user = world.user(UserIds::Ranges);
    let script = "unshare --user --map-root-user --map-users auto --map-groups auto --mount --net --pid --fork \
                  sh -ec 'mount -t proc proc /proc; mount -t tmpfs tmpfs /mnt; cat /proc/self/uid_map'";
    let map = world.shell_as(&user, script);
    let words: Vec<_> = map.split_whitespace().collect();
    let (first, own) = (user.first.unwrap().to_string(), user.id.to_string());
    assert!(words.contains(&first.as_str()) && words.contains(&own.as_str()), "{map}");
}

#[test]
fn test_world_has_an_outside_network_and_devices() {
    let world = UserWorld::new();
    let user = world.user(UserIds::None);
    world.shell_as(&user, "exec 3<>/dev/net/tun 4<>/dev/fuse");
    let outside = world.listen_outside();
    let port = outside.local_addr().unwrap().port();
    let answers = thread::spawn(move || outside.accept().unwrap().0.write_all(b"hello\n"));
    let said = world.shell_as(&user, &format!("busybox nc {OUTSIDE} {port} </dev/null"));
    assert_eq!(said, "hello\n");
    answers.join().unwrap().unwrap();
}

/// Process ids on the host differ from those in the namespace of this test, which may belong to any process.
#[test]
fn processes_are_killed_by_their_ids_on_the_host() {
    let world = UserWorld::new();
    let user = world.user(UserIds::Ranges);
    let mut sleep = Command::new("sleep");
    let mut child = world.host().spawn(user.switch_user(sleep.arg("1000")));
    program::wait_until("it runs as the user", || world.find_processes("sleep").len() == 1);
    let pids = world.find_processes("sleep");
    assert_ne!(pids, [child.id()], "the numbers of a host are its own");
    world.kill(&pids);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let mut sleep = Command::new("sleep");
    let mut child = world.host().spawn(user.switch_user(sleep.arg("1000")));
    world.kill_all_of(&user);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}
