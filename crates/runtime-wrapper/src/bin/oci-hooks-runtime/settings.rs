//! Settings from a file and the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks::hooks::pipeline::MissingProgramPolicy;
use oci_hooks::hooks::{Consumer, OciStage, consumer};
use oci_hooks_cli::mistake::TomlError;
use oci_hooks_files::fs::PathError;
use serde::Deserialize;

/// Default settings file, which need not exist.
const FILE: &str = "/etc/oci-hooks/runtime.toml";
/// Environment variable with the path of a settings file, for hosts without the default one. The
/// file must exist.
const FILE_VARIABLE: &str = "OCI_HOOKS_RUNTIME_CONFIG";
/// Environment variable with the path or name of the runtime, if the settings name none. A name is
/// searched for in `PATH`.
const RUNTIME_VARIABLE: &str = "OCI_HOOKS_RUNTIME";
/// Environment variable with additional hook directories, joined with `:` in order of increasing
/// precedence. The directories of the settings have a higher precedence.
const DIRS_VARIABLE: &str = "OCI_HOOKS_DIRS";

/// Settings of the wrapper: the runtime, and the rules for injecting hooks.
#[derive(Debug)]
pub struct WrapperSettings {
    /// Name or path of the runtime; `None` means the first of the known runtimes in `PATH`.
    pub runtime: Option<OsString>,
    /// Program such as podman or CRI-O whose rules for hook files apply.
    pub consumer: Consumer,
    /// Hook directories in place of the consumer's default directories.
    pub hooks_dirs: Option<Vec<PathBuf>>,
    /// Additional directories of lower precedence: files of the same name in other directories mask theirs.
    pub more_dirs: Vec<PathBuf>,
    /// If set, configured directories may be missing or have no hook files.
    pub allow_empty_dirs: bool,
    /// If set, hook files that cannot be loaded are skipped, instead of failing.
    pub skip_bad_files: bool,
    /// Treatment of hook files whose program does not exist.
    pub missing_program: MissingProgramPolicy,
    /// Hook files, by name or path, that must be in force.
    pub required_hooks: Vec<PathBuf>,
    /// If set, hooks writable by non-root users are rejected, and hooks without `env` run with an empty
    /// environment.
    pub strict: bool,
    /// If set, `precreate` hooks are run.
    pub precreate: bool,
}

/// Content of the settings file `/etc/oci-hooks/runtime.toml`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RuntimeSettingsFile {
    runtime: Option<String>,
    #[serde(rename = "as")]
    consumer: Option<String>,
    hooks_dirs: Option<Vec<PathBuf>>,
    #[serde(default)]
    allow_empty_dirs: bool,
    #[serde(default)]
    skip_bad_files: bool,
    missing_program: Option<String>,
    #[serde(default)]
    required_hooks: Vec<PathBuf>,
    #[serde(default = "default_true")]
    strict: bool,
    #[serde(default = "default_true")]
    precreate: bool,
    prestart: Option<String>,
}

fn default_true() -> bool {
    true
}

/// Errors of reading the settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Read(#[from] PathError),
    // Otherwise, the environment could replace the administrator's hook directories.
    #[error("{FILE_VARIABLE} is set, but {} exists: unset the variable, or remove the file", .0.display())]
    Conflict(PathBuf),
    #[error("{}:{mistake}", path.display())]
    Parse { path: PathBuf, mistake: TomlError },
    // Without the value: the engine shows this error to any user who starts a container.
    #[error("unknown value of `{key}` in {}: expected one of {allowed}", path.display())]
    Value { key: &'static str, allowed: String, path: PathBuf },
}

impl WrapperSettings {
    /// Reads the settings file, and then the environment, which only adds to the file.
    pub fn load(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        WrapperSettings::read(Path::new(FILE), variable)
    }

