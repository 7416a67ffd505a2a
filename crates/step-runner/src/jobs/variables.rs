//! Variables of a CI job: validation, expansion, file variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use clap::ValueEnum;
use oci_hooks_files::fs::{PathContext as _, PathError};

use super::super::go_expand::expand_like_go;
use super::super::wire::proto::Variable;

/// Size limit of an expanded value: the kernel's limit for environment variables.
const MAX_VALUE_BYTES: usize = 128 << 10;

/// Maximum number of look-ups in an expansion: names in cycles are looked up repeatedly.
const MAX_LOOKUPS: usize = 100_000;

/// Size limit of all expanded values together, far more than a kernel accepts as environment.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Limit of the depth of references between variables.
const MAX_DEPTH: usize = 64;

/// Treatment of the variables of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VariableMode {
    /// As vars.NAME in expressions; references such as $NAME in values are not expanded
    ///
    /// GitLab's runner has expanded them already.
    #[default]
    Object,
    /// As vars.NAME in expressions and as environment variables, with references expanded
    ///
    /// As in GitLab's design document of the step runner.
    Environment,
}

/// An invalid variable.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    /// A file variable whose name is not a safe file name.
    #[error(
        "invalid name of file variable {0:?}: expected letters, digits and _, not starting with a \
         digit"
    )]
    FileName(String),
    /// A name that is not valid in an environment.
    #[error(
        "invalid name of environment variable {0:?}: expected one or more characters other than = and NUL"
    )]
    Name(String),
    /// A value that is not valid in an environment.
    #[error("the value of variable {0:?} contains a NUL byte")]
    Nul(String),
    /// A value that is too long after expansion.
    #[error("variable {0:?} is too long after expansion (limit {MAX_VALUE_BYTES} bytes)")]
    TooLong(String),
    /// Variables that are too long together after expansion.
    #[error(
        "the variables up to {0:?} are too long in total after expansion (limit {MAX_TOTAL_BYTES} bytes)"
    )]
    TooLarge(String),
    /// Variables whose expansion needs too many look-ups.
    #[error("variable {0:?} needs too many look-ups to expand (limit {MAX_LOOKUPS})")]
    Tangled(String),
    /// Variables whose references to other variables are nested too deeply.
    #[error(
        "variable {0:?}: references to other variables are nested too deeply (limit {MAX_DEPTH})"
    )]
    TooDeep(String),
}

/// Validates names and values of variables and of `env`.
pub fn check(
    variables: &[Variable],
    env: &BTreeMap<String, String>,
    treatment: VariableMode,
) -> Result<(), VariableError> {
    for Variable { key, value, file, .. } in variables {
        if *file && !is_identifier(key) {
            return Err(VariableError::FileName(key.clone()));
        }
        if treatment == VariableMode::Environment && !file {
            check_env(key, value)?;
        }
    }
    env.iter().try_for_each(|(name, value)| check_env(name, value))
}

fn check_env(name: &str, value: &str) -> Result<(), VariableError> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(VariableError::Name(name.to_owned()));
    }
    if value.contains('\0') {
        return Err(VariableError::Nul(name.to_owned()));
    }
    Ok(())
}

