//! The hook directories of a command, and the source of that setting.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::consumer::{DEFAULT_DIR, OVERRIDE_DIR};
use oci_hooks::hooks::directories::{
    ConfiguredDirs, ConsumerSystem, DirsSource, UnreadDir, read_configured, unread_dirs,
};
use oci_hooks::hooks::lint::UnreadDirectory;
use oci_hooks::hooks::manage::ManageError;
use serde::Serialize;

use crate::context::CommandContext;
use crate::doctor::host::DoctorHost;
use crate::error::{Diagnostic, HooksCommandError};

/// The hook directories that a command uses.
pub struct HookDirectories {
    /// Hook directories, in order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    /// The consumer's configuration; `None` if --hooks-dir named the directories.
    pub configured: Option<ConfiguredDirs>,
    /// Usual directories with hook files that the consumer does not read.
    pub unread: Vec<UnreadDirReport>,
}

/// A directory with hook files that the consumer does not read.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadDirReport {
    pub path: String,
    /// Names of its hook files.
    pub files: Vec<String>,
    /// Instructions that make the consumer read the directory.
    pub hint: String,
}

/// The source of the directories, as printed by `explain --format json`.
#[derive(Serialize)]
pub struct DirsSourceJson {
    pub decided_by: String,
    file: Option<String>,
    line: Option<usize>,
}

/// Returns whether all versions of podman read the same hook directories on this machine.
pub fn podman_versions_agree() -> bool {
    DoctorHost::current().system(|system| {
        let dirs = |consumer: Consumer| Some(read_configured(&consumer, system).ok()?.dirs);
        let [newest, older @ ..] = Consumer::PODMAN_VERSIONS.map(dirs);
        newest.is_some() && older.iter().all(|other| *other == newest)
    })
}

impl HookDirectories {
    /// Returns the directories of `--hooks-dir`.
    pub fn from_dirs(dirs: &[PathBuf]) -> Self {
        HookDirectories { dirs: dirs.to_vec(), configured: None, unread: Vec::new() }
    }

    /// Reads the configuration of a consumer.
    pub fn read_configured(consumer: &Consumer) -> Result<Self, HooksCommandError> {
        let configured = DoctorHost::current().system(|system| read_configured(consumer, system));
        let configured = configured
            .map_err(|source| HooksCommandError::Directories { consumer: consumer.name, source })?;
        Ok(HookDirectories::of_configured(configured, consumer))
    }

    /// Returns configured directories. If their source is not the consumer's own configuration, other directories are
    /// not searched for unread hook files.
    pub fn of_configured(configured: ConfiguredDirs, consumer: &Consumer) -> Self {
        let unread = match configured.source {
            DirsSource::External(_) => Vec::new(),
            _ => DoctorHost::current().system(|system| {
                let unread = unread_dirs(&configured.dirs, system);
                let unread = unread.iter();
                unread.map(|dir| UnreadDirReport::new(dir, &configured, consumer, system)).collect()
            }),
        };
        HookDirectories { unread, dirs: configured.dirs.clone(), configured: Some(configured) }
    }

    /// Returns the source of the directories; `None` for `--hooks-dir`.
    fn source(&self) -> Option<&DirsSource> {
        Some(&self.configured.as_ref()?.source)
    }

    /// Returns the source of the directories for JSON; `None` for `--hooks-dir`.
    pub fn source_json(&self) -> Option<DirsSourceJson> {
        let configured = self.configured.as_ref()?;
        let line = configured.line();
        Some(DirsSourceJson {
            decided_by: configured.source.to_string(),
            file: line.map(|line| line.path.to_string_lossy().into_owned()),
            line: line.map(|line| line.line),
        })
    }

    /// Prints the consumer's directories and their source, and warns of hook files in directories
    /// that it does not read.
    pub fn report(&self, context: &CommandContext) {
        self.note(context);
        for unread in &self.unread {
            context.warn(&unread.diagnostic(&context.consumer));
        }
    }

    /// Prints the consumer's directories and their source.
    pub fn note(&self, context: &CommandContext) {
        let Some(source) = self.source() else { return };
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        let dirs = if dirs.is_empty() { "no hook directory".to_owned() } else { dirs.join(", ") };
        context.note(&format!("{} reads {dirs} ({source})", context.consumer.name));
    }
}

