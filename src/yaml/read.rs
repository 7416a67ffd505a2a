//! YAML text to trees, within bounds of memory and time whatever the text.

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::error::{Error, Position, Problem};
use super::node::{Field, Node, Source, Value};
use super::scalar::{resolve, resolve_as};

/// Limit of the nesting depth of values.
pub const MAX_DEPTH: usize = 64;

/// Limit of the total weight of values: the length of their text, and [`VALUE_WEIGHT`] for each. A text of
/// a megabyte stays below unless aliases multiply it.
const MAX_WEIGHT: usize = 16 << 20;

/// Weight of a value without its text, in bytes.
const VALUE_WEIGHT: usize = 16;

/// Which mapping keys are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Any scalar; it is read as text.
    AsText,
    Strings,
}

/// One document of a YAML stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Start of the document: its `---` if it has one.
    pub start: Position,
    pub root: Node,
}

/// Iterator over the documents of a text, parsed lazily.
pub struct Documents<'a> {
    parser: Parser<'a, StrInput<'a>>,
    keys: Keys,
    /// Anchored nodes by the parser's anchor id.
    anchors: HashMap<usize, Node>,
    /// Total weight of the values so far.
    weight: usize,
    /// Whether the end, or an error, was reached.
    ended: bool,
}

impl fmt::Debug for Documents<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Iterator for Documents<'_> {
    type Item = Result<Document, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.document().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl<'a> Documents<'a> {
    /// Returns an iterator that starts at the first document.
    pub fn new(text: &'a str, keys: Keys) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let parser = Parser::new_from_str(text);
        Documents { parser, keys, anchors: HashMap::new(), weight: 0, ended: false }
    }

    fn document(&mut self) -> Result<Option<Document>, Error> {
        let mut start = None;
        loop {
            let (event, span) = self.event()?;
            match event {
                Event::StreamEnd => return Ok(None),
                Event::DocumentStart(_) => start = Some(position(span.start)),
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                event => {
                    let start = start.unwrap_or(position(span.start));
                    let root = self.node(event, span, 0)?;
                    return Ok(Some(Document { start, root }));
                }
            }
        }
    }

    fn event(&mut self) -> Result<(Event<'a>, Span), Error> {
        match self.parser.next_event() {
            Some(event) => event.map_err(syntax),
            None => Err(Error::new(None, Problem::Syntax("unexpected end of text".to_owned()))),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Error> {
        let at = position(span.start);
        if depth > MAX_DEPTH {
            return Err(Error::new(at, Problem::TooDeep(MAX_DEPTH)));
        }
        let mut word = None;
        let (value, anchor) = match event {
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(Error::new(at, Problem::Recursive));
                };
                let (weight, height) = extent(node);
                // Measured before the copy is made.
                if depth + height > MAX_DEPTH {
                    return Err(Error::new(at, Problem::TooDeep(MAX_DEPTH)));
                }
                self.weigh(weight, at)?;
                return Ok(self.anchors[&anchor].clone());
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.weigh(VALUE_WEIGHT + text.len(), at)?;
                let value = scalar(&text, style, tag.as_deref(), at)?;
                if style == ScalarStyle::Plain && !matches!(value, Value::Text(_)) {
                    word = Some(text.into());
                }
                (value, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", at)?;
                self.weigh(VALUE_WEIGHT, at)?;
                (self.list(depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", at)?;
                self.weigh(VALUE_WEIGHT, at)?;
                (self.map(depth)?, anchor)
            }
            // The parser pairs the others itself.
            _ => return Err(Error::new(at, Problem::Syntax("missing value".to_owned()))),
        };
        let node = Node { origin: Source { position: at, word }, value };
        if anchor != 0 {
            self.weigh(extent(&node).0, at)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Value, Error> {
        let mut items = Vec::new();
        loop {
            match self.event()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Error> {
        let mut fields: Vec<Field> = Vec::new();
        let mut seen: HashMap<String, Position> = HashMap::new();
        loop {
            let (event, span) = self.event()?;
            let at = position(span.start);
            let name = match event {
                Event::MappingEnd => return Ok(Value::Map(fields)),
                Event::Scalar(text, ..) if self.keys == Keys::AsText => text.into_owned(),
                event => match self.node(event, span, depth + 1)?.value {
                    Value::Text(text) => text,
                    other => {
                        let quote = !matches!(other, Value::List(_) | Value::Map(_));
                        let found = other.kind();
                        return Err(Error::new(at, Problem::Key { found, quote }));
                    }
                },
            };
            self.weigh(VALUE_WEIGHT + name.len(), at)?;
            if let Some(first) = seen.insert(name.clone(), at) {
                return Err(Error::new(at, Problem::DuplicateKey { name, first }));
            }
            let (event, span) = self.event()?;
            let node = self.node(event, span, depth + 1)?;
            fields.push(Field { name, origin: Source { position: at, word: None }, node });
        }
    }

    fn weigh(&mut self, weight: usize, at: Position) -> Result<(), Error> {
        self.weight += weight;
        if self.weight > MAX_WEIGHT {
            return Err(Error::new(at, Problem::TooLarge));
        }
        Ok(())
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, at: Position) -> Result<Value, Error> {
    let wrong = |tag: &Tag| Error::new(at, Problem::Tag(tag.to_string()));
    match tag {
        Some(tag) if tag.is_yaml_core_schema() => {
            resolve_as(&tag.suffix, text).ok_or_else(|| wrong(tag))
        }
        // A lone exclamation mark: not to be resolved.
        Some(tag) if tag.suffix.is_empty() || tag.handle.is_empty() && tag.suffix == "!" => {
            Ok(Value::Text(text.to_owned()))
        }
        Some(tag) => Err(wrong(tag)),
        None if style == ScalarStyle::Plain => Ok(resolve(text)),
        None => Ok(Value::Text(text.to_owned())),
    }
}

fn check_tag(tag: Option<&Tag>, own: &str, at: Position) -> Result<(), Error> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => {
            Err(Error::new(at, Problem::Tag(tag.to_string())))
        }
        _ => Ok(()),
    }
}

/// Returns the weight of a value and its nesting depth.
fn extent(node: &Node) -> (usize, usize) {
    let outer = |(weight, height), (inner_weight, inner_height): (usize, usize)| {
        (weight + inner_weight, usize::max(height, inner_height + 1))
    };
    match &node.value {
        Value::Text(text) => (VALUE_WEIGHT + text.len(), 0),
        Value::List(items) => items.iter().map(extent).fold((VALUE_WEIGHT, 0), outer),
        Value::Map(fields) => fields.iter().fold((VALUE_WEIGHT, 0), |sum, field| {
            let (weight, height) = extent(&field.node);
            outer(sum, (VALUE_WEIGHT + field.name.len() + weight, height))
        }),
        _ => (VALUE_WEIGHT, 0),
    }
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

fn syntax(error: ScanError) -> Error {
    let message = match error.info() {
        // The most frequent mistakes, reworded.
        "simple key expected" | "simple key expect ':'" => "missing `:` on the line before this",
        text if text.starts_with("tabs disallowed") => "indent with spaces, not tabs",
        text => text,
    };
    Error::new(position(*error.marker()), Problem::Syntax(message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Result<Node, Error> {
        Documents::new(text, Keys::Strings).next().unwrap().map(|document| document.root)
    }

    #[test]
    fn documents_come_one_after_the_other_until_one_is_wrong() {
        let mut documents = Documents::new("a\n---\n- b\n--- [\n", Keys::Strings);
        let mut next = || documents.next();
        assert_eq!(next().unwrap().unwrap().root.value, Value::Text("a".to_owned()));
        let second = next().unwrap().unwrap();
        assert_eq!(second.start, Position { line: 2, column: 1 });
        assert_eq!(second.root.items()[0].origin.position, Position { line: 3, column: 3 });
        assert!(matches!(next().unwrap().unwrap_err().problem, Problem::Syntax(_)));
        assert_eq!(next(), None);
        assert_eq!(Documents::new("# nothing\n", Keys::Strings).next(), None);
    }

    #[test]
    fn words_that_are_no_text_are_kept() {
        let list = first("[1.10, True, ~, '5', yes]").unwrap();
        let words: Vec<_> = list.items().iter().map(|item| item.origin.word.as_deref()).collect();
        assert_eq!(words, [Some("1.10"), Some("True"), Some("~"), None, None]);
    }

    #[test]
    fn keys_are_strings_if_they_must_be() {
        let error = first("{1: x}").unwrap_err();
        assert_eq!(error.position, Some(Position { line: 1, column: 2 }));
        assert_eq!(error.to_string(), "expected a string as key, got a number: put it in quotes");
        let document = Documents::new("{1: x}", Keys::AsText).next().unwrap().unwrap();
        assert_eq!(document.root.fields()[0].name, "1");
    }

    #[test]
    fn aliases_do_not_nest_deeper_than_values() {
        let mut text = "- &a0 x\n".to_owned();
        for level in 1..20 {
            text += &format!("- &a{level} {}*a{}{}\n", "[".repeat(10), level - 1, " ]".repeat(10));
        }
        assert_eq!(first(&text).unwrap_err().problem, Problem::TooDeep(MAX_DEPTH));
    }
}
