//! Comments that a stranger can search, and names of types that are clear without their module.
//!
//! The limits are those of ripgrep, uv, jj, youki and netavark.

use std::collections::BTreeMap;

use crate::tidy::source::{SourceFile, TidyFinding};

/// Words that stand for a noun. A sentence that mostly consists of them says nothing to search for.
const PRONOUNS: &str = "it its they them their theirs that this those these what which who whom whose whoever \
    whatever wherever one ones none nobody somebody anybody other others all any some such each so there here";

/// Pronouns that comments do without.
const REJECTED: [&str; 6] = ["nobody", "somebody", "whoever", "whom", "anybody", "everybody"];

/// Openings that announce a question in place of a subject.
const OPENINGS: [&str; 12] = [
    "What", "Why", "Whether", "How", "Who", "Whose", "Where", "Which", "When", "That", "Of",
    "Those",
];

/// First words of function names that stand for a noun or follow one.
const PLACEHOLDERS: [&str; 24] = [
    "what",
    "why",
    "who",
    "whose",
    "whom",
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "that",
    "those",
    "these",
    "they",
    "it",
    "such",
    "said",
    "told",
    "shown",
    "within",
    "beside",
    "below",
    "beyond",
    "because",
];

/// Shorter sentences are not judged.
const MIN_WORDS: usize = 8;

/// Share of pronouns from which a sentence is a riddle.
const RIDDLE_PERCENT: usize = 38;

const MAX_RIDDLES_PER_1000_SENTENCES: usize = 1;

const MAX_OPENINGS_PERCENT: usize = 3;

const MAX_ONE_WORD_TYPES_PERCENT: usize = 30;

const MAX_DECLARATIONS_OF_A_NAME: usize = 3;

/// A block of consecutive comment lines of one kind.
struct Comment {
    line: usize,
    is_documentation: bool,
    text: String,
}

/// Finds riddles and questions, if they are too many, and rejected pronouns.
pub(crate) fn check_comments<'a>(
    sources: impl Iterator<Item = &'a SourceFile>,
) -> Vec<TidyFinding> {
    let (mut sentences, mut documented) = (0, 0);
    let (mut riddles, mut openings, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources {
        for comment in comments(&source.text) {
            let finding = |message| TidyFinding::new(&source.path, comment.line, message);
            if comment.is_documentation {
                documented += 1;
                let first = comment.text.split(|c: char| !c.is_alphanumeric()).next();
                if first.is_some_and(|first| OPENINGS.contains(&first)) {
                    openings.push(finding(format!("begin with the subject: {}", comment.text)));
                }
            }
            for sentence in split_sentences(&comment.text) {
                let words = split_words(sentence);
                if let Some(word) = words.iter().find(|word| REJECTED.contains(&word.as_str())) {
                    findings
                        .push(finding(format!("name the thing in place of `{word}`: {sentence}")));
                }
                if words.len() >= MIN_WORDS {
                    sentences += 1;
                    if is_riddle(&words) {
                        riddles.push(finding(format!("needs words to search for: {sentence}")));
                    }
                }
            }
        }
    }
    if riddles.len() * 1000 > sentences * MAX_RIDDLES_PER_1000_SENTENCES {
        findings.append(&mut riddles);
    }
    if openings.len() * 100 > documented * MAX_OPENINGS_PERCENT {
        findings.append(&mut openings);
    }
    findings
}

fn is_riddle(words: &[String]) -> bool {
    let is_pronoun = |word: &&String| PRONOUNS.split(' ').any(|pronoun| pronoun == *word);
    words.iter().filter(is_pronoun).count() * 100 >= words.len() * RIDDLE_PERCENT
}

/// Returns the comments on lines of their own.
fn comments(text: &str) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    let mut previous = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let kind = ["///", "//!", "//"].into_iter().find(|prefix| line.starts_with(prefix));
        let Some(prefix) = kind else {
            previous = None;
            continue;
        };
        let content = line[prefix.len()..].trim();
        match comments.last_mut().filter(|_| previous == kind) {
            Some(comment) => {
                comment.text.push(' ');
                comment.text.push_str(content);
            }
            None => comments.push(Comment {
                line: at + 1,
                is_documentation: prefix == "///",
                text: content.to_owned(),
            }),
        }
        previous = kind;
    }
    comments
}

/// Splits a text after punctuation that a blank follows.
fn split_sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, pair) in text.as_bytes().windows(2).enumerate() {
        if b".!?:;".contains(&pair[0]) && pair[1] == b' ' {
            sentences.push(&text[start..=at]);
            start = at + 2;
        }
    }
    sentences.push(&text[start..]);
    sentences
}

