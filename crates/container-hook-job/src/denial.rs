//! Hints for steps that failed and may have needed user namespaces.
//!
//! The kernel does not report that a program was denied a user namespace, and programs print little more than
//! "operation not permitted". So if a failed step names a program that needs user namespaces, a line in the
//! job's log names the policy that denies them and the setting that would allow them. The line does not claim
//! that the step failed for this reason, because the reason is unknown.

use std::path::{Path, PathBuf};

use oci_hooks_files::fs::SystemRoot;

/// Programs that create user namespaces.
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

/// Maximum size of a script that is searched; scripts under `run:` are shorter.
const MAX_SCRIPT_BYTES: u64 = 1 << 20;

/// A step that may not create user namespaces: its command, and the settings table that could allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestingDenial {
    /// Program and arguments; for `run:`, they include the path of the script in the container.
    pub words: Vec<String>,
    /// Settings table that could allow user namespaces, with its file, for messages.
    pub section: String,
}

impl NestingDenial {
    /// Returns a hint for a failed step whose script calls a program that creates user namespaces, which is denied.
    ///
    /// `temp` is the runner's directory of scripts, `RUNNER_TEMP`.
    pub fn explain(&self, temp: &Path) -> Option<String> {
        let program = self.program(temp)?;
        Some(format!(
            "this step mentions {program}, which creates user namespaces; programs in containers may not create \
             them on this machine: if the step failed because of that, the admin can set `nesting = true` under {}",
            self.section
        ))
    }

    fn program(&self, temp: &Path) -> Option<&'static str> {
        if let Some(program) = self.words.iter().find_map(|word| find_program(word)) {
            return Some(program);
        }
        let script = self.words.iter().find_map(|word| script_file_name(word))?;
        // The job may have replaced the script, for example by a symbolic link.
        let text = SystemRoot::mounted_at(temp).read(&script, MAX_SCRIPT_BYTES).ok().flatten()?;
        let text = String::from_utf8_lossy(&text);
        text.lines().filter(|line| !line.trim_start().starts_with('#')).find_map(find_program)
    }
}

/// Returns the file name of the runner's script if a word contains its path in the container. With a custom
/// shell, the runner puts the words of the shell around the path.
fn script_file_name(word: &str) -> Option<PathBuf> {
    let (_, name) = word.rsplit_once("/_temp/")?;
    let name: String =
        name.chars().take_while(|&c| c.is_ascii_alphanumeric() || "-_.".contains(c)).collect();
    (!name.is_empty() && name != "..").then(|| PathBuf::from(name))
}

/// Returns the first word of a text that is one of [`PROGRAMS`].
fn find_program(text: &str) -> Option<&'static str> {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| PROGRAMS.into_iter().find(|program| *program == word))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn denial(words: &[&str]) -> NestingDenial {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        NestingDenial { words, section: "[policy] in /etc/x.toml".to_owned() }
    }

    #[test]
    fn step_that_names_a_container_program_gets_a_hint() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a-1.sh");
        let step = denial(&["sh", "-e", "/__w/_temp/a-1.sh"]);
        for (script, expected) in [
            ("set -e\nsudo buildah bud .\n", Some("mentions buildah,")),
            ("PATH=/opt/bin /usr/bin/podman run x", Some("mentions podman,")),
            ("kind create cluster", Some("mentions kind,")),
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
    fn other_shells_and_actions_are_searched_too() {
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
    fn links_in_place_of_a_script_are_not_followed() {
        let (temp, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("c.sh"), "podman").unwrap();
        symlink(other.path().join("c.sh"), temp.path().join("c.sh")).unwrap();
        for path in ["/__w/_temp/c.sh", "/__w/_temp/..", "/__w/_temp/", "/__w/_temp/missing.sh"] {
            assert_eq!(denial(&["sh", path]).explain(temp.path()), None, "{path}");
        }
    }
}
