//! Checks the files in hooks.d whose hooks run for containers.

use std::path::PathBuf;

use oci_hooks::hooks::pipeline::format_directories;
use oci_hooks::hooks::trust;
use oci_hooks_files::error::chain;
use oci_hooks_files::quantity::format_count;

use super::HostCheck;
use crate::sections::HooksSection;

const NAME: &str = "hooks";

/// Checks the hook files. An unusable file stops all containers from starting; one that another user can change
/// stops the containers that it matches.
pub fn check(section: &HooksSection) -> HostCheck {
    let options = match section.options() {
        Ok(Some(options)) => options,
        Ok(None) => return HostCheck::ok(NAME, "disabled in the settings"),
        Err(error) => return HostCheck::fail(NAME, chain(&error), "correct `as` under [hooks]"),
    };
    let pipeline = options.pipeline();
    let loaded = pipeline.load_hooks();
    let is_there = |dir: &&PathBuf| !loaded.missing_dirs.contains(dir);
    let there = loaded.dirs.iter().filter(is_there).map(|dir| format!(" {}", dir.display()));
    let lint = format!(
        "fix it: `oci-hooks lint --as {}{}` finds all mistakes",
        section.consumer,
        there.collect::<String>()
    );
    let fatal = loaded.problems.iter().find(|problem| problem.fatal && !options.skip_bad_files);
    if let Some(problem) = fatal {
        return HostCheck::fail(NAME, chain(problem), lint);
    }
    let trusted = pipeline.strict.iter().try_for_each(|options| {
        loaded.hooks.iter().try_for_each(|file| trust::check(file, options))
    });
    if let Err(error) = trusted {
        let hint = error.hint().unwrap_or_else(|| "correct it, or remove the hook file".to_owned());
        return HostCheck::fail(NAME, chain(&error), hint);
    }
    let dirs = format_directories(&loaded.dirs);
    let found = format!("{} in {dirs}", format_count(loaded.hooks.len(), "hook"));
    match loaded.problems.len() {
        0 => HostCheck::ok(NAME, found),
        unused => {
            let unused = format_count(unused, "file");
            HostCheck::warn(NAME, format!("{found}; {unused} that cannot be used"), lint)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn hook_files_that_stop_containers_are_failures() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        let section = |strict, skip_bad_files| HooksSection {
            dirs: Some(vec![dir.path().to_owned()]),
            strict,
            skip_bad_files,
            ..HooksSection::default()
        };
        let hook = |program: &str| {
            format!(
                r#"{{"version": "1.0.0", "hook": {{"path": "{program}"}}, "when": {{"always": true}}, "stages": ["poststop"]}}"#
            )
        };
        for (text, mode, section, expected) in [
            (hook("/bin/true"), 0o644, section(true, false), "1 hook in "),
            (hook("/bin/true"), 0o666, section(true, false), "fail: writable by everyone"),
            (hook("/bin/true"), 0o666, section(false, false), "1 hook in "),
            ("{".to_owned(), 0o644, section(true, false), "fail: a.json"),
            ("{".to_owned(), 0o644, section(true, true), "1 file that cannot be used"),
            (hook("/nonexistent"), 0o644, section(true, false), "1 file that cannot be used"),
            (
                String::new(),
                0o644,
                HooksSection { enabled: false, ..section(true, false) },
                "disabled",
            ),
        ] {
            fs::write(&file, &text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let found = check(&section);
            let (fails, wanted) = match expected.strip_prefix("fail: ") {
                Some(wanted) => (true, wanted),
                None => (false, expected),
            };
            let message = found.finding();
            assert_eq!(found.is_failure(), fails, "{text} {mode:o}: {message}");
            assert!(message.contains(wanted), "{text} {mode:o}: {message}");
        }
    }
}
