//! YAML text to trees, within bounds of memory and time whatever the text.

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::gopkg::Dialect;

use super::node::{Error, Field, Node, Position, Problem, Source, Value};

/// Limit of the nesting depth of values.
pub const MAX_DEPTH: usize = 64;

/// Limit of the total weight of values: the length of their text, and [`VALUE_WEIGHT`] for each. A text of
/// a megabyte stays below unless aliases multiply it.
const MAX_WEIGHT: usize = 16 << 20;

/// Weight of a value without its text, in bytes.
const VALUE_WEIGHT: usize = 16;

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
    dialect: Dialect,
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
    pub fn new(text: &'a str, dialect: Dialect) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let parser = Parser::new_from_str(text);
        Documents { parser, dialect, anchors: HashMap::new(), weight: 0, ended: false }
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
                let value = self.scalar(&text, style, tag.as_deref(), at)?;
                let is_word = style == ScalarStyle::Plain || tag.is_some();
                if is_word && !matches!(value, Some(Value::Text(_))) {
                    word = Some(text.clone().into());
                }
                let value = value.unwrap_or_else(|| Value::Text(text.into_owned()));
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
        let mut merged: Option<(Position, Vec<Field>)> = None;
        loop {
            let (event, span) = self.event()?;
            let at = position(span.start);
            let name = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) if self.dialect == Dialect::Core => text.into_owned(),
                Event::Scalar(text, style, _, tag) if is_merge(&text, style, tag.as_deref()) => {
                    if let Some((first, _)) = merged {
                        let name = text.into_owned();
                        return Err(Error::new(at, Problem::DuplicateKey { name, first }));
                    }
                    merged = Some((at, self.merge(depth)?));
                    continue;
                }
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
        // Fields of the mapping itself take precedence wherever it merges, then earlier mappings.
        for field in merged.into_iter().flat_map(|(_, merged)| merged) {
            let at = field.origin.position;
            if seen.insert(field.name.clone(), at).is_none() {
                fields.push(field);
            }
        }
        Ok(Value::Map(fields))
    }

    /// Returns the value of a scalar; `None` if it is a number that JSON does not have.
    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        at: Position,
    ) -> Result<Option<Value>, Error> {
        let is_plain = style == ScalarStyle::Plain;
        match (tag.and_then(core_type), tag) {
            (Some(kind), Some(tag)) => {
                if kind == "float" && is_plain && self.dialect.resolve::<()>(text).is_none() {
                    return Ok(None);
                }
                let wrong = || match self.dialect {
                    Dialect::Core => Problem::Tag(tag.to_string()),
                    Dialect::Go => Problem::Tagged(tag.to_string()),
                };
                let value = self.dialect.resolve_as(kind, text);
                value.map(Some).ok_or_else(|| Error::new(at, wrong()))
            }
            // A lone exclamation mark: not to be resolved, but Go does.
            (_, Some(tag)) if is_lone_mark(tag) && !(is_plain && self.dialect == Dialect::Go) => {
                Ok(Some(Value::Text(text.to_owned())))
            }
            (_, Some(tag)) if !is_lone_mark(tag) => {
                Err(Error::new(at, Problem::Tag(tag.to_string())))
            }
            _ if is_plain => Ok(self.dialect.resolve(text)),
            _ => Ok(Some(Value::Text(text.to_owned()))),
        }
    }

    /// Reads the value of a merge key: a mapping, or a list of mappings.
    fn merge(&mut self, depth: usize) -> Result<Vec<Field>, Error> {
        let (event, span) = self.event()?;
        let is_alias = matches!(event, Event::Alias(_));
        let node = self.node(event, span, depth + 1)?;
        let at = position(span.start);
        let wrong = || Error::new(at, Problem::Merge);
        match node.value {
            Value::Map(fields) => Ok(fields),
            Value::List(items) if !is_alias => {
                let mut merged = Vec::new();
                for item in items {
                    let Value::Map(fields) = item.value else { return Err(wrong()) };
                    merged.extend(fields);
                }
                Ok(merged)
            }
            _ => Err(wrong()),
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

/// Returns the type that a tag of YAML itself names, such as `int`.
fn core_type(tag: &Tag) -> Option<&str> {
    const YAML: &str = "tag:yaml.org,2002:";
    match tag.is_yaml_core_schema() {
        true => Some(&tag.suffix),
        // Written out: `!<tag:yaml.org,2002:int>`.
        false if tag.handle.is_empty() => tag.suffix.strip_prefix(YAML),
        false => None,
    }
}

fn is_lone_mark(tag: &Tag) -> bool {
    tag.suffix.is_empty() || tag.handle.is_empty() && tag.suffix == "!"
}

/// Returns whether a key merges the fields of its value.
fn is_merge(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> bool {
    text == "<<"
        && match tag {
            None => style == ScalarStyle::Plain,
            Some(tag) => core_type(tag) == Some("merge"),
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
        Documents::new(text, Dialect::Go).next().unwrap().map(|document| document.root)
    }

    #[test]
    fn documents_come_one_after_the_other_until_one_is_wrong() {
        let mut documents = Documents::new("a\n---\n- b\n--- [\n", Dialect::Go);
        let mut next = || documents.next();
        assert_eq!(next().unwrap().unwrap().root.value, Value::Text("a".to_owned()));
        let second = next().unwrap().unwrap();
        assert_eq!(second.start, Position { line: 2, column: 1 });
        assert_eq!(second.root.items()[0].origin.position, Position { line: 3, column: 3 });
        assert!(matches!(next().unwrap().unwrap_err().problem, Problem::Syntax(_)));
        assert_eq!(next(), None);
        assert_eq!(Documents::new("# nothing\n", Dialect::Go).next(), None);
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
        let document = Documents::new("{1: x}", Dialect::Core).next().unwrap().unwrap();
        assert_eq!(document.root.fields()[0].name, "1");
    }

    #[test]
    fn fields_are_merged_behind_those_of_the_mapping() {
        let root = first("{a: &a {x: 1, y: 2}, b: {<<: [*a, {x: 3, z: 4}], y: 5}}").unwrap();
        let merged = root.get("b").unwrap();
        let names: Vec<_> = merged.fields().iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["y", "x", "z"]);
        assert_eq!(merged.get("x").unwrap().value, Value::Number(1.into()));
        let document = Documents::new("{<<: {x: 1}}", Dialect::Core).next().unwrap().unwrap();
        assert_eq!(document.root.fields()[0].name, "<<");
        let error = first("{a: 1, <<: 2}").unwrap_err();
        assert_eq!((error.position.unwrap().column, error.problem), (12, Problem::Merge));
    }

    #[test]
    fn merges_do_not_multiply_without_limit() {
        let mut text = "- &a0 {x: 1}\n".to_owned();
        for level in 1..40 {
            let inner = level - 1;
            text += &format!("- &a{level} {{<<: [*a{inner}, *a{inner}], k{level}: *a{inner}}}\n");
        }
        assert_eq!(first(&text).unwrap_err().problem, Problem::TooLarge);
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
