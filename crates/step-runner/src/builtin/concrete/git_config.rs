//! Writes configuration files of git directly: other processes could read URLs with tokens in the
//! arguments of `git config`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, create_private};
use oci_hooks_host::removal::remove_tree;

use super::super::error::{BuiltinError, JobPartContext as _};
use super::config::{SourceOptions, remove_user};
use super::context::{JobContext, make_directories};

/// The text of a git configuration file.
#[derive(Debug, Default)]
pub struct GitConfig(String);

impl GitConfig {
    /// Adds `key = "value"` to a section, which may have a subsection. Fails if the value or the
    /// subsection contains a line break or a NUL byte.
    pub fn add(
        &mut self,
        section: &str,
        subsection: Option<&str>,
        key: &str,
        value: &str,
    ) -> Result<(), BuiltinError> {
        let is_bad = |text: &str| text.contains(['\n', '\r', '\0']);
        let error = |part| BuiltinError::GitConfig { part, setting: format!("{section}.{key}") };
        if subsection.is_some_and(is_bad) {
            return Err(error("URL"));
        }
        if is_bad(value) {
            return Err(error("value"));
        }
        let quote = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
        match subsection {
            None => self.0.push_str(&format!("[{section}]\n")),
            Some(name) => self.0.push_str(&format!("[{section} \"{}\"]\n", quote(name))),
        }
        self.0.push_str(&format!("\t{key} = \"{}\"\n", quote(value)));
        Ok(())
    }

    fn include(&mut self, path: &Path) -> Result<(), BuiltinError> {
        self.add("include", None, "path", &path.to_string_lossy())
    }

    /// Writes the file with mode 0600, and replaces any existing file or directory.
    pub fn write(&self, path: &Path) -> Result<(), PathError> {
        remove_tree(path)?;
        create_private(path)?.write_all(self.0.as_bytes()).with_path("write", path)
    }
}

/// Credential helper: prints the job's token when git asks for a password.
const HELPER: &str =
    "!give() { if [ \"$1\" = get ]; then echo \"password=${CI_JOB_TOKEN}\"; fi; }; give";

/// User name for a job token.
const USER: &str = "gitlab-ci-token";

/// Job variables with the paths of TLS files (CA certificates, client certificate, client key), and
/// the keys for them in git's configuration.
const TLS_FILES: [(&str, &str); 3] = [
    ("CI_SERVER_TLS_CA_FILE", "sslCAInfo"),
    ("CI_SERVER_TLS_CERT_FILE", "sslCert"),
    ("CI_SERVER_TLS_KEY_FILE", "sslKey"),
];

/// Paths of the configuration of git in a job.
pub struct GitConfigPaths {
    /// Global configuration of git in the job (`GIT_CONFIG_GLOBAL`), which includes the user's own.
    pub user: PathBuf,
    /// Connection settings for the server, included by the configuration of the repository.
    pub external: PathBuf,
    /// Template directory for new repositories.
    pub template: PathBuf,
}

impl GitConfigPaths {
    pub(super) fn of(job: &JobContext<'_>) -> Self {
        let helper = has_helper(&job.config.get_sources);
        // Same names as in GitLab's runner, which removes files left by other jobs.
        let user = if helper { ".glr.gconf" } else { ".gitconfig" };
        GitConfigPaths {
            user: job.temp_dir.join(user),
            external: job.temp_dir.join(".gitlab-runner.ext.conf"),
            template: job.temp_dir.join("git-template"),
        }
    }
}

/// Returns whether git asks a credential helper for the token, instead of finding it in URLs. With
/// a helper, the configuration files stay until the end of the job, as scripts use git too.
pub fn has_helper(sources: &SourceOptions) -> bool {
    sources.use_credential_helper && !sources.remote_host.is_empty()
}

