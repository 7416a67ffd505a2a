//! The test machinery itself: users who are not root, on hosts as distributions make them.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;

use crate::support::program;
use crate::support::world::{Ids, OUTSIDE, RANGE, World};

#[test]
fn users_have_sessions_and_ids_that_nobody_else_has() {
    let world = World::new();
    let [ranges, none] = [Ids::Ranges, Ids::None].map(|ids| world.user(ids));
    for user in [&ranges, &none] {
        let seen = world
            .shell_as(user, "id -u; id -g; id -G; echo $HOME; touch here $XDG_RUNTIME_DIR/x; pwd");
        let (id, home) = (user.id, user.home.display());
        assert_eq!(seen, format!("{id}\n{id}\n{id}\n{home}\n{home}\n"));
        assert_eq!(user.foreign(&world, &user.home), "");
    }
    assert_ne!(ranges.id, none.id);
    let theirs = world.host().shell("cat /etc/subuid /etc/subgid");
    let line = format!("{}:{}:{RANGE}\n", ranges.name, ranges.first.unwrap());
    assert_eq!(theirs, line.repeat(2));
    // Nothing of it is in the files of this machine.
    let machine = std::fs::read_to_string("/etc/passwd").unwrap();
    assert!(!machine.contains(&ranges.name), "{machine}");
    let sees = world.run_as(&none, Command::new("ls").arg(&ranges.runtime));
    assert!(sees.failure().contains("Permission denied"));
}

#[test]
fn files_of_others_are_found() {
    let world = World::new();
    let user = world.user(Ids::Ranges);
    let made = user.home.join("made").display().to_string();
    world.host().shell(&format!("touch {made}; chown {}:7 {made}", user.id));
    assert_eq!(user.foreign(&world, &user.home), format!("{made} {}:7\n", user.id));
}

/// All ids that a distribution gives are mapped, by its own programs.
#[test]
fn the_kernel_lets_users_have_user_namespaces() {
    let world = World::new();
    let user = world.user(Ids::Ranges);
    let script = "unshare --user --map-root-user --map-users auto --map-groups auto --mount --net --pid --fork \
                  sh -ec 'mount -t proc proc /proc; mount -t tmpfs tmpfs /mnt; cat /proc/self/uid_map'";
    let map = world.shell_as(&user, script);
    let words: Vec<_> = map.split_whitespace().collect();
    let (first, own) = (user.first.unwrap().to_string(), user.id.to_string());
    assert!(words.contains(&first.as_str()) && words.contains(&own.as_str()), "{map}");
}

#[test]
fn there_are_an_outside_and_devices_for_all() {
    let world = World::new();
    let user = world.user(Ids::None);
    world.shell_as(&user, "exec 3<>/dev/net/tun 4<>/dev/fuse");
    let outside = world.listen_outside();
    let port = outside.local_addr().unwrap().port();
    let answers = thread::spawn(move || outside.accept().unwrap().0.write_all(b"hello\n"));
    let said = world.shell_as(&user, &format!("busybox nc {OUTSIDE} {port} </dev/null"));
    assert_eq!(said, "hello\n");
    answers.join().unwrap().unwrap();
}

/// They have other numbers for this process, where they may be anybody's.
#[test]
fn what_is_killed_is_of_the_host() {
    let world = World::new();
    let user = world.user(Ids::Ranges);
    let mut sleep = Command::new("sleep");
    let mut child = world.host().spawn(user.become_by(sleep.arg("1000")));
    program::wait_until("it runs as the user", || world.named("sleep").len() == 1);
    let pids = world.named("sleep");
    assert_ne!(pids, [child.id()], "the numbers of a host are its own");
    world.kill(&pids);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let mut sleep = Command::new("sleep");
    let mut child = world.host().spawn(user.become_by(sleep.arg("1000")));
    world.kill_all_of(&user);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}
