//! Resolves the configuration that a runtime opens for a command that creates a container.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::PathContext as _;

use super::option::{COMMAND, LexedArgument, OptionSpelling, ParsedOption, lex};
use super::{ArgumentError, path};

/// Name of the configuration in a bundle.
const CONFIG: &str = "config.json";

/// A command that creates a container, and the configuration that the runtime opens for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerCall {
    /// The bundle directory; without `--bundle` it is the working directory.
    pub bundle: PathBuf,
    pub config: PathBuf,
    /// The whole command line for the runtime: unchanged if all runtimes parse it the same way,
    /// otherwise with each option in an unambiguous form.
    pub args: Vec<OsString>,
}

/// The arguments of a command that creates a container.
#[derive(Default)]
pub struct ContainerArguments {
    pub bundle: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// All other arguments, in canonical form.
    others: Vec<OsString>,
    /// Set if runtimes may parse the arguments differently.
    differ: bool,
    has_operand: bool,
}

impl ContainerArguments {
    /// Parses the arguments after the command; calls `note` for each option.
    pub fn read(
        mut rest: &[OsString],
        mut note: impl FnMut(&ParsedOption<'_>),
    ) -> Result<Self, ArgumentError> {
        let mut found = ContainerArguments::default();
        while let Some((lexed, after)) = lex(rest, &COMMAND) {
            match lexed {
                LexedArgument::Separator => {
                    found.others.extend_from_slice(rest);
                    break;
                }
                LexedArgument::Operand(operand) => {
                    found.others.push(operand.to_owned());
                    found.has_operand = true;
                }
                LexedArgument::Option(flag) => {
                    note(&flag);
                    found.option(&flag)?;
                }
            }
            rest = after;
        }
        Ok(found)
    }

    fn option(&mut self, flag: &ParsedOption<'_>) -> Result<(), ArgumentError> {
        // crun stops reading options at the first operand, and ignores what follows in `restore`.
        self.differ |= flag.spelling != OptionSpelling::Unambiguous || self.has_operand;
        let place = match (flag.name, flag.value) {
            (b"bundle" | b"b", Some(_)) => &mut self.bundle,
            (b"config" | b"f", Some(_)) => &mut self.config,
            _ if flag.spelling == OptionSpelling::Unknown && may_name_a_configuration(flag) => {
                let argument = flag.raw[0].to_string_lossy().into_owned();
                return Err(ArgumentError::Ambiguous { argument });
            }
            _ => {
                self.others.extend(flag.to_canonical());
                return Ok(());
            }
        };
        self.differ |= place.is_some();
        *place = flag.value.map(path);
        Ok(())
    }

    /// Returns the configuration that the runtime opens, and arguments with which it cannot open another one.
    ///
    /// `before` ends with the command.
    pub fn call(
        self,
        before: &[OsString],
        after: &[OsString],
        working_directory: &Path,
    ) -> Result<ContainerCall, ArgumentError> {
        let bundle = self.bundle.unwrap_or_default();
        let absolute = working_directory.join(&bundle);
        let config = match self.config {
            // crun treats the plain name, without a directory, as its default, in the bundle.
            Some(config) if config == Path::new(CONFIG) => Some(resolve(&absolute.join(CONFIG))?),
            Some(config) => Some(resolve(&working_directory.join(config))?),
            None => None,
        };
        if !self.differ && config.is_none() {
            let bundle = if bundle.as_os_str().is_empty() { ".".into() } else { bundle };
            let args = [before, after].concat();
            return Ok(ContainerCall { config: bundle.join(CONFIG), bundle, args });
        }
        // Directly after the command, so that no option can take `--bundle` as its value. Runtimes use the
        // last `--bundle`; `others` contains no argument that a runtime could parse as such.
        let mut args = before.to_vec();
        args.push(with_value("--bundle=", &absolute));
        args.extend(config.as_deref().map(|config| with_value("--config=", config)));
        args.extend(self.others);
        let config = config.unwrap_or_else(|| absolute.join(CONFIG));
        Ok(ContainerCall { bundle: absolute, config, args })
    }
}

/// Returns whether a runtime may parse an unknown option as `--bundle` or `--config`: abbreviated as
/// `--bun`, or after other letters as in `-db/bundle`.
fn may_name_a_configuration(flag: &ParsedOption<'_>) -> bool {
    let argument = flag.raw[0].as_bytes();
    if argument.starts_with(b"--") {
        return ["bundle", "config"].iter().any(|name| name.as_bytes().starts_with(flag.name));
    }
    argument.len() > 2 && argument.iter().any(|letter| b"bf".contains(letter))
}

/// Resolves symbolic links in the directory of a path, including `/proc/self/cwd`, which is a different
/// directory once the runtime has changed to the bundle.
fn resolve(config: &Path) -> Result<PathBuf, ArgumentError> {
    let no_file = || ArgumentError::NotAFile { path: config.to_owned() };
    let name = config.file_name().ok_or_else(no_file)?;
    // `a/.` and `a/` have the file name `a`.
    if !config.as_os_str().as_bytes().ends_with(name.as_bytes()) {
        return Err(no_file());
    }
    let directory = config.parent().ok_or_else(no_file)?;
    Ok(fs::canonicalize(directory).with_path("resolve", directory)?.join(name))
}

fn with_value(option: &str, value: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(value);
    argument
}

/// Returns whether the only argument requests help, with which no runtime creates a container.
pub fn asks_for_help(after: &[OsString]) -> bool {
    let [only] = after else { return false };
    ["--help", "-h", "--usage", "-?"].iter().any(|help| only == OsStr::new(help))
}
