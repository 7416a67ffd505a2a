//! Which configuration a runtime opens for a command that makes a container.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::option::{COMMAND, Flag, Lexed, Spelling, lex};
use super::{ArgumentError, path};
use crate::sys::fs::PathContext as _;

/// The name of a bundle's configuration.
const CONFIG: &str = "config.json";

/// A command that makes a container, and the configuration that the runtime opens for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerCall {
    /// The bundle directory; without `--bundle` it is the working directory.
    pub bundle: PathBuf,
    pub config: PathBuf,
    /// The whole command line for the runtime: as it was if all runtimes read it the same way,
    /// otherwise with each option in a form that has one reading.
    pub args: Vec<OsString>,
}

/// The arguments of a command that makes a container.
#[derive(Default)]
pub struct Arguments {
    pub bundle: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// All others, in canonical form.
    others: Vec<OsString>,
    /// Whether runtimes may read the arguments as they are in different ways.
    differ: bool,
    has_operand: bool,
}

impl Arguments {
    /// Reads the arguments after the command; `note` gets each option.
    pub fn read(
        mut rest: &[OsString],
        mut note: impl FnMut(&Flag<'_>),
    ) -> Result<Self, ArgumentError> {
        let mut found = Arguments::default();
        while let Some((lexed, after)) = lex(rest, &COMMAND) {
            match lexed {
                Lexed::Separator => {
                    found.others.extend_from_slice(rest);
                    break;
                }
                Lexed::Operand(operand) => {
                    found.others.push(operand.to_owned());
                    found.has_operand = true;
                }
                Lexed::Option(flag) => {
                    note(&flag);
                    found.option(&flag)?;
                }
            }
            rest = after;
        }
        Ok(found)
    }

    fn option(&mut self, flag: &Flag<'_>) -> Result<(), ArgumentError> {
        // crun stops reading options at the first operand, and ignores what follows in `restore`.
        self.differ |= flag.spelling != Spelling::Plain || self.has_operand;
        let place = match (flag.name, flag.value) {
            (b"bundle" | b"b", Some(_)) => &mut self.bundle,
            (b"config" | b"f", Some(_)) => &mut self.config,
            _ if flag.spelling == Spelling::Unknown && may_name_a_configuration(flag) => {
                let argument = flag.raw[0].to_string_lossy().into_owned();
                return Err(ArgumentError::Ambiguous { argument });
            }
            _ => {
                self.others.extend(flag.canonical());
                return Ok(());
            }
        };
        self.differ |= place.is_some();
        *place = flag.value.map(path);
        Ok(())
    }

    /// Returns what the runtime opens, and the arguments with which it cannot open anything else.
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
            // The name itself, without a directory, is crun's default and in the bundle.
            Some(config) if config == Path::new(CONFIG) => Some(resolve(&absolute.join(CONFIG))?),
            Some(config) => Some(resolve(&working_directory.join(config))?),
            None => None,
        };
        if !self.differ && config.is_none() {
            let bundle = if bundle.as_os_str().is_empty() { ".".into() } else { bundle };
            let args = [before, after].concat();
            return Ok(ContainerCall { config: bundle.join(CONFIG), bundle, args });
        }
        // First of all, so that no option can take it for its value. The last one counts, and there
        // is no other: `others` has none that could be read as one.
        let mut args = before.to_vec();
        args.push(with_value("--bundle=", &absolute));
        args.extend(config.as_deref().map(|config| with_value("--config=", config)));
        args.extend(self.others);
        let config = config.unwrap_or_else(|| absolute.join(CONFIG));
        Ok(ContainerCall { bundle: absolute, config, args })
    }
}

/// Returns whether some runtime may take an unknown option for one that names the bundle or the
/// configuration: abbreviated as `--bun`, or behind other letters as in `-db/bundle`.
fn may_name_a_configuration(flag: &Flag<'_>) -> bool {
    let argument = flag.raw[0].as_bytes();
    if argument.starts_with(b"--") {
        return ["bundle", "config"].iter().any(|name| name.as_bytes().starts_with(flag.name));
    }
    argument.len() > 2 && argument.iter().any(|letter| b"bf".contains(letter))
}

/// Returns the path without symbolic links and without `/proc/self/cwd`, which is another directory
/// once the runtime has changed to the bundle.
fn resolve(config: &Path) -> Result<PathBuf, ArgumentError> {
    let no_file = || ArgumentError::NotAFile { path: config.to_owned() };
    let name = config.file_name().ok_or_else(no_file)?;
    // `a/.` and `a/` have the file name `a`.
    if !config.as_os_str().as_bytes().ends_with(name.as_bytes()) {
        return Err(no_file());
    }
    let directory = config.parent().ok_or_else(no_file)?;
    Ok(fs::canonicalize(directory).at("resolve", directory)?.join(name))
}

fn with_value(option: &str, value: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(value);
    argument
}

/// Returns whether the only argument asks for help, with which no runtime makes a container.
pub fn asks_for_help(after: &[OsString]) -> bool {
    let [only] = after else { return false };
    ["--help", "-h", "--usage", "-?"].iter().any(|help| only == OsStr::new(help))
}
