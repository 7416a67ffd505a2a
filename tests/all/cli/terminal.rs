//! Output fitted to the terminal's width.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::cli::env::HookEnv;

/// Runs the program on a terminal with this many columns, using `script` of util-linux.
fn run_on_terminal(columns: usize, arguments: &str, directory: &Path) -> String {
    let program = env!("CARGO_BIN_EXE_oci-hooks");
    let line = format!("stty cols {columns} rows 24 && exec '{program}' {arguments}");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let ran = script.current_dir(directory).env("NO_COLOR", "1").output().unwrap();
    assert!(ran.stderr.is_empty(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap().replace("\r\n", "\n")
}

/// Returns lines that exceed the width although they could have been wrapped.
fn find_wide_lines(text: &str, columns: usize) -> Vec<&str> {
    let is_wide = |line: &&str| line.chars().count() > columns && line.trim().contains(' ');
    text.lines().filter(is_wide).collect()
}

#[test]
fn output_fits_the_terminal() {
    let env = HookEnv::with_hooks();
    let explain = "explain config.json --hooks-dir usr --hooks-dir etc";
    fs::create_dir_all(env.path("root/usr/bin")).unwrap();
    for engine in ["podman", "dockerd", "containerd"] {
        let program = format!("root/usr/bin/{engine}");
        env.write(&program, "");
        fs::set_permissions(env.path(&program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let lines = [
        "--help",
        "explain --help",
        "doctor --help",
        "lint --help",
        "new --help",
        "doctor --root root",
        explain,
    ];
    for columns in [60, 80, 140] {
        for line in lines {
            let text = run_on_terminal(columns, line, &env.path(""));
            assert_eq!(find_wide_lines(&text, columns), [""; 0], "{columns}: {line}\n{text}");
            assert!(text.lines().count() > 3, "{columns}: {line}\n{text}");
        }
    }
    let help = run_on_terminal(140, "lint --help", &env.path(""));
    assert!(help.lines().any(|line| line.chars().count() > 100), "{help}");
}

#[test]
fn continuation_lines_are_indented() {
    let env = HookEnv::with_hooks();
    let text = run_on_terminal(
        60,
        "explain config.json --as podman --hooks-dir usr --hook 10-python",
        &env.path(""),
    );
    let expected = "\
podman for a container that runs `/usr/bin/python3`, has 1
    annotation and no bind mounts

usr
  + 10-python.json  injected at createRuntime, poststop:
                    command `/usr/bin/python3` matches
                    `/python3$`

Injected in this order: 10-python.json
";
    assert_eq!(text, expected);
    let help = run_on_terminal(60, "--help", &env.path(""));
    let expected = "
Examples:
  oci-hooks explain NAME
      Why did my hook not run in this container?
  oci-hooks inject config.json
      Print config.json as podman would write it
";
    assert!(help.contains(expected), "{help}");
}

#[test]
fn control_characters_in_a_diff_are_escaped() {
    let env = HookEnv::new();
    env.hook("a.json", r#""always": true"#, r#""poststop""#);
    env.write("a.json", &env.read("a.json").replacen('{', "{\n  // \u{1b}[2J!", 1));
    let text = run_on_terminal(80, "lint --content-only --diff a.json", &env.path(""));
    assert!(text.contains("\n-  // \\u{1b}[2J!\n") && !text.contains('\u{1b}'), "{text:?}");
    let ran = env.run(&["lint", "--content-only", "--diff", "a.json"]);
    assert!(ran.stdout.contains("\n-  // \u{1b}[2J!\n"), "{ran:?}");
}
