//! Who fetches: this program by itself, or the program `git`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use super::program;
use crate::sys::fs::read_if_there;

/// Who fetches from repositories by HTTP. Others, by SSH, are always fetched by the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GitMethod {
    /// This program by itself, but the program `git` if it is there and the user has settings for it that
    /// decide about servers, or if the server is too old.
    #[default]
    Auto,
    /// This program by itself.
    Native,
    /// The program `git`.
    Program,
}

/// A text is not the name of a method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to fetch from git repositories {0:?}: expected auto, native or program")]
pub struct UnknownGitMethod(pub String);

impl FromStr for GitMethod {
    type Err = UnknownGitMethod;

    fn from_str(text: &str) -> Result<Self, UnknownGitMethod> {
        match text {
            "auto" => Ok(GitMethod::Auto),
            "native" => Ok(GitMethod::Native),
            "program" => Ok(GitMethod::Program),
            _ => Err(UnknownGitMethod(text.to_owned())),
        }
    }
}

/// More than a file of settings has.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Variables and sections of settings by which git reaches servers otherwise than without them: other
/// addresses, proxies, certificates, passwords.
const VARIABLES: [&str; 6] = [
    "GIT_SSL_CAPATH",
    "GIT_SSL_CERT",
    "GIT_SSL_CIPHER_LIST",
    "GIT_SSL_KEY",
    "GIT_SSL_NO_VERIFY",
    "GIT_SSL_VERSION",
];
const SECTIONS: [&str; 5] = ["credential", "http", "include", "includeif", "url"];

/// Returns whether git has settings for a server that this program does not read, and is there.
pub(super) fn prefers_program(env: &BTreeMap<String, String>, host: &str) -> bool {
    let has_variable = VARIABLES.iter().any(|name| env.contains_key(*name));
    (has_variable || files(env).into_iter().any(|file| has_section(file, host)))
        && program::find(env).is_ok()
}

/// Returns the files that git reads settings from outside of repositories.
fn files(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let dir = |name: &str| env.get(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let home = dir("HOME");
    let config = dir("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
    let mut files = vec![PathBuf::from("/etc/gitconfig")];
    files.extend(config.map(|config| config.join("git/config")));
    files.extend(home.map(|home| home.join(".gitconfig")));
    files
}

/// Returns whether a file has one of the sections for a host; one that cannot be read may have it.
fn has_section(file: PathBuf, host: &str) -> bool {
    match read_if_there(&file, MAX_SETTINGS_BYTES) {
        Ok(None) => false,
        Ok(Some(text)) => names_section(&String::from_utf8_lossy(&text), host),
        Err(_) => true,
    }
}

fn names_section(text: &str, host: &str) -> bool {
    text.lines().any(|line| {
        let Some(title) = line.trim_start().strip_prefix('[') else { return false };
        let end = title.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(title.len());
        let (name, rest) = title.split_at(end);
        if !SECTIONS.iter().any(|section| name.eq_ignore_ascii_case(section)) {
            return false;
        }
        // These may be for one server only: `[http "https://host/"]`.
        let is_bound = ["credential", "http"].iter().any(|bound| name.eq_ignore_ascii_case(bound));
        match rest.split('"').nth(1).filter(|_| is_bound) {
            Some(url) => url.contains('*') || url.to_ascii_lowercase().contains(host),
            None => true,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_about_servers_are_a_matter_for_the_program() {
        for text in [
            "[url \"https://mirror/\"]\n\tinsteadOf = https://host/",
            "[user]\n\tname = a\n [HTTP]\nproxy = http://p",
            "[http \"https://HOST:8443/\"] sslVerify = false",
            "[credential \"https://*\"]",
            "[credential]\nhelper = store",
            "[includeIf \"gitdir:~/\"]\npath = x",
            "[url.x]\ninsteadOf = y",
        ] {
            assert!(names_section(text, "host"), "{text}");
        }
        for text in
            ["", "[user]\nname = http", "[safe]\n# [http]\n; [url]\n", "[httpx]", "[http \"x\"]"]
        {
            assert!(!names_section(text, "host"), "{text}");
        }
    }

    #[test]
    fn settings_without_the_program_change_nothing() {
        let home = tempfile::tempdir().unwrap();
        let text = |text: &std::path::Path| text.to_str().unwrap().to_owned();
        let bin = home.path().join("bin");
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), text(home.path())),
            ("PATH".to_owned(), text(&bin)),
        ]);
        std::fs::write(home.path().join(".gitconfig"), "[http]\nproxy = x\n").unwrap();
        assert!(!prefers_program(&env, "host"));
        env.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
        assert!(prefers_program(&env, "host"));
        std::fs::write(home.path().join(".gitconfig"), "[user]\nname = x\n").unwrap();
        assert!(!prefers_program(&env, "host"));
        env.insert("GIT_SSL_NO_VERIFY".to_owned(), "1".to_owned());
        assert!(prefers_program(&env, "host"));
    }
}
