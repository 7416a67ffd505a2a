//! Parsing YAML text to trees, with bounded memory and time for any text.

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::gopkg::YamlDialect;

use super::node::{
    NodeSource, TextPosition, YamlError, YamlField, YamlNode, YamlProblem, YamlValue,
};

/// Limit of the nesting depth of values.
pub const MAX_DEPTH: usize = 64;

/// Limit of the memory of all values, estimated in bytes as their weight: the length of their text,
/// and [`VALUE_WEIGHT`] for each. A text of a megabyte stays below unless aliases multiply it.
const MAX_WEIGHT: usize = 16 << 20;

/// Weight of a value without its text, in bytes.
const VALUE_WEIGHT: usize = 16;

/// One document of a YAML stream.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlDocument {
    /// Start of the document: its `---` if it has one.
    pub start: TextPosition,
    pub root: YamlNode,
}

/// Iterator over the documents of a text, parsed lazily.
pub struct YamlDocuments<'a> {
    parser: Parser<'a, StrInput<'a>>,
    dialect: YamlDialect,
    /// Anchored nodes by the parser's anchor id.
    anchors: HashMap<usize, YamlNode>,
    /// Total weight of the values so far, at most [`MAX_WEIGHT`].
    weight: usize,
    /// Set after the last document or an error.
    ended: bool,
}

