//! Variables of a CI job: validation, expansion, file variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::super::wire::proto::Variable;
use crate::sys::fs::{PathContext as _, PathError};

/// Size limit of an expanded value, which is the kernel's for environment variables.
const MAX_VALUE_BYTES: usize = 128 << 10;

/// Limit of look-ups: names in cycles are looked up repeatedly.
const MAX_LOOKUPS: usize = 100_000;

/// Limit of the depth of references between variables.
const MAX_DEPTH: usize = 64;

/// How steps see the variables of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variables {
    /// As `vars` in expressions, not expanded: GitLab's runner has expanded them already.
    #[default]
    Object,
    /// As `vars` in expressions and in the environment, expanded: by the design document.
    Environment,
}

/// An invalid variable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VariableError {
    /// A file variable whose name is not a safe file name.
    #[error(
        "invalid name of file variable {0:?}: expected letters, digits and _, not starting with a \
         digit"
    )]
    FileName(String),
    /// A name that is not valid in an environment.
    #[error("invalid name of environment variable {0:?}")]
    Name(String),
    /// A value that is not valid in an environment.
    #[error("the value of variable {0:?} contains a NUL byte")]
    Nul(String),
    /// A value that is too long after expansion.
    #[error("variable {0:?} is too long after expansion (limit {MAX_VALUE_BYTES} bytes)")]
    TooLong(String),
    /// Variables whose expansion needs too many look-ups.
    #[error("variable {0:?} needs too many look-ups to expand (limit {MAX_LOOKUPS})")]
    Tangled(String),
    /// Variables that refer to each other too deeply.
    #[error("variable {0:?} refers to other variables too deeply (limit {MAX_DEPTH})")]
    TooDeep(String),
}

