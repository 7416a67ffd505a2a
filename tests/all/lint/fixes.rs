//! `--fix` and `--diff`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

use crate::lint::env::{data, golden, lint_in};

const BROKEN: &str = "{\n  // no comment\n  \"version\": 1.0,\n  \"hook\": {\"path\": \"/bin/true\", \"env\": [\"A=b\"], \"timout\": 1,},\n  \"when\": {\"always\": \"true\"},\n  \"stages\": [\"poststop\"]\n}\n";
const FIXED: &str = "{\n  \"version\": \"1.0.0\",\n  \"hook\": {\"path\": \"/bin/true\", \"env\": [\"A=b\"], \"timeout\": 1},\n  \"when\": {\"always\": true},\n  \"stages\": [\"poststop\"]\n}\n";

#[test]
fn fix_corrects_files_in_place_and_reports_changes() {
    let temp = tempfile::tempdir().unwrap();
    let real = temp.path().join("real.json");
    fs::write(&real, BROKEN).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(temp.path().join("dir")).unwrap();
    symlink("../real.json", temp.path().join("dir/a.json")).unwrap();
    fs::write(temp.path().join("dir/not.txt"), BROKEN).unwrap();

    let ran = lint_in(temp.path(), &["--content-only", "--fix", "dir"], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "1 hook file, no findings\n"));
    golden(&data("output/fix.stderr"), &ran.stderr);
    assert_eq!(fs::read_to_string(&real).unwrap(), FIXED);
    assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
    assert!(temp.path().join("dir/a.json").is_symlink());
    assert_eq!(fs::read_to_string(temp.path().join("dir/not.txt")).unwrap(), BROKEN);
}

#[test]
fn files_that_cannot_be_replaced_do_not_block_the_others() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    for name in ["a", "b"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(&format!("{name}/{name}.json")), BROKEN).unwrap();
    }
    let set_mode = |mode| fs::set_permissions(at("a"), fs::Permissions::from_mode(mode)).unwrap();
    // Root may write to all directories, but does not write through links of other users.
    let said = if rustix::process::geteuid().is_root() {
        fs::rename(at("a/a.json"), at("a/real")).unwrap();
        symlink("real", at("a/a.json")).unwrap();
        lchown(at("a/a.json"), Some(54321), None).unwrap();
        "a/a.json is a symlink of "
    } else {
        set_mode(0o555);
        "error: cannot create a temporary file in the directory of a/a.json: Permission denied (os error 13)\n  \
         hint: run as root\n"
    };
    let ran = lint_in(temp.path(), &["--content-only", "--fix", "a", "b"], "");
    set_mode(0o755);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert!(ran.stdout.contains("a/a.json:"), "{}", ran.stdout);
    assert_eq!(fs::read_to_string(at("b/b.json")).unwrap(), FIXED);
}

#[test]
fn diff_shows_fixes_without_changing_files() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a.json");
    fs::write(&path, BROKEN).unwrap();
    let ran = lint_in(temp.path(), &["--content-only", "--diff", "a.json"], "");
    assert_eq!(ran.code, Some(1));
    golden(&data("output/fix.diff"), &ran.stdout);
    assert_eq!(fs::read_to_string(&path).unwrap(), BROKEN);
    fs::write(&path, FIXED).unwrap();
    let ran = lint_in(temp.path(), &["--content-only", "--diff", "a.json"], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
}

#[test]
fn diff_of_one_line_is_what_fix_writes() {
    let temp = tempfile::tempdir().unwrap();
    let fixed = "{\"version\": \"1.0.0\", \"hook\": {\"path\": \"/bin/true\", \"env\": [\"A=b\"], \"timeout\": 1}, \"when\": {\"always\": true}, \"stages\": [\"poststop\"]}\n";
    for broken in [fixed.replace("1}", "1,}"), fixed.replace("true}", "\"true\"}")] {
        fs::write(temp.path().join("a.json"), &broken).unwrap();
        let ran = lint_in(temp.path(), &["--content-only", "--diff", "a.json"], "");
        assert_eq!(ran.code, Some(1));
        assert!(ran.stdout.ends_with(&format!("\n-{broken}+{fixed}")), "{}", ran.stdout);
        assert_eq!(lint_in(temp.path(), &["--content-only", "--fix", "a.json"], "").code, Some(0));
        assert_eq!(fs::read_to_string(temp.path().join("a.json")).unwrap(), fixed);
    }
}

#[test]
fn standard_input_is_fixed_to_standard_output() {
    let temp = tempfile::tempdir().unwrap();
    let ran = lint_in(temp.path(), &["--content-only", "--fix", "-"], BROKEN);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), FIXED));
    fs::write(temp.path().join("a.json"), BROKEN).unwrap();
    let ran = lint_in(temp.path(), &["--content-only", "--fix", "-", "a.json"], BROKEN);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("--fix cannot combine standard input"), "{}", ran.stderr);
}

/// A shell passes `<(command)` as the path of a pipe.
#[test]
fn a_pipe_is_linted_and_fixed_like_standard_input() {
    let temp = tempfile::tempdir().unwrap();
    let pipe = "/proc/self/fd/0";
    let ran = lint_in(temp.path(), &["--content-only", pipe], BROKEN);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains("error[OH004]"), "{}", ran.stdout);
    let ran = lint_in(temp.path(), &["--content-only", "--fix", pipe], BROKEN);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), FIXED));
}

#[test]
fn disabled_rules_are_not_fixed() {
    let temp = tempfile::tempdir().unwrap();
    let args = ["--content-only", "--fix", "--allow", "unknown-key", "-"];
    let ran = lint_in(temp.path(), &args, BROKEN);
    assert!(ran.stdout.contains("timout"), "{}", ran.stdout);
}

#[test]
fn a_tree_is_corrected_and_linted_directory_by_directory() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    for dir in ["top/x/deep", "top/docs", "top/.git"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    for file in ["top/a.json", "top/x/A.json", "top/x/deep/a.json", "top/.git/a.json"] {
        fs::write(at(file), BROKEN).unwrap();
    }
    fs::write(at("top/docs/a.md"), BROKEN).unwrap();
    symlink("..", at("top/x/loop")).unwrap();

    let ran = lint_in(temp.path(), &["--content-only", "--recursive", "--diff", "top"], "");
    assert_eq!((ran.code, ran.stdout.matches("+++ ").count()), (Some(1), 3), "{}", ran.stdout);
    let ran = lint_in(temp.path(), &["--content-only", "-r", "--fix", "top"], "");
    // Names that differ only in case would be a finding if they were in the same directory.
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "3 hook files, no findings\n"));
    assert_eq!(fs::read_to_string(at("top/x/deep/a.json")).unwrap(), FIXED);
    assert_eq!(fs::read_to_string(at("top/.git/a.json")).unwrap(), BROKEN);
    let ran = lint_in(temp.path(), &["--content-only", "top"], "");
    assert!(ran.stdout.contains("--> top/x\n\n1 hook file: 1 note\n"), "{}", ran.stdout);
}

#[test]
fn files_that_cannot_be_read_do_not_block_a_diff() {
    let temp = tempfile::tempdir().unwrap();
    let fifo = temp.path().join("fifo.json");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    symlink("/dev/zero", temp.path().join("zero.json")).unwrap();
    fs::write(temp.path().join("a.json"), BROKEN).unwrap();
    let ran = lint_in(temp.path(), &["--content-only", "--diff", "."], "");
    assert_eq!((ran.code, ran.stdout.matches("+++ ").count()), (Some(1), 1), "{}", ran.stdout);
}