impl fmt::Debug for YamlDocuments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Iterator for YamlDocuments<'_> {
    type Item = Result<YamlDocument, YamlError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.document().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl<'a> YamlDocuments<'a> {
    /// Returns an iterator that starts at the first document.
    pub fn new(text: &'a str, dialect: YamlDialect) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let parser = Parser::new_from_str(text);
        YamlDocuments { parser, dialect, anchors: HashMap::new(), weight: 0, ended: false }
    }

    fn document(&mut self) -> Result<Option<YamlDocument>, YamlError> {
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
                    return Ok(Some(YamlDocument { start, root }));
                }
            }
        }
    }

    fn event(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.parser.next_event() {
            Some(event) => event.map_err(syntax),
            None => {
                Err(YamlError::new(None, YamlProblem::Syntax("unexpected end of text".to_owned())))
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<YamlNode, YamlError> {
        let at = position(span.start);
        if depth > MAX_DEPTH {
            return Err(YamlError::new(at, YamlProblem::TooDeep(MAX_DEPTH)));
        }
        let mut word = None;
        let (value, anchor) = match event {
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(YamlError::new(at, YamlProblem::Recursive));
                };
                let (weight, height) = extent(node);
                // Checked before the node is copied.
                if depth + height > MAX_DEPTH {
                    return Err(YamlError::new(at, YamlProblem::TooDeep(MAX_DEPTH)));
                }
                self.charge_weight(weight, at)?;
                return Ok(self.anchors[&anchor].clone());
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.charge_weight(VALUE_WEIGHT + text.len(), at)?;
                let value = self.scalar(&text, style, tag.as_deref(), at)?;
                let is_word = style == ScalarStyle::Plain || tag.is_some();
                if is_word && !matches!(value, Some(YamlValue::Text(_))) {
                    word = Some(text.clone().into());
                }
                let value = value.unwrap_or_else(|| YamlValue::Text(text.into_owned()));
                (value, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", at)?;
                self.charge_weight(VALUE_WEIGHT, at)?;
                (self.list(depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", at)?;
                self.charge_weight(VALUE_WEIGHT, at)?;
                (self.map(depth)?, anchor)
            }
            // The parser itself matches the start and end of lists and mappings.
            _ => return Err(YamlError::new(at, YamlProblem::Syntax("missing value".to_owned()))),
        };
        let node = YamlNode { origin: NodeSource { position: at, word }, value };
        if anchor != 0 {
            self.charge_weight(extent(&node).0, at)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.event()? {
                (Event::SequenceEnd, _) => return Ok(YamlValue::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<YamlValue, YamlError> {
        let mut fields: Vec<YamlField> = Vec::new();
        let mut seen: HashMap<String, TextPosition> = HashMap::new();
        let mut merged: Option<(TextPosition, Vec<YamlField>)> = None;
        loop {
            let (event, span) = self.event()?;
            let at = position(span.start);
            let name = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, tag) if is_merge(&text, style, tag.as_deref()) => {
                    if let Some((first, _)) = merged {
                        let name = text.into_owned();
                        return Err(YamlError::new(at, YamlProblem::DuplicateKey { name, first }));
                    }
                    merged = Some((at, self.merge(depth)?));
                    continue;
                }
                Event::Scalar(text, ..) if self.dialect == YamlDialect::Core => text.into_owned(),
                event => match self.node(event, span, depth + 1)?.value {
                    YamlValue::Text(text) => text,
                    other => {
                        let quote = !matches!(other, YamlValue::List(_) | YamlValue::Map(_));
                        let found = other.kind();
                        return Err(YamlError::new(at, YamlProblem::Key { found, quote }));
                    }
                },
            };
            self.charge_weight(VALUE_WEIGHT + name.len(), at)?;
            if let Some(first) = seen.insert(name.clone(), at) {
                return Err(YamlError::new(at, YamlProblem::DuplicateKey { name, first }));
            }
            let (event, span) = self.event()?;
            let node = self.node(event, span, depth + 1)?;
            fields.push(YamlField { name, origin: NodeSource { position: at, word: None }, node });
        }
        // Fields of the mapping itself take precedence wherever `<<` is, then those of earlier merged mappings.
        for field in merged.into_iter().flat_map(|(_, merged)| merged) {
            let at = field.origin.position;
            if seen.insert(field.name.clone(), at).is_none() {
                fields.push(field);
            }
        }
        Ok(YamlValue::Map(fields))
    }

    /// Returns the value of a scalar; `None` if it is a number that JSON does not have.
    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        at: TextPosition,
    ) -> Result<Option<YamlValue>, YamlError> {
        let is_plain = style == ScalarStyle::Plain;
        match (tag.and_then(core_type), tag) {
            (Some(kind), Some(tag)) => {
                if kind == "float" && is_plain && self.dialect.resolve::<()>(text).is_none() {
                    return Ok(None);
                }
                let wrong = || match self.dialect {
                    YamlDialect::Core => YamlProblem::Tag(tag.to_string()),
                    YamlDialect::Go => YamlProblem::Tagged(tag.to_string()),
                };
                let value = self.dialect.resolve_as(kind, text);
                value.map(Some).ok_or_else(|| YamlError::new(at, wrong()))
            }
            // A lone exclamation mark: the scalar is a string, but Go resolves it.
            (_, Some(tag))
                if is_lone_mark(tag) && !(is_plain && self.dialect == YamlDialect::Go) =>
            {
                Ok(Some(YamlValue::Text(text.to_owned())))
            }
            (_, Some(tag)) if !is_lone_mark(tag) => {
                Err(YamlError::new(at, YamlProblem::Tag(tag.to_string())))
            }
            _ if is_plain => Ok(self.dialect.resolve(text)),
            _ => Ok(Some(YamlValue::Text(text.to_owned()))),
        }
    }

    /// Reads the value of a merge key: a mapping, or a list of mappings.
    fn merge(&mut self, depth: usize) -> Result<Vec<YamlField>, YamlError> {
        let (event, span) = self.event()?;
        let is_alias = matches!(event, Event::Alias(_));
        let node = self.node(event, span, depth + 1)?;
        let at = position(span.start);
        let wrong = || YamlError::new(at, YamlProblem::Merge);
        match node.value {
            YamlValue::Map(fields) => Ok(fields),
            YamlValue::List(items) if !is_alias => {
                let mut merged = Vec::new();
                for item in items {
                    let YamlValue::Map(fields) = item.value else { return Err(wrong()) };
                    merged.extend(fields);
                }
                Ok(merged)
            }
            _ => Err(wrong()),
        }
    }

    fn charge_weight(&mut self, weight: usize, at: TextPosition) -> Result<(), YamlError> {
        self.weight += weight;
        if self.weight > MAX_WEIGHT {
            return Err(YamlError::new(at, YamlProblem::TooLarge));
        }
        Ok(())
    }
}

/// Returns the type of a tag of YAML's core schema, such as `int`.
fn core_type(tag: &Tag) -> Option<&str> {
    const YAML: &str = "tag:yaml.org,2002:";
    match tag.is_yaml_core_schema() {
        true => Some(&tag.suffix),
        // A verbatim tag: `!<tag:yaml.org,2002:int>`.
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

fn check_tag(tag: Option<&Tag>, own: &str, at: TextPosition) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => {
            Err(YamlError::new(at, YamlProblem::Tag(tag.to_string())))
        }
        _ => Ok(()),
    }
}

/// Returns the weight of a value in bytes, as for [`MAX_WEIGHT`], and its nesting depth.
fn extent(node: &YamlNode) -> (usize, usize) {
    let outer = |(weight, height), (inner_weight, inner_height): (usize, usize)| {
        (weight + inner_weight, usize::max(height, inner_height + 1))
    };
    match &node.value {
        YamlValue::Text(text) => (VALUE_WEIGHT + text.len(), 0),
        YamlValue::List(items) => items.iter().map(extent).fold((VALUE_WEIGHT, 0), outer),
        YamlValue::Map(fields) => fields.iter().fold((VALUE_WEIGHT, 0), |sum, field| {
            let (weight, height) = extent(&field.node);
            outer(sum, (VALUE_WEIGHT + field.name.len() + weight, height))
        }),
        _ => (VALUE_WEIGHT, 0),
    }
}

fn position(marker: Marker) -> TextPosition {
    TextPosition { line: marker.line(), column: marker.col() + 1 }
}

fn syntax(error: ScanError) -> YamlError {
    let message = match error.info() {
        // The most frequent mistakes, reworded.
        "simple key expected" | "simple key expect ':'" => "missing `:` on the line before this",
        text if text.starts_with("tabs disallowed") => "indent with spaces, not tabs",
        text => text,
    };
    YamlError::new(position(*error.marker()), YamlProblem::Syntax(message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_first(text: &str) -> Result<YamlNode, YamlError> {
        YamlDocuments::new(text, YamlDialect::Go).next().unwrap().map(|document| document.root)
    }

    #[test]
    fn documents_are_read_in_order_up_to_the_first_error() {
        let mut documents = YamlDocuments::new("a\n---\n- b\n--- [\n", YamlDialect::Go);
        let mut next = || documents.next();
        assert_eq!(next().unwrap().unwrap().root.value, YamlValue::Text("a".to_owned()));
        let second = next().unwrap().unwrap();
        assert_eq!(second.start, TextPosition { line: 2, column: 1 });
        assert_eq!(second.root.items()[0].origin.position, TextPosition { line: 3, column: 3 });
        assert!(matches!(next().unwrap().unwrap_err().problem, YamlProblem::Syntax(_)));
        assert_eq!(next(), None);
        assert_eq!(YamlDocuments::new("# nothing\n", YamlDialect::Go).next(), None);
    }

    #[test]
    fn untyped_words_are_kept_as_written() {
        let list = read_first("[1.10, True, ~, '5', yes]").unwrap();
        let words: Vec<_> = list.items().iter().map(|item| item.origin.word.as_deref()).collect();
        assert_eq!(words, [Some("1.10"), Some("True"), Some("~"), None, None]);
    }

    #[test]
    fn keys_are_converted_to_strings_where_required() {
        let error = read_first("{1: x}").unwrap_err();
        assert_eq!(error.position, Some(TextPosition { line: 1, column: 2 }));
        assert_eq!(error.to_string(), "expected a string as key, got a number: put it in quotes");
        let document = YamlDocuments::new("{1: x}", YamlDialect::Core).next().unwrap().unwrap();
        assert_eq!(document.root.fields()[0].name, "1");
    }

    #[test]
    fn merged_fields_come_after_those_of_the_mapping() {
        let root = read_first("{a: &a {x: 1, y: 2}, b: {<<: [*a, {x: 3, z: 4}], y: 5}}").unwrap();
        let merged = root.get("b").unwrap();
        let names: Vec<_> = merged.fields().iter().map(|field| &*field.name).collect();
        assert_eq!(names, ["y", "x", "z"]);
        assert_eq!(merged.get("x").unwrap().value, YamlValue::Number(1.into()));
        let core = |text| YamlDocuments::new(text, YamlDialect::Core).next().unwrap().unwrap().root;
        assert_eq!(core("{<<: {x: 1}}").fields()[0].name, "x");
        assert_eq!(core("{\"<<\": {x: 1}}").fields()[0].name, "<<");
        let error = read_first("{a: 1, <<: 2}").unwrap_err();
        assert_eq!((error.position.unwrap().column, error.problem), (12, YamlProblem::Merge));
    }

    #[test]
    fn merges_are_limited() {
        let mut text = "- &a0 {x: 1}\n".to_owned();
        for level in 1..40 {
            let inner = level - 1;
            text += &format!("- &a{level} {{<<: [*a{inner}, *a{inner}], k{level}: *a{inner}}}\n");
        }
        assert_eq!(read_first(&text).unwrap_err().problem, YamlProblem::TooLarge);
    }

    #[test]
    fn aliases_are_limited_to_the_depth_of_values() {
        let mut text = "- &a0 x\n".to_owned();
        for level in 1..20 {
            text += &format!("- &a{level} {}*a{}{}\n", "[".repeat(10), level - 1, " ]".repeat(10));
        }
        assert_eq!(read_first(&text).unwrap_err().problem, YamlProblem::TooDeep(MAX_DEPTH));
    }
}