fn is_identifier(name: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

/// Writes the values of file variables to files, and returns all values; the value of a file variable is
/// its path. The last variable of a name wins.
pub fn write_files(
    variables: &[Variable],
    dir: &Path,
) -> Result<BTreeMap<String, String>, PathError> {
    let mut values = BTreeMap::new();
    for Variable { key, value, file, .. } in variables {
        let value = if *file {
            let path = dir.join(key);
            let mut options = OpenOptions::new();
            let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
            opened
                .with_path("make", &path)?
                .write_all(value.as_bytes())
                .with_path("write", &path)?;
            path.to_string_lossy().into_owned()
        } else {
            value.clone()
        };
        values.insert(key.clone(), value);
    }
    Ok(values)
}

/// Returns the values to mask: masked variables and file variables.
pub fn secrets(variables: &[Variable]) -> impl Iterator<Item = &str> {
    variables
        .iter()
        .filter(|variable| variable.masked || variable.file)
        .map(|variable| variable.value.as_str())
}

/// Expands `$NAME` and `${NAME}` in values to other variables, or else to those in `env`, or else to nothing. A
/// reference that closes a cycle expands to the variable in `env`; `$$` becomes `$`. Paths of file variables are
/// not expanded.
pub fn expand(
    variables: &[Variable],
    values: BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, VariableError> {
    let mut files = BTreeSet::new();
    for variable in variables {
        if variable.file {
            files.insert(variable.key.as_str());
        } else {
            files.remove(variable.key.as_str());
        }
    }
    let known = files.into_iter().map(|file| (file.to_owned(), values[file].clone())).collect();
    let mut expansion = Expansion {
        values: &values,
        env,
        known,
        open: Vec::new(),
        cycles: 0,
        lookups: 0,
        total: 0,
    };
    values.keys().map(|name| Ok((name.clone(), expansion.variable(name)?))).collect()
}

struct Expansion<'a> {
    values: &'a BTreeMap<String, String>,
    env: &'a BTreeMap<String, String>,
    /// Expanded values, except those that depend on a cycle of references: they differ by where the
    /// cycle is entered.
    known: BTreeMap<String, String>,
    /// Variables that are being expanded, the outermost first.
    open: Vec<&'a str>,
    /// Number of references found so far that close a cycle, as they lead to a variable in `open`.
    cycles: usize,
    lookups: usize,
    /// Size of all expanded values.
    total: usize,
}

impl<'a> Expansion<'a> {
    fn variable(&mut self, name: &'a str) -> Result<String, VariableError> {
        if let Some(value) = self.known.get(name) {
            return Ok(value.clone());
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(VariableError::TooDeep(name.to_owned()));
        }
        self.open.push(name);
        let cycles = self.cycles;
        let value = self.text(name, &self.values[name])?;
        self.open.pop();
        self.total += value.len();
        if self.total > MAX_TOTAL_BYTES {
            return Err(VariableError::TooLarge(name.to_owned()));
        }
        // The value of a variable in a cycle depends on where the cycle was entered.
        if cycles == self.cycles {
            self.known.insert(name.to_owned(), value.clone());
        }
        Ok(value)
    }

    fn text(&mut self, name: &str, text: &'a str) -> Result<String, VariableError> {
        let mut length = 0;
        expand_like_go(text, |other| {
            let value = self.lookup(other)?;
            length += value.len();
            if length > MAX_VALUE_BYTES {
                return Err(VariableError::TooLong(name.to_owned()));
            }
            Ok(value)
        })
    }

    fn lookup(&mut self, name: &'a str) -> Result<String, VariableError> {
        self.lookups += 1;
        if self.lookups > MAX_LOOKUPS {
            return Err(VariableError::Tangled(name.to_owned()));
        }
        if self.values.contains_key(name) {
            if !self.open.contains(&name) {
                return self.variable(name);
            }
            self.cycles += 1;
        }
        Ok(self.env.get(name).cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(key: &str, value: &str) -> Variable {
        Variable { key: key.to_owned(), value: value.to_owned(), ..Variable::default() }
    }

    fn file(key: &str, value: &str) -> Variable {
        Variable { file: true, ..variable(key, value) }
    }

    fn expand_variables(
        variables: &[(&str, &str)],
    ) -> Result<BTreeMap<String, String>, VariableError> {
        let variables: Vec<_> = variables.iter().map(|(k, v)| variable(k, v)).collect();
        let values = write_files(&variables, Path::new("/nowhere")).unwrap();
        let env = [("HOME", "/root"), ("PATH", "/bin")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        expand(&variables, values, &env)
    }

    #[test]
    fn variables_expand_to_others_and_then_to_the_environment() {
        let cases = [
            ("$B", "b"),
            ("${B}x$B.", "bxb."),
            ("$C", "b!"),
            ("$HOME/$B", "/root/b"),
            ("[$NONE${NONE}]", "[]"),
            ("b-$$D $$", "b-$D $"),
            ("$ $1 $é %B% $", "$  $é %B% $"),
            ("[${a-b}${}${*}] ${ ${x", "[]  x"),
            ("é$B€", "éb€"),
        ];
        for (text, value) in cases {
            let all = expand_variables(&[("A", text), ("B", "b"), ("C", "$B!")]).unwrap();
            assert_eq!(all["A"], value, "{text}");
        }
    }

    #[test]
    fn self_reference_extends_the_variable_of_the_environment() {
        assert_eq!(expand_variables(&[("PATH", "/x:$PATH")]).unwrap()["PATH"], "/x:/bin");
        let all = expand_variables(&[("A", "a$B"), ("B", "b$C"), ("C", "c$A")]).unwrap();
        assert_eq!((&*all["A"], &*all["B"], &*all["C"]), ("abc", "bca", "cab"));
    }

    #[test]
    fn unbounded_expansion_is_rejected() {
        let mut bomb: Vec<_> =
            (0..40).map(|i| (format!("V{i}"), format!("$V{0}$V{0}", i + 1))).collect();
        bomb.push(("V40".to_owned(), "xx".to_owned()));
        let bomb: Vec<_> = bomb.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert!(matches!(expand_variables(&bomb), Err(VariableError::TooLong(_))));
        let chain: Vec<_> =
            (0..200).map(|i| (format!("V{i:03}"), format!("$V{:03}", i + 1))).collect();
        let chain: Vec<_> = chain.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert!(matches!(expand_variables(&chain), Err(VariableError::TooDeep(_))));
        let mut nothing: Vec<_> =
            (0..40).map(|i| (format!("V{i}"), format!("$V{0}$V{0}", i + 1))).collect();
        nothing.push(("V40".to_owned(), String::new()));
        let nothing: Vec<_> = nothing.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(expand_variables(&nothing).unwrap()["V0"], "");
        let all: String = (0..20).map(|i| format!("$K{i}")).collect();
        let knot: Vec<_> = (0..20).map(|i| (format!("K{i}"), all.clone())).collect();
        let knot: Vec<_> = knot.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert!(matches!(expand_variables(&knot), Err(VariableError::Tangled(_))));
        let long = "x".repeat(MAX_VALUE_BYTES);
        let names: Vec<_> = (0..1000).map(|i| format!("L{i}")).collect();
        let mut copies: Vec<_> = names.iter().map(|name| (&**name, "$LONG")).collect();
        copies.push(("LONG", &long));
        assert!(matches!(expand_variables(&copies), Err(VariableError::TooLarge(_))));
    }

    #[test]
    fn file_variables_are_paths_of_private_files() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let variables =
            [file("F", "$A"), variable("A", "in $F"), file("G", "1"), variable("G", "2")];
        let values = write_files(&variables, dir.path()).unwrap();
        let all = expand(&variables, values, &BTreeMap::new()).unwrap();
        let path = dir.path().join("F");
        assert_eq!(all["A"], format!("in {}", path.display()));
        assert_eq!(all["G"], "2");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "$A");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn names_that_lead_outside_are_rejected() {
        let none = BTreeMap::new();
        for name in ["../evil", "", "a/b", ".", "1a", "a b", "a\0", "é"] {
            let checked = check(&[file(name, "x")], &none, VariableMode::Object);
            assert!(matches!(checked, Err(VariableError::FileName(_))), "{name:?}");
        }
        check(&[file("_a1", "x"), variable("a.b", "\0")], &none, VariableMode::Object).unwrap();
        for bad in [variable("a=b", ""), variable("", ""), variable("a", "\0")] {
            assert!(check(&[bad], &none, VariableMode::Environment).is_err());
        }
        assert!(
            check(&[], &[("a".to_owned(), "\0".to_owned())].into(), VariableMode::Object).is_err()
        );
    }
}
