//! `oci-hooks lint`: static checks of hook files.

mod catalogue;
mod fix;
mod github;
mod gitlab;
mod human;
mod json;
mod sarif;

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use human::NoteFilter;
use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::lint::{
    self, LintOptions, LintReport, LintRule, LintedFile, RuleLevel, Severity, rules,
};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{FileAt, PathContext, PathError, ReplaceError, SymlinkPolicy};
use walkdir::{DirEntry, WalkDir};

use crate::context::{CommandContext, is_pipe, open_input};
use crate::devices::DeviceArgs;
use crate::directories::UnreadDirReport;
use crate::error::HooksCommandError;
use crate::global::{OutputFormat, consumer_parser};

/// Check hook files, or CDI specifications, for mistakes before a container starts
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks lint
  oci-hooks lint --content-only hooks.d/ extra.json
  oci-hooks lint --fix my-hook.json
  oci-hooks lint --recursive --content-only .
  oci-hooks lint --explain OH208
  oci-hooks lint --cdi
  oci-hooks lint --format github --content-only hooks.d/
  oci-hooks lint --format gitlab --content-only hooks.d/ > gl-code-quality-report.json

Directories are linted together: files in later ones mask those of the same name in earlier
ones. Owners and permissions are reported if users other than root and you can change what runs.

Notes are shown with --verbose or --strict, and when there is nothing worse.

Exit status is 1 when there are errors or warnings, with --strict also when there are notes.")]
pub struct LintArgs {
    /// Hook files, hook directories, or - for standard input [default: the directories that
    /// the consumer is configured to read]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Also lint subdirectories, each on its own: files in one do not mask those in another
    #[arg(long, short, requires = "paths")]
    recursive: bool,

    /// Check the CDI specifications instead of hook files
    #[arg(long, conflicts_with_all = ["paths", "fix", "diff", "also"])]
    cdi: bool,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Also report how CONSUMER differs (can be repeated) [default: the consumers that read the same
    /// directories]
    #[arg(long, value_name = "CONSUMER", value_parser = consumer_parser())]
    also: Vec<Consumer>,

    /// Check file contents only, not programs, owners or permissions
    #[arg(long)]
    content_only: bool,

    /// Suppress findings of RULE, a code or a name (can be repeated)
    #[arg(long, value_name = "RULE", value_parser = rule, add = ArgValueCandidates::new(complete_rules))]
    allow: Vec<&'static LintRule>,

    /// Report findings of RULE as warnings (can be repeated)
    #[arg(long, value_name = "RULE", value_parser = rule, add = ArgValueCandidates::new(complete_rules))]
    warn: Vec<&'static LintRule>,

    /// Report findings of RULE as errors (can be repeated)
    #[arg(long, value_name = "RULE", value_parser = rule, add = ArgValueCandidates::new(complete_rules))]
    deny: Vec<&'static LintRule>,

    /// Exit with 1 also for notes
    #[arg(long)]
    strict: bool,

    /// Fix what can be fixed safely, then report the remaining findings
    #[arg(long)]
    fix: bool,

    /// Show what --fix would change without changing it
    #[arg(long)]
    diff: bool,

    /// Explain RULE, a code or a name
    #[arg(long, value_name = "RULE", value_parser = rule, add = ArgValueCandidates::new(complete_rules), conflicts_with_all = ["paths", "fix", "diff"])]
    explain: Option<&'static LintRule>,

    /// List all rules with their severity and summary
    #[arg(long, conflicts_with_all = ["paths", "fix", "diff", "explain"])]
    rules: bool,
}

fn rule(code_or_name: &str) -> Result<&'static LintRule, String> {
    LintRule::find(code_or_name)
        .ok_or_else(|| "unknown rule; `oci-hooks lint --rules` lists all rules".to_owned())
}

/// Returns the names of all rules.
fn complete_rules() -> Vec<CompletionCandidate> {
    let candidate =
        |rule: &&LintRule| CompletionCandidate::new(rule.name).help(Some(rule.summary.into()));
    rules::ALL.iter().map(candidate).collect()
}

