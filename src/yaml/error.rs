//! What is wrong with a text, and where.

use std::fmt;

/// A place in a file. Lines and columns count from one, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A place in a file of which the name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as the caller named it.
    pub file: String,
    /// Where in it; none for the file as a whole.
    pub position: Option<Position>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{}:{position}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// A text is not YAML, or none that is read here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Error {
    /// Where; none for the text as a whole.
    pub position: Option<Position>,
    /// What is wrong.
    pub problem: Problem,
}

impl Error {
    pub(super) fn new(position: impl Into<Option<Position>>, problem: Problem) -> Self {
        Error { position: position.into(), problem }
    }
}

/// What can be wrong in any YAML text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is not YAML.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// Its values are nested in too many others.
    #[error("is nested more than {0} deep, which nothing needs to be")]
    TooDeep(usize),
    /// Aliases repeat too much.
    #[error("aliases make it too large; write out what is meant")]
    TooLarge,
    /// An alias is inside of what it stands for.
    #[error("this alias stands for something that it is in")]
    Recursive,
    /// A tag that does not belong to YAML's core schema.
    #[error("the tag {0} is unknown; leave it out")]
    Tag(String),
    /// A key that is no string.
    #[error("a key must be a string, not {found}{}", if *quote { "; write it in quotes" } else { "" })]
    Key {
        /// What it is.
        found: &'static str,
        /// Whether quotes would make it right.
        quote: bool,
    },
    /// A key occurs twice in one mapping.
    #[error("the key `{name}` was there in line {}; remove one of them", first.line)]
    DuplicateKey {
        /// The key.
        name: String,
        /// Where it was first.
        first: Position,
    },
}

/// Returns what to do about a name that is not among those known; none if that cannot be told.
pub fn help(name: &str, known: &[&str]) -> Option<String> {
    let distance = |known: &str| strsim::osa_distance(&name.to_lowercase(), &known.to_lowercase());
    let best = known.iter().min_by_key(|known| distance(known));
    match best {
        _ if name == "<<" => {
            Some("merging mappings is not part of YAML 1.2, write the fields out".to_owned())
        }
        Some(best) if distance(best) <= 1 + best.len() / 4 => {
            Some(format!("did you mean `{best}`?"))
        }
        Some(_) if known.len() <= 8 => Some(format!("it has {}", known.join(", "))),
        _ => None,
    }
}
