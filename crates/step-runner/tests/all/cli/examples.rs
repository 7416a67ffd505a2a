//! The examples of docs/steps.md, run as printed, without a package; `tests/system` runs whole pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oci_hooks_testsupport::program;

fn top() -> PathBuf {
    program::repository("")
}

/// Returns the code blocks of a document in a language.
fn blocks(file: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(top().join(file)).unwrap();
    let open = format!("```{language}\n");
    text.split(&open).skip(1).map(|rest| rest.split("```\n").next().unwrap().to_owned()).collect()
}

/// Returns the commands of a block, each with its expected output.
fn commands(block: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((_, output))) => *output += &format!("{line}\n"),
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    commands
}

/// Copies the examples to a temporary directory.
fn examples() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("docs/examples");
    fs::create_dir_all(&to).unwrap();
    let copied =
        Command::new("cp").arg("-r").arg(top().join("docs/examples/steps")).arg(&to).status();
    assert!(copied.unwrap().success());
    (dir, to.join("steps"))
}

fn run(command: &str, dir: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_step-runner"));
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", program.parent().unwrap().display());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec 2>&1; {command}")).current_dir(dir);
    shell.env_clear().env("PATH", path).env("HOME", dir).stdin(Stdio::null());
    String::from_utf8(shell.output().unwrap().stdout).unwrap()
}

/// Runs the commands of blocks that call `step-runner`, and returns their number.
fn run_commands(file: &str) -> usize {
    let (_top, steps) = examples();
    let mut count = 0;
    for block in blocks(file, "console") {
        // Blocks with background processes are run by `tests/system`.
        let is_root = block.lines().any(|line| line.starts_with("# "));
        if !block.contains("$ step-runner ") || block.contains(" &\n") || is_root {
            continue;
        }
        let mut dir = steps.clone();
        for (command, expected) in commands(&block) {
            match command.strip_prefix("cd ") {
                Some(to) if to.ends_with("steps") => {}
                Some(to) => dir.push(to),
                None => {
                    assert_eq!(run(&command, &dir), expected, "{file}: {command}");
                    count += 1;
                }
            }
        }
    }
    count
}

#[test]
fn examples_print_the_documented_output() {
    assert!(run_commands("docs/steps.md") >= 7);
}

#[test]
fn files_match_the_documentation() {
    let (_dir, steps) = examples();
    let printed = [blocks("docs/steps.md", "yaml"), blocks("docs/steps.md", "sh")].concat();
    for name in ["compile/step.yml", "compile/compile.sh", "build/step.yml"] {
        let text = fs::read_to_string(steps.join(name)).unwrap();
        assert!(printed.contains(&text), "{name} is not in docs/steps.md as it is");
    }
}
