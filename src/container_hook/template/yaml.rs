//! YAML text to a tree, within bounds: whatever the text is, this ends soon and in a result.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::error::{Fault, Position, Problem};
use super::merged::Origin;
use super::node::{Field, Node, Value};
use super::scalar::{resolve, resolve_as};

/// How deep values may be nested. A pod has about a dozen levels.
pub(super) const MAX_DEPTH: usize = 64;

/// The most that values may weigh: their text, and [`VALUE_WEIGHT`] for each. Text within
/// [`super::MAX_BYTES`] is lighter than that unless aliases multiply it.
const MAX_WEIGHT: usize = 16 << 20;

/// What a value weighs without its text.
const VALUE_WEIGHT: usize = 16;

/// Reads the only document.
pub(super) fn read(text: &str) -> Result<Node, Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parser = Parser::new_from_str(text);
    let mut reader = Reader { parser, anchors: HashMap::new(), weight: 0 };
    let mut document = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(_) if document.is_some() => {
                return Err(Fault::new(position(span.start), Problem::Documents));
            }
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => document = Some(reader.node(event, span, 0)?),
        }
    }
    document.ok_or(Fault::new(None, Problem::Empty))
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// What aliases stand for, by the parser's number.
    anchors: HashMap<usize, Node>,
    /// What all values that were made weigh together.
    weight: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Fault> {
        match self.parser.next_event() {
            Some(event) => event.map_err(syntax),
            None => Err(Fault::new(None, Problem::Syntax("it ends too early".to_owned()))),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Fault> {
        let at = position(span.start);
        if depth > MAX_DEPTH {
            return Err(Fault::new(at, Problem::TooDeep(MAX_DEPTH)));
        }
        let (value, anchor) = match event {
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(Fault::new(at, Problem::Recursive));
                };
                let weight = weight(node);
                // Weighed before it is made.
                self.weigh(weight, at)?;
                return Ok(self.anchors[&anchor].clone());
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.weigh(VALUE_WEIGHT + text.len(), at)?;
                (scalar(text, style, tag.as_deref(), at)?, anchor)
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
            _ => return Err(Fault::new(at, Problem::Syntax("a value is missing".to_owned()))),
        };
        let node = Node { origin: Origin::Template(at), value };
        if anchor != 0 {
            self.weigh(weight(&node), at)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut fields: Vec<Field> = Vec::new();
        let mut seen: HashMap<String, Position> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            let at = position(span.start);
            let name = match event {
                Event::MappingEnd => return Ok(Value::Map(fields)),
                // As in JSON a key is text, whatever it would be as a value.
                Event::Scalar(text, ..) => text.into_owned(),
                event => match self.node(event, span, depth + 1)?.value {
                    Value::Text(text) => text,
                    other => return Err(Fault::new(at, Problem::Key(other.kind()))),
                },
            };
            self.weigh(VALUE_WEIGHT + name.len(), at)?;
            if let Some(first) = seen.insert(name.clone(), at) {
                return Err(Fault::new(at, Problem::DuplicateKey { name, first }));
            }
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1)?;
            fields.push(Field { name, origin: Origin::Template(at), node });
        }
    }

    fn weigh(&mut self, weight: usize, at: Position) -> Result<(), Fault> {
        self.weight += weight;
        if self.weight > MAX_WEIGHT {
            return Err(Fault::new(at, Problem::TooLarge));
        }
        Ok(())
    }
}

fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: Position,
) -> Result<Value, Fault> {
    let wrong = |tag: &Tag| Fault::new(at, Problem::Tag(tag.to_string()));
    match tag {
        Some(tag) if tag.is_yaml_core_schema() => {
            resolve_as(&tag.suffix, &text).ok_or_else(|| wrong(tag))
        }
        // A lone exclamation mark: not to be resolved.
        Some(tag) if tag.suffix.is_empty() || tag.handle.is_empty() && tag.suffix == "!" => {
            Ok(Value::Text(text.into_owned()))
        }
        Some(tag) => Err(wrong(tag)),
        None if style == ScalarStyle::Plain => Ok(resolve(&text)),
        None => Ok(Value::Text(text.into_owned())),
    }
}

fn check_tag(tag: Option<&Tag>, own: &str, at: Position) -> Result<(), Fault> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => {
            Err(Fault::new(at, Problem::Tag(tag.to_string())))
        }
        _ => Ok(()),
    }
}

fn weight(node: &Node) -> usize {
    let inner = match &node.value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(fields) => {
            fields.iter().map(|field| VALUE_WEIGHT + field.name.len() + weight(&field.node)).sum()
        }
        _ => 0,
    };
    VALUE_WEIGHT + inner
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

fn syntax(error: ScanError) -> Fault {
    let message = match error.info() {
        // What people do wrong most often, in their words.
        "simple key expected" | "simple key expect ':'" => {
            "there is no `:` on the line before this"
        }
        text if text.starts_with("tabs disallowed") => "indent with blanks, not with tabs",
        text => text,
    };
    Fault::new(position(*error.marker()), Problem::Syntax(message.to_owned()))
}