fn split_words(sentence: &str) -> Vec<String> {
    let is_separator = |c: char| !c.is_ascii_alphabetic() && c != '\'';
    sentence.split(is_separator).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// Finds names of types that are declared too often, and all names of one word, if they are too many.
pub(crate) fn check_types<'a>(sources: impl Iterator<Item = &'a SourceFile>) -> Vec<TidyFinding> {
    let mut declarations: BTreeMap<&str, Vec<TidyFinding>> = BTreeMap::new();
    for source in sources.filter(|source| source.package_path().1.starts_with("src")) {
        let mut at = 0;
        for line in source.code_without_tests().split_inclusive('\n') {
            if let Some(name) = declared_type(line) {
                let finding = source.finding(at, format!("the type `{name}`"));
                declarations.entry(name).or_default().push(finding);
            }
            at += line.len();
        }
    }
    let count: usize = declarations.values().map(Vec::len).sum();
    let (one_word, others): (Vec<_>, Vec<_>) =
        declarations.into_iter().partition(|(name, _)| is_one_word(name));
    let one_words: usize = one_word.iter().map(|(_, findings)| findings.len()).sum();
    let too_many = one_words * 100 > count * MAX_ONE_WORD_TYPES_PERCENT;
    let repeated = |findings: &Vec<TidyFinding>| findings.len() > MAX_DECLARATIONS_OF_A_NAME;
    let one_word = one_word.into_iter().map(|(_, findings)| findings);
    let others = others.into_iter().map(|(_, findings)| findings);
    let one_word = one_word.filter(|findings| too_many || repeated(findings));
    one_word.chain(others.filter(repeated)).flatten().collect()
}

/// Finds functions, tests among them, with names that do not start with what they do, return or claim.
pub(crate) fn check_functions<'a>(
    sources: impl Iterator<Item = &'a SourceFile>,
) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for source in sources {
        for (at, _) in source.code.match_indices("fn ") {
            let is_keyword =
                !source.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let name = source.code[at + 3..].split(['(', '<']).next().unwrap_or_default();
            let first = name.split('_').next().unwrap_or_default();
            if is_keyword && PLACEHOLDERS.contains(&first) {
                findings
                    .push(source.finding(at, format!("`{name}`: name the action or the thing")));
            }
        }
    }
    findings
}

/// Returns the name of the type that a line of code declares. Aliases within a block are associated types.
fn declared_type(line: &str) -> Option<&str> {
    let (line, is_nested) = (line.trim_start(), line.starts_with(' '));
    let rest = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (keyword, rest) = rest.split_once(' ')?;
    let is_type =
        ["struct", "enum", "trait", "union"].contains(&keyword) || keyword == "type" && !is_nested;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
    name.filter(|name| is_type && name.starts_with(char::is_uppercase))
}

fn is_one_word(name: &str) -> bool {
    let mut letters = name.chars().zip(name.chars().skip(1));
    !letters.any(|(first, second)| !first.is_uppercase() && second.is_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check_comments([&SourceFile::new("src/a.rs", text)].into_iter()).len()
    }

    #[test]
    fn riddles_questions_and_pronouns_are_found() {
        assert_eq!(count("/// Returns the hooks that match a container.\nfn a() {}\n"), 0);
        assert_eq!(
            count("// Reads what those say whose entries say that there is something.\n"),
            1
        );
        assert_eq!(
            count("/// Reads what those say whose\n/// entries say that there is any.\n"),
            1
        );
        assert_eq!(count("/// Whether the mount is read-only.\n"), 1);
        assert_eq!(count("// Whether the mount is read-only.\n"), 0);
        assert_eq!(count("//! Nobody uses the file.\n"), 1);
        assert_eq!(count("a(); // Nobody\nlet b = \"nobody\";\n"), 0);
    }

    #[test]
    fn few_questions_and_riddles_are_accepted() {
        let good = "/// Returns the hooks that match a container of the engine.\nfn a() {}\n";
        let question = format!("{}/// Whether it is.\n", good.repeat(40));
        assert_eq!(count(&question), 0);
        let riddle = "\n// Reads what those say whose entries say that there is something.\n";
        assert_eq!(count(&format!("{}{riddle}", good.repeat(999))), 0);
        assert_eq!(count(&format!("{}{riddle}", good.repeat(998))), 1);
    }

    #[test]
    fn names_of_functions_are_found() {
        let found =
            |text: &str| check_functions([&SourceFile::new("src/a.rs", text)].into_iter()).len();
        assert_eq!(found("fn remove_network() {}\nfn paths() {}\nfn whole_number<T>() {}\n"), 0);
        assert_eq!(found("pub fn within<T>() {}\n    fn what_is_left() {}\n"), 2);
        assert_eq!(found("// fn what() {}\nlet a = \"fn what() {}\";\n"), 0);
    }

    #[test]
    fn names_of_types_are_found() {
        let found =
            |text: &str| check_types([&SourceFile::new("src/a.rs", text)].into_iter()).len();
        let good = "pub struct NetworkRecord;\npub(crate) enum PortError {}\ntype HookList = A;\n";
        assert_eq!(found(good), 0);
        assert_eq!(found(&format!("{good}struct Volume;\n")), 0);
        assert_eq!(found(&format!("{good}struct Place;\n    enum Among {{}}\n")), 2);
        assert_eq!(
            found(&format!("{good}impl A for B {{\n    type Item = A;\n    type Err = A;\n}}\n")),
            0
        );
        assert_eq!(found(&format!("{good}#[cfg(test)]\nmod tests {{\n    struct A;\n}}\n")), 0);
        assert_eq!(found(&"struct HookFile;\n".repeat(3)), 0);
        assert_eq!(found(&"struct HookFile;\n".repeat(4)), 4);
    }
}
