//! What may be behind the failure of a step that wanted containers of its own.
//!
//! The kernel tells nobody that a program was denied a user namespace, and programs say little more than
//! "operation not permitted". So a step that failed is looked at: if it names a program that cannot do without
//! user namespaces, a line in the job's log says what denies them and which setting would allow them. That
//! the step failed by it is not said: nobody knows.

use std::path::{Path, PathBuf};

use crate::sys::fs::SystemRoot;

/// Programs that make user namespaces.
const PROGRAMS: [&str; 10] = [
    "apptainer",
    "buildah",
    "buildkitd",
    "bwrap",
    "kind",
    "nerdctl",
    "podman",
    "rootlesskit",
    "singularity",
    "unshare",
];

/// More than anybody writes below `run:`.
const MAX_SCRIPT_BYTES: u64 = 1 << 20;

/// What a step executes, and where user namespaces could be allowed to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The program and its arguments: of `run:`, the path of the script in the container is among them.
    pub(super) words: Vec<String>,
    /// The table of the settings, as messages name it.
    pub(super) section: String,
}

impl Denial {
    /// Returns a line about the step, which has failed, if it names a program that makes user namespaces.
    ///
    /// `temp` is the runner's directory of scripts, `RUNNER_TEMP`.
    pub fn explain(&self, temp: &Path) -> Option<String> {
        let program = self.program(temp)?;
        Some(format!(
            "this step names {program}, which makes user namespaces, and programs in containers may not do so \
             on this machine: if it failed by that, its admin can allow it with `nesting = true` under {}",
            self.section
        ))
    }

    fn program(&self, temp: &Path) -> Option<&'static str> {
        if let Some(program) = self.words.iter().find_map(|word| named(word)) {
            return Some(program);
        }
        let script = self.words.iter().find_map(|word| script_of(word))?;
        // The job may have put something else there.
        let text = SystemRoot::mounted_at(temp).read(&script, MAX_SCRIPT_BYTES).ok().flatten()?;
        let text = String::from_utf8_lossy(&text);
        text.lines().filter(|line| !line.trim_start().starts_with('#')).find_map(named)
    }
}

/// Returns the name of the runner's script whose path in the container is in a word, if there is one. The
/// runner puts the words of a custom shell around it.
fn script_of(word: &str) -> Option<PathBuf> {
    let (_, name) = word.rsplit_once("/_temp/")?;
    let name: String =
        name.chars().take_while(|&c| c.is_ascii_alphanumeric() || "-_.".contains(c)).collect();
    (!name.is_empty() && name != "..").then(|| PathBuf::from(name))
}

/// Returns the program of a text, which has it as a word.
fn named(text: &str) -> Option<&'static str> {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| PROGRAMS.into_iter().find(|program| *program == word))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn denial(words: &[&str]) -> Denial {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Denial { words, section: "[policy] in /etc/x.toml".to_owned() }
    }

    #[test]
    fn a_step_that_names_such_a_program_is_told_of_the_setting() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a-1.sh");
        let step = denial(&["sh", "-e", "/__w/_temp/a-1.sh"]);
        for (script, expected) in [
            ("set -e\nsudo buildah bud .\n", Some("names buildah,")),
            ("PATH=/opt/bin /usr/bin/podman run x", Some("names podman,")),
            ("kind create cluster", Some("names kind,")),
            ("# no podman here\nmake", None),
            ("make mankind kinds", None),
            ("", None),
        ] {
            fs::write(&path, script).unwrap();
            let line = step.explain(temp.path());
            match expected {
                None => assert_eq!(line, None, "{script}"),
                Some(expected) => {
                    let line = line.expect(script);
                    assert!(line.contains(expected), "{line}");
                    assert!(
                        line.ends_with("`nesting = true` under [policy] in /etc/x.toml"),
                        "{line}"
                    );
                }
            }
        }
    }

    #[test]
    fn words_of_other_shells_and_of_actions_are_looked_at_too() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("b.sh"), "unshare -U true").unwrap();
        for words in [
            &["bash", "--noprofile", "-c", "source '/__w/_temp/b.sh'"][..],
            &[
                "/__e/node20/bin/node",
                "/__w/_actions/redhat-actions/buildah-build/v2/dist/index.js",
            ],
        ] {
            assert!(denial(words).explain(temp.path()).is_some(), "{words:?}");
        }
    }

    #[test]
    fn what_a_job_put_in_the_place_of_a_script_leads_nowhere() {
        let (temp, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("c.sh"), "podman").unwrap();
        symlink(other.path().join("c.sh"), temp.path().join("c.sh")).unwrap();
        for path in ["/__w/_temp/c.sh", "/__w/_temp/..", "/__w/_temp/", "/__w/_temp/missing.sh"] {
            assert_eq!(denial(&["sh", path]).explain(temp.path()), None, "{path}");
        }
    }
}
