//! The terminal picture in README.md matches the current output of the first command there.

use std::process::Command;

use anstyle_svg::Term;

use crate::cli::env::golden;

const ARGUMENTS: &str = "explain hooks.d-examples/bundle --hooks-dir hooks.d-examples";

fn explain(color: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env_clear();
    let ran = command.args(ARGUMENTS.split(' ')).args(["--color", color]).output().unwrap();
    assert_eq!((ran.status.code(), ran.stderr.as_slice()), (Some(0), &b""[..]));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn picture_matches_the_output_of_the_first_command() {
    let text = format!("\u{1b}[2m$\u{1b}[0m cargo run -- {ARGUMENTS}\n{}", explain("always"));
    golden(
        "../../../docs/explain.svg",
        &Term::new().palette(anstyle_svg::WIN10_CONSOLE).render_svg(&text),
    );
}

#[test]
fn picture_has_injected_and_skipped_hooks_and_one_dropped() {
    let text = explain("never");
    let count = |mark: &str| text.lines().filter(|line| line.starts_with(mark)).count();
    assert_eq!(count("  ! "), 1, "{text}");
    assert!(count("  + ") >= 3, "{text}");
    assert!(text.lines().filter(|line| line.contains("  not injected: ")).count() >= 2, "{text}");
}