impl JobContext<'_> {
    /// If git uses a credential helper, creates its configuration files, which then stay until the
    /// end of the job.
    pub(super) fn set_up_git(&mut self) -> Result<(), BuiltinError> {
        let sources = &self.config.get_sources;
        if !has_helper(sources) {
            return Ok(());
        }
        let files = GitConfigPaths::of(self);
        self.user_config(&files, true)?.write(&files.user)?;
        let mut external = GitConfig::default();
        // Without sources, no other code writes to this file.
        if matches!(sources.git_strategy.as_str(), "none" | "empty") {
            add_helper(&mut external, sources)?;
        }
        external.write(&files.external)?;
        let path = files.user.to_string_lossy().into_owned();
        self.env.insert("GIT_CONFIG_GLOBAL".to_owned(), path);
        Ok(())
    }

    /// Removes the configuration files that stay until the end of the job, if git uses a credential
    /// helper.
    pub(super) fn tear_down_git(&mut self) -> Result<(), BuiltinError> {
        if has_helper(&self.config.get_sources) {
            let files = GitConfigPaths::of(self);
            remove_tree(&files.user)?;
            remove_tree(&files.external)?;
        }
        Ok(())
    }

    /// Returns the content of [`GitConfigPaths::user`].
    pub(super) fn user_config(
        &self,
        files: &GitConfigPaths,
        has_helper: bool,
    ) -> Result<GitConfig, BuiltinError> {
        let mut config = GitConfig::default();
        let home = Path::new(self.variable("HOME"));
        let names: &[&str] =
            if has_helper { &[".gitconfig", ".config/git/config"] } else { &[".gitconfig"] };
        for path in names.iter().map(|name| home.join(name)) {
            if home.is_absolute() && path.is_file() && path != files.user {
                config.include(&path)?;
            }
        }
        if has_helper {
            config.include(&files.external)?;
        }
        Ok(config)
    }

    /// Returns the content of [`GitConfigPaths::external`], and logs the correlation id of Gitaly.
    pub(super) fn external_config(&mut self) -> Result<GitConfig, BuiltinError> {
        let sources = &self.config.get_sources;
        let mut config = GitConfig::default();
        if !sources.gitaly_correlation_id.is_empty() {
            let id = &sources.gitaly_correlation_id;
            config.add("http", None, "extraHeader", &format!("X-Gitaly-Correlation-ID: {id}"))?;
            self.notice(&format!("Gitaly correlation ID: {id}"));
        }
        if sources.use_bundle_uris {
            config.add("transfer", None, "bundleURI", "true")?;
        }
        if sources.is_shared_env {
            for (key, file) in self.tls_files() {
                config.add("http", Some(&sources.remote_host), key, &file)?;
            }
        }
        let plain = remove_user(&sources.repo_url);
        let own = (plain != sources.repo_url).then(|| [sources.repo_url.clone(), plain]);
        let mut seen = Vec::new();
        for pair in own.iter().chain(&sources.instead_ofs) {
            if !seen.contains(&pair) {
                seen.push(pair);
                config.add("url", Some(&pair[0]), "insteadOf", &pair[1])?;
            }
        }
        if has_helper(sources) {
            add_helper(&mut config, sources)?;
        }
        Ok(config)
    }

    /// Adds the job's TLS files for the server to git's global configuration.
    pub(super) fn trust_server(&mut self) -> Result<(), BuiltinError> {
        let host = &self.config.get_sources.remote_host;
        for (key, file) in self.tls_files() {
            let key = format!("http.{host}.{key}");
            self.git(
                &super::sources::git_env(&self.config.get_sources),
                &["config", "--global", &key, &file],
            )
            .with_part(format!("writing global git SSL config: setting {key}"))?;
        }
        Ok(())
    }

    /// Returns git's keys for the job's TLS files, with the paths of the files.
    fn tls_files(&self) -> Vec<(&'static str, String)> {
        if self.config.get_sources.remote_host.is_empty() {
            return Vec::new();
        }
        let files = TLS_FILES.iter().map(|(name, key)| (*key, self.env.get(*name)));
        let files = files.filter_map(|(key, file)| Some((key, file?.clone())));
        files.filter(|(_, file)| !file.is_empty()).collect()
    }

    /// Creates the template directory for new repositories.
    pub(super) fn make_template(&self, files: &GitConfigPaths) -> Result<(), BuiltinError> {
        remove_tree(&files.template)?;
        make_directories(&files.template)?;
        let mut config = GitConfig::default();
        config.add("init", None, "defaultBranch", "none")?;
        config.add("fetch", None, "recurseSubmodules", "false")?;
        config.add("credential", None, "interactive", "never")?;
        config.add("gc", None, "autoDetach", "false")?;
        config.include(&files.external)?;
        Ok(config.write(&files.template.join("config"))?)
    }
}

fn add_helper(config: &mut GitConfig, sources: &SourceOptions) -> Result<(), BuiltinError> {
    let host = Some(sources.remote_host.as_str());
    // An empty value removes helpers that were configured before.
    config.add("credential", host, "helper", "")?;
    config.add("credential", host, "helper", HELPER)?;
    config.add("credential", host, "username", USER)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn git_reads_the_added_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let base = "https://x:to\"k\\en;#@host/";
        let mut config = GitConfig::default();
        config.add("url", Some(base), "insteadOf", " https://host/#;\t\\\" ").unwrap();
        config.add("http", None, "extraHeader", "A: b").unwrap();
        config.write(&path).unwrap();
        let get = |key: &str| {
            let mut git = Command::new("git");
            let out =
                git.args(["config", "--null", "--file"]).arg(&path).arg(key).output().unwrap();
            String::from_utf8(out.stdout).unwrap()
        };
        assert_eq!(get(&format!("url.{base}.insteadOf")), " https://host/#;\t\\\" \0");
        assert_eq!(get("http.extraHeader"), "A: b\0");
    }

    #[test]
    fn values_cannot_inject_another_section() {
        let mut config = GitConfig::default();
        assert!(config.add("url", Some("a\n[core]"), "insteadOf", "b").is_err());
        assert!(config.add("http", None, "extraHeader", "a\n[core]").is_err());
        assert_eq!(config.0, "");
    }
}