impl LintArgs {
    /// Returns the lint options of the command line.
    fn options(&self, context: &CommandContext) -> Result<LintOptions, HooksCommandError> {
        let mut options = LintOptions::for_consumer(&context.consumer);
        options.drafts = true;
        if self.paths.is_empty() && !self.cdi {
            let directories = context.directories()?;
            options.drafts = directories.configured.is_none();
            directories.note(context);
            options.dirs.clone_from(&directories.dirs);
            options.unread = directories.unread.iter().map(UnreadDirReport::to_lint).collect();
        }
        if !self.also.is_empty() {
            options.others =
                self.also.iter().filter(|c| **c != context.consumer).cloned().collect();
        }
        if !self.content_only {
            options.files = Some(TrustOptions::of_process());
        }
        for (rules, level) in [
            (&self.deny, RuleLevel::Report(Severity::Error)),
            (&self.warn, RuleLevel::Report(Severity::Warning)),
            (&self.allow, RuleLevel::Allow),
        ] {
            for rule in rules {
                options.levels.set(rule, level);
            }
        }
        Ok(options)
    }
}

pub fn run(args: &LintArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    if let Some(rule) = args.explain {
        return catalogue::explain(rule, context);
    }
    if args.rules {
        return catalogue::list(context);
    }
    let mut options = args.options(context)?;
    if args.cdi {
        args.devices.check_dirs()?;
        return finish(args, &lint::lint_devices(&args.devices.dirs(), &options), context);
    }
    let inputs = LintInputs::sort(args, &mut options, context)?;
    if args.diff {
        return fix::diff(&inputs, &options, context);
    }
    let mut errors = Vec::new();
    if args.fix {
        if let Some((path, text)) = inputs.texts.first() {
            if args.paths.len() > 1 {
                return Err(HooksCommandError::Usage {
                    message: "--fix cannot combine standard input or a pipe with other files: it \
                              writes the fixed text to standard output"
                        .to_owned(),
                    hint: Some("fix the other files in another call".to_owned()),
                });
            }
            return fix::text(path, text, &options, context);
        }
        errors = fix::write(&inputs, &options, context);
    }
    let report = inputs.lint(&options);
    let exit = finish(args, &report, context)?;
    if report.hook_files == 0 && report.findings().next().is_none() && !args.paths.is_empty() {
        let paths: Vec<_> = args.paths.iter().map(|path| path.display().to_string()).collect();
        return Err(HooksCommandError::Usage {
            message: format!("no hook files in {}", paths.join(", ")),
            hint: Some("names of hook files end in .json".to_owned()),
        });
    }
    context.fail_with(errors)?;
    Ok(exit)
}

/// Prints the report, and returns the exit status.
fn finish(
    args: &LintArgs,
    report: &LintReport,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let notes = if args.strict || context.verbose { NoteFilter::All } else { NoteFilter::Alone };
    show(report, notes, context)?;
    let threshold = if args.strict { Severity::Note } else { Severity::Warning };
    let found = report.findings().any(|finding| finding.severity >= threshold);
    Ok(if found { CliExit::Findings } else { CliExit::Done })
}

fn show(
    report: &LintReport,
    notes: NoteFilter,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    match context.format {
        Some(OutputFormat::Json) => json::write(report, context),
        Some(OutputFormat::Sarif) => sarif::write(report, context),
        Some(OutputFormat::Github) => github::write(report, context),
        Some(OutputFormat::Gitlab) => gitlab::write(report, context),
        Some(OutputFormat::Human) | None => human::write(report, notes, context),
    }
}

/// The path of standard input in findings.
const STDIN: &str = "<stdin>";

/// Files and directories to lint.
#[derive(Debug, Default)]
struct LintInputs {
    with_dirs: bool,
    /// If set, each directory is linted on its own.
    is_tree: bool,
    files: Vec<PathBuf>,
    /// Paths and texts of standard input and of pipes, which cannot be read again.
    texts: Vec<(PathBuf, Vec<u8>)>,
}

