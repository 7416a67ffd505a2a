//! The hook directories that a command is about, and what says so.

use std::env;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::consumer::{DEFAULT_DIR, OVERRIDE_DIR};
use oci_hooks::hooks::directories::{
    ConfiguredDirs, DirsSource, System, UnreadDir, configured, unread,
};
use oci_hooks::hooks::lint::UnreadDirectory;
use oci_hooks::hooks::manage::ManageError;
use oci_hooks::sys::fs::SystemRoot;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Diagnostic, Error};

/// The directories of a command.
pub struct Directories {
    /// In order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    /// What the consumer's configuration says, unless --hooks-dir named the directories.
    pub configured: Option<ConfiguredDirs>,
    /// Usual directories with hook files that the consumer does not read.
    pub unread: Vec<Unread>,
}

/// A directory with hook files that the consumer does not read.
#[derive(Clone, Debug, Serialize)]
pub struct Unread {
    path: String,
    /// Names of its hook files.
    pub files: Vec<String>,
    /// What to do for the consumer to read it.
    hint: String,
}

/// What decided on the directories, as `explain --format json` prints it.
#[derive(Serialize)]
pub struct SourceJson {
    pub decided_by: String,
    file: Option<String>,
    line: Option<usize>,
}

/// Calls a function with the system as the user who runs this program sees it.
fn with_system<T>(call: impl FnOnce(&System<'_>) -> T) -> T {
    call(&System {
        root: SystemRoot::host(),
        user_id: rustix::process::geteuid().as_raw(),
        variable: &|name| env::var_os(name),
    })
}

impl Directories {
    /// Returns the directories that options name.
    pub fn named(dirs: &[PathBuf]) -> Self {
        Directories { dirs: dirs.to_vec(), configured: None, unread: Vec::new() }
    }

    /// Reads the configuration of a consumer.
    pub fn configured(consumer: &Consumer) -> Result<Self, Error> {
        with_system(|system| {
            let configured = configured(consumer, system)
                .map_err(|source| Error::Directories { consumer: consumer.name, source })?;
            let unread = unread(&configured.dirs, system);
            let unread = unread.iter().map(|dir| Unread::new(dir, &configured, consumer, system));
            Ok(Directories {
                unread: unread.collect(),
                dirs: configured.dirs.clone(),
                configured: Some(configured),
            })
        })
    }

    /// Returns what decided on the directories, for people.
    fn source(&self) -> Option<&DirsSource> {
        Some(&self.configured.as_ref()?.source)
    }

    /// Returns what decided on the directories, for programs.
    pub fn source_json(&self) -> Option<SourceJson> {
        let configured = self.configured.as_ref()?;
        let line = configured.line();
        Some(SourceJson {
            decided_by: configured.source.to_string(),
            file: line.map(|line| line.path.to_string_lossy().into_owned()),
            line: line.map(|line| line.line),
        })
    }

    /// Prints which directories the consumer reads and what says so, and warns of hook files in others.
    pub fn report(&self, context: &Context) {
        self.note(context);
        for unread in &self.unread {
            context.warn(&unread.diagnostic(&context.consumer));
        }
    }

    /// Prints which directories the consumer reads and what says so.
    pub fn note(&self, context: &Context) {
        let Some(source) = self.source() else { return };
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        let dirs = if dirs.is_empty() { "no hook directory".to_owned() } else { dirs.join(", ") };
        context.note(&format!("{} reads {dirs}: {source}", context.consumer.name));
    }
}

impl Unread {
    fn new(
        dir: &UnreadDir,
        configured: &ConfiguredDirs,
        consumer: &Consumer,
        system: &System<'_>,
    ) -> Self {
        Unread {
            path: dir.path.to_string_lossy().into_owned(),
            files: dir.files.iter().map(|name| name.to_string_lossy().into_owned()).collect(),
            hint: configured.to_read(&dir.path, consumer, system),
        }
    }

    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Returns it as the linter reports it.
    pub fn to_lint(&self) -> UnreadDirectory {
        UnreadDirectory {
            path: PathBuf::from(&self.path),
            hook_files: self.files.len(),
            help: self.hint.clone(),
        }
    }

    /// Returns the warning about it.
    fn diagnostic(&self, consumer: &Consumer) -> Diagnostic {
        let files = match self.files.len() {
            1 => "its hook file has".to_owned(),
            many => format!("its {many} hook files have"),
        };
        let message = format!("{} does not read this directory: {files} no effect", consumer.name);
        let mut diagnostic = Diagnostic::new("unread-dir", self.path(), &message);
        diagnostic.hint = Some(self.hint.clone());
        diagnostic
    }
}

/// Returns where a hook of one's own goes that the consumer is to read besides what it reads.
fn own_dir(system: &System<'_>) -> PathBuf {
    let user = system.is_rootless().then(|| system.user_config()).flatten();
    user.map_or_else(|| PathBuf::from(OVERRIDE_DIR), |config| config.join("oci/hooks.d"))
}

/// Says more about an error of a change: why the hook, or a directory to write to, is not there.
pub fn explain_error(error: ManageError, directories: &Directories, consumer: &Consumer) -> Error {
    let Some(configured) = &directories.configured else { return error.into() };
    if let ManageError::NoSuchHook { name } = &error {
        let name = name.to_string_lossy();
        let unread = directories.unread.iter().find(|dir| dir.files.iter().any(|f| *f == name));
        return match unread {
            Some(dir) => Error::UnreadHook {
                path: dir.path().join(name.as_ref()),
                consumer: consumer.name,
                hint: dir.hint.clone(),
            },
            None => error.into(),
        };
    }
    with_system(|system| {
        let advice = || configured.to_read(&own_dir(system), consumer, system);
        match error {
            ManageError::NoDirectory => Error::NothingRead {
                consumer: consumer.name,
                decided_by: configured.source.to_string(),
                hint: advice(),
            },
            error if system.is_rootless() && error.hint().is_some_and(is_about_rights) => {
                let hint = format!("run as root; or {}", advice());
                Error::Hinted { error: Box::new(error.into()), hint }
            }
            error => error.into(),
        }
    })
}

/// Returns whether a hint is what a directory of one's own is the answer to.
fn is_about_rights(hint: String) -> bool {
    hint.starts_with("run as root")
}

/// Says after a change where hooks of one's own had better be, or that the consumer does not read it.
pub fn note_change(directories: &Directories, context: &mut Context) -> Result<(), Error> {
    // What was done comes first.
    context.flush()?;
    let Some(last) = directories.dirs.last() else { return Ok(()) };
    let consumer = &context.consumer;
    let usual = [DEFAULT_DIR, OVERRIDE_DIR].map(Path::new);
    match &directories.configured {
        Some(configured) if last == Path::new(DEFAULT_DIR) => with_system(|system| {
            let own = own_dir(system);
            let advice = configured.to_read(&own, consumer, system);
            let own = own.display();
            context.note(&format!(
                "packages put hook files in {DEFAULT_DIR}, too; to have yours in {own}, {advice}"
            ));
        }),
        None if usual.contains(&last.as_path()) => {
            let Ok(read) = Directories::configured(consumer) else { return Ok(()) };
            if let (false, Some(configured)) = (read.dirs.contains(last), &read.configured) {
                let message = format!("{} does not read this directory", consumer.name);
                let mut diagnostic = Diagnostic::new("unread-dir", last, &message);
                let advice = with_system(|system| configured.to_read(last, consumer, system));
                diagnostic.hint = Some(advice);
                context.warn(&diagnostic);
            }
        }
        _ => {}
    }
    Ok(())
}