impl UnreadDirReport {
    fn new(
        dir: &UnreadDir,
        configured: &ConfiguredDirs,
        consumer: &Consumer,
        system: &ConsumerSystem<'_>,
    ) -> Self {
        UnreadDirReport {
            path: dir.path.to_string_lossy().into_owned(),
            files: dir.files.iter().map(|name| name.to_string_lossy().into_owned()).collect(),
            hint: configured.to_read(&dir.path, consumer, system),
        }
    }

    /// Returns the directory in the linter's type.
    pub fn to_lint(&self) -> UnreadDirectory {
        UnreadDirectory {
            path: PathBuf::from(&self.path),
            hook_files: self.files.len(),
            hint: self.hint.clone(),
        }
    }

    /// Returns the warning about the directory.
    fn diagnostic(&self, consumer: &Consumer) -> Diagnostic {
        let dir = self.to_lint();
        Diagnostic::new("unread-dir", Some(&dir.path), dir.message(consumer)).with_hint(dir.hint)
    }
}

/// Returns the directory for the user's own hooks, which the consumer can be configured to read.
fn own_dir(system: &ConsumerSystem<'_>) -> PathBuf {
    let user = system.is_rootless().then(|| system.user_config()).flatten();
    user.map_or_else(|| PathBuf::from(OVERRIDE_DIR), |config| config.join("oci/hooks.d"))
}

/// Adds a hint to an error: how the consumer can be configured to read the directory of the hook, or a directory that
/// the user can write to.
pub fn explain_error(
    error: ManageError,
    directories: &HookDirectories,
    consumer: &Consumer,
) -> HooksCommandError {
    let Some(configured) = &directories.configured else { return error.into() };
    if let ManageError::NoSuchHook { name } = &error {
        let name = name.to_string_lossy();
        let unread = directories.unread.iter().find(|dir| dir.files.iter().any(|f| *f == name));
        return match unread {
            Some(dir) => HooksCommandError::UnreadHook {
                path: Path::new(&dir.path).join(name.as_ref()),
                consumer: consumer.name,
                hint: dir.hint.clone(),
            },
            None => error.into(),
        };
    }
    DoctorHost::current().system(|system| {
        let advice = || configured.to_read(&own_dir(system), consumer, system);
        match error {
            ManageError::NoDirectory => HooksCommandError::NothingRead {
                consumer: consumer.name,
                decided_by: configured.source.to_string(),
                hint: advice(),
            },
            error if system.is_rootless() && error.hint().is_some_and(is_permission_hint) => {
                let hint = format!("run as root; or, for hook files of your own, {}", advice());
                HooksCommandError::Hinted { error: Box::new(error.into()), hint }
            }
            error => error.into(),
        }
    })
}

/// Returns whether a hint is about missing permissions. A directory of the user's own avoids that problem.
fn is_permission_hint(hint: String) -> bool {
    hint.starts_with("run as root")
}

/// Prints a note after a change: where the user's own hooks belong, or that the consumer does not read the directory.
pub fn note_change(
    directories: &HookDirectories,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    // The change itself is printed first.
    context.flush()?;
    let Some(last) = directories.dirs.last() else { return Ok(()) };
    let host = DoctorHost::current();
    let consumer = &context.consumer;
    let usual = [DEFAULT_DIR, OVERRIDE_DIR].map(Path::new);
    match &directories.configured {
        Some(configured) if last == Path::new(DEFAULT_DIR) => host.system(|system| {
            let own = own_dir(system);
            let advice = configured.to_read(&own, consumer, system);
            let own = own.display();
            context.note(&format!(
                "package updates restore the files in {DEFAULT_DIR}; to have your own hook files in {own}, {advice}"
            ));
        }),
        None if usual.contains(&last.as_path()) => {
            let Ok(read) = HookDirectories::read_configured(consumer) else { return Ok(()) };
            if let (false, Some(configured)) = (read.dirs.contains(last), &read.configured) {
                let message = format!("{} does not read this directory", consumer.name);
                let advice = host.system(|system| configured.to_read(last, consumer, system));
                let diagnostic = Diagnostic::new("unread-dir", Some(last), message);
                context.warn(&diagnostic.with_hint(advice));
            }
        }
        _ => {}
    }
    Ok(())
}
