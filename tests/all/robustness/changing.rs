//! Directories that change while they are read.

use std::path::Path;
use std::{fs, io};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{self, HookError, LoadOptions, LoadedHooks};
use oci_hooks_files::fs::ReadError;

use crate::robustness::limited::LimitedDir;

const CHANGES: usize = 2000;

fn hook(arg: &str) -> String {
    format!(
        r#"{{"version":"1.0.0","hook":{{"path":"/bin/true","args":["{arg}"]}},"when":{{"always":true}},"stages":["poststop"]}}"#
    )
}

/// Loads a directory repeatedly while another thread changes it.
fn load_while_changing(
    place: &LimitedDir,
    change: impl Fn(&Path, usize) + Sync,
    check: impl Fn(&LoadedHooks),
) {
    let dir = place.path("hooks.d");
    let mut options = LoadOptions::for_consumer(&PODMAN);
    options.dirs = vec![dir.clone()];
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| (0..CHANGES).for_each(|round| change(&dir, round)));
        while !changer.is_finished() {
            check(&hooks::load(&options));
        }
        changer.join().unwrap();
    });
}

fn is_vanished(error: &HookError) -> bool {
    matches!(error, HookError::Read(ReadError::Path(error)) if error.source.kind() == io::ErrorKind::NotFound)
}

#[test]
fn vanishing_directory_is_missing_or_empty() {
    let place = LimitedDir::new();
    let change = |dir: &Path, _| {
        for name in ["a.json", "b.json", "c.json"] {
            fs::write(dir.join(name), hook("x")).unwrap();
        }
        fs::remove_dir_all(dir).unwrap();
        fs::create_dir(dir).unwrap();
    };
    load_while_changing(&place, change, |loaded| {
        assert!(loaded.hooks.len() <= 3);
        for problem in &loaded.problems {
            // A file is created empty and then written.
            let is_empty = problem.source.class() == "json-syntax";
            assert!(is_empty || is_vanished(&problem.source), "{problem}: {}", problem.source);
        }
    });
}

#[test]
fn vanishing_files_are_ignored() {
    let place = LimitedDir::new();
    place.write("hooks.d/stays.json", hook("x"));
    place.write("new", hook("x"));
    let change = |dir: &Path, round: usize| {
        let path = dir.join(format!("{}.json", round % 20));
        fs::copy(dir.join("../new"), dir.join("../copy")).unwrap();
        fs::rename(dir.join("../copy"), &path).unwrap();
        if round.is_multiple_of(3) {
            fs::remove_file(path).unwrap();
        }
    };
    load_while_changing(&place, change, |loaded| {
        assert!(loaded.hooks.get("stays.json".as_ref()).is_some());
        for problem in &loaded.problems {
            assert!(
                is_vanished(&problem.source) && !problem.fatal,
                "{problem}: {}",
                problem.source
            );
        }
    });
}

#[test]
fn replaced_file_is_old_or_new_and_never_partial() {
    let place = LimitedDir::new();
    let texts = ["short", &"long ".repeat(10_000)].map(hook);
    place.write("hooks.d/a.json", &texts[0]);
    let change = |dir: &Path, round: usize| {
        fs::write(dir.join("a.json.new"), &texts[round % 2]).unwrap();
        fs::rename(dir.join("a.json.new"), dir.join("a.json")).unwrap();
    };
    load_while_changing(&place, change, |loaded| {
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let arg = &loaded.hooks.iter().next().unwrap().definition.hook.args[0];
        assert!(["short".len(), "long ".len() * 10_000].contains(&arg.len()));
    });
}

#[test]
fn file_written_in_place_is_at_most_a_problem() {
    let place = LimitedDir::new();
    let texts = ["short", &"long ".repeat(10_000)].map(hook);
    let change =
        |dir: &Path, round: usize| fs::write(dir.join("a.json"), &texts[round % 2]).unwrap();
    load_while_changing(&place, change, |loaded| {
        assert!(loaded.hooks.len() + loaded.problems.len() <= 1);
    });
}

#[test]
fn file_that_changes_its_type_is_at_most_a_problem() {
    let place = LimitedDir::new();
    let change = |dir: &Path, round: usize| {
        let path = dir.join("a.json");
        match round % 3 {
            0 => fs::write(&path, hook("x")).unwrap(),
            1 => fs::create_dir(&path).unwrap(),
            _ => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
        }
        if round % 3 == 1 { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
    };
    load_while_changing(&place, change, |loaded| {
        assert!(loaded.hooks.len() + loaded.problems.len() <= 1, "{:?}", loaded.problems);
    });
}