/// Returns whether a path is or links to a directory.
fn is_directory(path: &Path) -> Result<bool, HooksCommandError> {
    match fs::metadata(path) {
        // The kernel may not follow other users' links in directories such as /tmp
        // (`fs.protected_symlinks`), and its error does not mention the link.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            match FileAt::open(path, SymlinkPolicy::Follow) {
                Err(link @ ReplaceError::ForeignLink { .. }) => Err(link.into()),
                _ => Err(PathError::new("look up", path, error).into()),
            }
        }
        found => Ok(found.with_path("look up", path)?.is_dir()),
    }
}

impl LintInputs {
    /// Separates directories from files; the directories go to the options.
    fn sort(
        args: &LintArgs,
        options: &mut LintOptions,
        context: &CommandContext,
    ) -> Result<Self, HooksCommandError> {
        let mut inputs = LintInputs {
            with_dirs: args.paths.is_empty(),
            is_tree: args.recursive,
            ..LintInputs::default()
        };
        let mut dirs = Vec::new();
        for path in &args.paths {
            if path == OsStr::new("-") {
                if !inputs.texts.iter().any(|(name, _)| name == Path::new(STDIN)) {
                    inputs.texts.push((PathBuf::from(STDIN), context.read_hook(path)?));
                }
            } else if is_directory(path)? {
                dirs.push(path.clone());
                if args.recursive {
                    dirs.extend(subdirectories(path)?);
                }
            } else if open_input(path).is_ok_and(|file| is_pipe(&file)) {
                inputs.texts.push((path.clone(), context.read_hook(path)?));
            } else {
                inputs.files.push(path.clone());
            }
        }
        if !dirs.is_empty() {
            inputs.with_dirs = true;
            options.dirs = dirs;
        }
        Ok(inputs)
    }

    fn lint(&self, options: &LintOptions) -> LintReport {
        let mut report = match (self.with_dirs, self.is_tree) {
            (false, _) => LintReport::default(),
            (true, false) => lint::lint_dirs(options),
            (true, true) => lint_each(options),
        };
        report.hook_files += self.files.len() + self.texts.len();
        report.files.extend(self.files.iter().map(|path| lint::lint_file(path, options)));
        for (path, text) in &self.texts {
            let findings = lint::lint_text(path, text, options);
            report.files.push(LintedFile::new(path, text.clone(), findings));
        }
        report
    }
}

/// Returns the subdirectories that contain `*.json` files. Hidden ones are skipped.
fn subdirectories(top: &Path) -> Result<Vec<PathBuf>, PathError> {
    let is_hidden = |entry: &DirEntry| entry.file_name().as_bytes().starts_with(b".");
    let tree = WalkDir::new(top).min_depth(1).sort_by_file_name().into_iter();
    let mut found = Vec::new();
    for entry in tree.filter_entry(|entry| !is_hidden(entry)) {
        let entry = entry.map_err(|error| to_path_error(error, top))?;
        if entry.file_type().is_dir() && !hook_files(entry.path())?.is_empty() {
            found.push(entry.into_path());
        }
    }
    Ok(found)
}

/// Returns the `*.json` files of a directory.
fn hook_files(dir: &Path) -> Result<Vec<PathBuf>, PathError> {
    let mut files = Vec::new();
    for entry in WalkDir::new(dir).min_depth(1).max_depth(1).sort_by_file_name() {
        let entry = entry.map_err(|error| to_path_error(error, dir))?;
        if !entry.file_type().is_dir() && entry.file_name().as_bytes().ends_with(b".json") {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// Lints each directory of the options on its own.
fn lint_each(whole: &LintOptions) -> LintReport {
    let mut report = LintReport::default();
    for dir in &whole.dirs {
        let mut options = whole.clone();
        options.dirs = vec![dir.clone()];
        let alone = lint::lint_dirs(&options);
        // Findings about a subdirectory are dropped if the subdirectory is linted itself.
        let all = &whole.dirs;
        report.files.extend(
            alone.files.into_iter().filter(|file| file.path == *dir || !all.contains(&file.path)),
        );
        report.hook_files += alone.hook_files;
    }
    report
}

fn to_path_error(error: walkdir::Error, dir: &Path) -> PathError {
    let path = error.path().unwrap_or(dir).to_owned();
    let source = error.into_io_error().unwrap_or_else(|| rustix::io::Errno::LOOP.into());
    PathError { action: "list", path, source }
}