/// Validates names and values of variables and of `env`.
pub fn check(
    variables: &[Variable],
    env: &BTreeMap<String, String>,
    treatment: Variables,
) -> Result<(), VariableError> {
    for Variable { key, value, file, .. } in variables {
        if *file && !is_identifier(key) {
            return Err(VariableError::FileName(key.clone()));
        }
        if treatment == Variables::Environment && !file {
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

/// Writes the values of file variables to files, and returns all values: of file variables, the path. The
/// last variable of a name wins.
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
            opened.at("make", &path)?.write_all(value.as_bytes()).at("write", &path)?;
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

/// Expands `$NAME` and `${NAME}` in values to other variables, or else to `env`, or else to nothing. A
/// reference cycle ends in `env`; `$$` is not changed. Paths of file variables are not expanded.
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
    let mut expansion =
        Expansion { values: &values, env, known, open: Vec::new(), cycles: 0, lookups: 0 };
    values.keys().map(|name| Ok((name.clone(), expansion.variable(name)?))).collect()
}

struct Expansion<'a> {
    values: &'a BTreeMap<String, String>,
    env: &'a BTreeMap<String, String>,
    /// Expanded values that do not depend on where a cycle is entered.
    known: BTreeMap<String, String>,
    /// Variables that are being expanded, the outermost first.
    open: Vec<&'a str>,
    /// How many references to them were found.
    cycles: usize,
    lookups: usize,
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
        // The value of a variable in a cycle depends on where the cycle was entered.
        if cycles == self.cycles {
            self.known.insert(name.to_owned(), value.clone());
        }
        Ok(value)
    }

    fn text(&mut self, name: &str, text: &'a str) -> Result<String, VariableError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            let (reference, length) = reference(&rest[at..]);
            match reference {
                None => out.push_str(&rest[at..at + length]),
                Some(other) => out.push_str(&self.lookup(other)?),
            }
            rest = &rest[at + length..];
            if out.len() > MAX_VALUE_BYTES {
                return Err(VariableError::TooLong(name.to_owned()));
            }
        }
        out.push_str(rest);
        Ok(out)
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

/// Parses a reference at a dollar sign. Returns its name, if it is one, and its length.
fn reference(text: &str) -> (Option<&str>, usize) {
    let after = &text[1..];
    if let Some(braced) = after.strip_prefix('{') {
        return match braced.split_once('}') {
            Some((name, _)) if is_identifier(name) => (Some(name), name.len() + 3),
            _ => (None, 2),
        };
    }
    if after.starts_with('$') {
        return (None, 2);
    }
    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
    let name = &after[..end];
    if is_identifier(name) { (Some(name), end + 1) } else { (None, 1) }
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

    fn expanded(variables: &[(&str, &str)]) -> Result<BTreeMap<String, String>, VariableError> {
        let variables: Vec<_> = variables.iter().map(|(k, v)| variable(k, v)).collect();
        let values = write_files(&variables, Path::new("/nowhere")).unwrap();
        let env = [("HOME", "/root"), ("PATH", "/bin")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        expand(&variables, values, &env)
    }

    #[test]
    fn variables_are_replaced_by_others_then_by_the_environment() {
        let cases = [
            ("$B", "b"),
            ("${B}x$B.", "bxb."),
            ("$C", "b!"),
            ("$HOME/$B", "/root/b"),
            ("[$NONE${NONE}]", "[]"),
            ("$$B $$", "$$B $$"),
            ("$ $1 ${ ${x ${a-b} $é %B% $", "$ $1 ${ ${x ${a-b} $é %B% $"),
            ("é$B€", "éb€"),
        ];
        for (text, value) in cases {
            let all = expanded(&[("A", text), ("B", "b"), ("C", "$B!")]).unwrap();
            assert_eq!(all["A"], value, "{text}");
        }
    }

    #[test]
    fn a_variable_that_names_itself_extends_the_environments() {
        assert_eq!(expanded(&[("PATH", "/x:$PATH")]).unwrap()["PATH"], "/x:/bin");
        let all = expanded(&[("A", "a$B"), ("B", "b$C"), ("C", "c$A")]).unwrap();
        assert_eq!((&*all["A"], &*all["B"], &*all["C"]), ("abc", "bca", "cab"));
    }

    #[test]
    fn what_grows_without_end_is_refused() {
        let mut bomb: Vec<_> =
            (0..40).map(|i| (format!("V{i}"), format!("$V{0}$V{0}", i + 1))).collect();
        bomb.push(("V40".to_owned(), "xx".to_owned()));
        let bomb: Vec<_> = bomb.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert!(matches!(expanded(&bomb), Err(VariableError::TooLong(_))));
        let chain: Vec<_> =
            (0..200).map(|i| (format!("V{i:03}"), format!("$V{:03}", i + 1))).collect();
        let chain: Vec<_> = chain.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert!(matches!(expanded(&chain), Err(VariableError::TooDeep(_))));
        let mut nothing: Vec<_> =
            (0..40).map(|i| (format!("V{i}"), format!("$V{0}$V{0}", i + 1))).collect();
        nothing.push(("V40".to_owned(), String::new()));
        let nothing: Vec<_> = nothing.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(expanded(&nothing).unwrap()["V0"], "");
        let all: String = (0..20).map(|i| format!("$K{i}")).collect();
        let knot: Vec<_> = (0..20).map(|i| (format!("K{i}"), all.clone())).collect();
        let knot: Vec<_> = knot.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert!(matches!(expanded(&knot), Err(VariableError::Tangled(_))));
    }

    #[test]
    fn files_are_private_and_their_variables_are_paths() {
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
    fn names_that_lead_elsewhere_are_refused() {
        let none = BTreeMap::new();
        for name in ["../evil", "", "a/b", ".", "1a", "a b", "a\0", "é"] {
            let checked = check(&[file(name, "x")], &none, Variables::Object);
            assert!(matches!(checked, Err(VariableError::FileName(_))), "{name:?}");
        }
        check(&[file("_a1", "x"), variable("a.b", "\0")], &none, Variables::Object).unwrap();
        for bad in [variable("a=b", ""), variable("", ""), variable("a", "\0")] {
            assert!(check(&[bad], &none, Variables::Environment).is_err());
        }
        assert!(
            check(&[], &[("a".to_owned(), "\0".to_owned())].into(), Variables::Object).is_err()
        );
    }
}
