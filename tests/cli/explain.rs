//! `oci-hooks explain`.

use crate::env::{TestEnv, golden};

#[test]
fn tells_what_becomes_of_each_file_and_why() {
    let ran = TestEnv::with_hooks().run(&["explain"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("explain.txt", &ran.stdout);
}

#[test]
fn json_has_conditions_problems_and_order() {
    let ran = TestEnv::with_hooks().run(&["explain", "--format", "json"]);
    assert_eq!(ran.code, Some(0));
    golden("explain.json", &ran.stdout);
}

#[test]
fn consumers_are_compared_side_by_side() {
    let ran = TestEnv::with_hooks().run(&["explain", "--consumers"]);
    // The width of the columns depends on where the temporary directory is.
    let lines =
        ran.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    golden("explain-consumers.txt", &lines.map(|line| line + "\n").collect::<String>());
}

#[test]
fn one_hook_can_be_asked_for_and_decides_the_exit_code() {
    let env = TestEnv::with_hooks();
    let ran = env.run(&["explain", "--hook", "20-gpu"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(!ran.stdout.contains("10-python"), "{}", ran.stdout);
    assert_eq!(env.run(&["explain", "--hook", "10-python.json"]).code, Some(0));
}

#[test]
fn a_file_that_stops_every_container_is_named() {
    let env = TestEnv::with_hooks();
    env.write("usr/05-comment.json", "{ // no\n}");
    let ran = env.run(&["explain"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stdout
            .contains("podman cannot start any container because of {ROOT}/usr/05-comment.json"),
        "{}",
        ran.stdout
    );
}

#[test]
fn colours_come_when_asked_for() {
    let env = TestEnv::with_hooks();
    assert!(!env.run(&["explain"]).stdout.contains('\u{1b}'));
    assert!(env.run(&["explain", "--color", "always"]).stdout.contains('\u{1b}'));
}