    fn read(
        default: &Path,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SettingsError> {
        let named = variable(FILE_VARIABLE).map(PathBuf::from);
        let read = |path: &Path| {
            let text = fs::read_to_string(path);
            text.map_err(|source| PathError { action: "read", path: path.to_owned(), source })
        };
        let mut settings = match (read(default), named) {
            (Ok(_), Some(_)) => return Err(SettingsError::Conflict(default.to_owned())),
            (Ok(text), None) => WrapperSettings::parse(&text, default)?,
            (Err(error), named) if error.source.kind() == io::ErrorKind::NotFound => match named {
                Some(path) => WrapperSettings::parse(&read(&path)?, &path)?,
                None => WrapperSettings::parse("", default)?,
            },
            (Err(error), _) => return Err(error.into()),
        };
        settings.runtime = settings.runtime.or_else(|| variable(RUNTIME_VARIABLE));
        if let Some(dirs) = variable(DIRS_VARIABLE) {
            settings.more_dirs = std::env::split_paths(&dirs).collect();
        }
        Ok(settings)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let file: RuntimeSettingsFile = toml::from_str(text).map_err(|error| {
            let mistake = TomlError::of(text, &error);
            SettingsError::Parse { path: path.to_owned(), mistake }
        })?;
        let unknown = |key, allowed: &[&str]| SettingsError::Value {
            key,
            allowed: allowed.join(", "),
            path: path.to_owned(),
        };
        let mut consumer = match file.consumer.as_deref() {
            None => consumer::PODMAN,
            Some(name) => Consumer::from_name(name)
                .ok_or_else(|| unknown("as", &Consumer::ALL.map(|c| c.name)))?,
        };
        consumer.prestart = match file.prestart.as_deref() {
            None => consumer.prestart,
            Some("prestart") => OciStage::Prestart,
            Some("createRuntime") => OciStage::CreateRuntime,
            Some(_) => return Err(unknown("prestart", &["prestart", "createRuntime"])),
        };
        let missing_program = match file.missing_program.as_deref() {
            None | Some("drop") => MissingProgramPolicy::Drop,
            Some("fail") => MissingProgramPolicy::Fail,
            Some(_) => return Err(unknown("missing-program", &["drop", "fail"])),
        };
        Ok(WrapperSettings {
            runtime: file.runtime.map(OsString::from),
            consumer,
            hooks_dirs: file.hooks_dirs,
            more_dirs: Vec::new(),
            allow_empty_dirs: file.allow_empty_dirs,
            skip_bad_files: file.skip_bad_files,
            missing_program,
            required_hooks: file.required_hooks,
            strict: file.strict,
            precreate: file.precreate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_add_to_the_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("runtime.toml");
        fs::write(&path, "runtime = \"crun\"\nhooks-dirs = [\"/a\"]\nas = \"crio\"\n").unwrap();
        let settings = WrapperSettings::load(|name| match name {
            FILE_VARIABLE => Some(path.clone().into()),
            DIRS_VARIABLE => Some("/b:/c".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!(settings.runtime, Some("crun".into()));
        assert_eq!(settings.consumer.name, "crio");
        assert_eq!(settings.hooks_dirs.unwrap(), [Path::new("/a")]);
        assert_eq!(settings.more_dirs, [Path::new("/b"), Path::new("/c")]);
        assert!(settings.strict);
    }

    #[test]
    fn variables_replace_nothing_in_the_default_file() {
        let temp = tempfile::tempdir().unwrap();
        let [default, other] = ["runtime.toml", "other.toml"].map(|name| temp.path().join(name));
        fs::write(&default, "runtime = \"crun\"\n").unwrap();
        fs::write(&other, "hooks-dirs = []\n").unwrap();
        let read = |name: &'static str, value: &Path| {
            WrapperSettings::read(&default, |asked| (asked == name).then(|| value.into()))
        };
        let error = read(FILE_VARIABLE, &other).unwrap_err().to_string();
        let expected = format!("OCI_HOOKS_RUNTIME_CONFIG is set, but {} exists", default.display());
        assert!(error.starts_with(&expected), "{error}");
        let settings = read(RUNTIME_VARIABLE, Path::new("/bin/true")).unwrap();
        assert_eq!(settings.runtime, Some("crun".into()));
        fs::remove_file(&default).unwrap();
        assert_eq!(read(FILE_VARIABLE, &other).unwrap().hooks_dirs, Some(Vec::new()));
        let settings = read(RUNTIME_VARIABLE, Path::new("/bin/true")).unwrap();
        assert_eq!(settings.runtime, Some("/bin/true".into()));
    }

    #[test]
    fn man_page_names_all_keys_and_variables() {
        let page = include_str!("../../../man/oci-hooks-runtime.1").replace("\\-", "-");
        let error = chain(&WrapperSettings::parse("x = 1", Path::new("")).unwrap_err());
        let (_, keys) = error.split_once("expected one of").unwrap();
        let keys: Vec<_> = keys.lines().next().unwrap().split('`').skip(1).step_by(2).collect();
        assert!(keys.contains(&"hooks-dirs"), "{error}");
        for key in keys {
            assert!(page.contains(&format!("\n\\fB{key}\\fR (")), "{key} is not in the man page");
        }
        for variable in [FILE_VARIABLE, RUNTIME_VARIABLE, DIRS_VARIABLE, "PATH"] {
            assert!(
                page.contains(&format!("\n.B {variable}\n")),
                "{variable} is not in the man page"
            );
        }
        assert!(page.contains(FILE));
    }

    #[test]
    fn mistakes_name_the_file_and_the_key() {
        let parse = |text| chain(&WrapperSettings::parse(text, Path::new("/x.toml")).unwrap_err());
        let said = parse("strict = true\nstrikt = true");
        assert!(
            said.starts_with("/x.toml:2:1: unknown field, expected one of `runtime`"),
            "{said}"
        );
        assert!(parse("as = \"docker\"").contains("/x.toml: expected one of podman,"));
        assert!(WrapperSettings::load(|_| Some("/nonexistent".into())).is_err());
    }

    #[test]
    fn errors_do_not_quote_the_file() {
        for text in [
            "s3cret",
            "root:s3cret:20000:0:99999:7:::\n",
            "s3cret = 1",
            "[s3cret]",
            "runtime = 1\ns3cret = {",
            "as = \"s3cret\"",
            "as = [\"s3cret\"]",
            "prestart = \"s3cret\"",
            "strict = \"s3cret\"",
            "hooks-dirs = \"s3cret\"",
            "missing-program = \"s3cret\"",
            "required-hooks = \"s3cret\"",
            "runtime = \"s3cret\"\nruntime = \"s3cret\"",
        ] {
            let said = chain(&WrapperSettings::parse(text, Path::new("/x.toml")).unwrap_err());
            assert!(said.contains("/x.toml") && !said.contains("s3cret"), "{text}: {said}");
        }
    }

    fn chain(error: &(dyn std::error::Error + 'static)) -> String {
        oci_hooks_files::error::chain(error)
    }
}
