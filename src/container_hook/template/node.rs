//! A pod as a tree of which every part knows where it came from.

use crate::yaml::Position;

/// A value of a pod or a template, with its origin.
pub type Node = crate::yaml::Node<Origin>;

/// A scalar, list or map with the origins of its parts.
pub type Value = crate::yaml::Value<Origin>;

/// A key and its value.
pub type Field = crate::yaml::Field<Origin>;

impl Node {
    /// Takes over a JSON document; `origin` says of each value, by its JSON pointer, whence it is.
    pub(super) fn from_json(
        json: serde_json::Value,
        pointer: &mut String,
        origin: &dyn Fn(&str) -> Origin,
    ) -> Node {
        let this = origin(pointer);
        let mut below = |name: &str, json| {
            let length = pointer.len();
            pointer.push('/');
            pointer.push_str(&escape(name));
            let node = Node::from_json(json, pointer, origin);
            pointer.truncate(length);
            node
        };
        let value = match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(flag) => Value::Bool(flag),
            serde_json::Value::Number(number) => Value::Number(number),
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Array(items) => {
                let items = items.into_iter().enumerate();
                Value::List(items.map(|(index, item)| below(&index.to_string(), item)).collect())
            }
            serde_json::Value::Object(members) => {
                let fields = members.into_iter().map(|(name, json)| {
                    let node = below(&name, json);
                    Field { name, origin: node.origin, node }
                });
                Value::Map(fields.collect())
            }
        };
        Node { origin: this, value }
    }

    /// Returns where in the template this is.
    pub(super) fn position(&self) -> Option<Position> {
        self.origin.position()
    }

    /// Returns the elements of a field's list.
    pub(super) fn list(&self, name: &str) -> &[Node] {
        self.get(name).map_or(&[], Node::items)
    }

    /// Returns the text of a field; none if it is something else.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Replaces a field whole; null removes it.
    pub(super) fn set(&mut self, field: &Field) {
        let fields = self.fields_mut();
        let found = fields.iter().position(|other| other.name == field.name);
        match found {
            Some(index) if field.node.is_null() => drop(fields.remove(index)),
            Some(index) => fields[index] = field.clone(),
            None if field.node.is_null() => {}
            None => fields.push(field.clone()),
        }
    }

    /// Returns the value of a field for changing; one that is absent or null becomes `empty`.
    pub(super) fn entry(&mut self, name: &str, origin: Origin, empty: Value) -> &mut Node {
        let fields = self.fields_mut();
        let index = fields.iter().position(|field| field.name == name).unwrap_or_else(|| {
            let node = Node { origin, value: Value::Null };
            fields.push(Field { name: name.to_owned(), origin, node });
            fields.len() - 1
        });
        let node = &mut fields[index].node;
        if node.is_null() {
            *node = Node { origin, value: empty };
        }
        node
    }

    /// Returns the fields for changing; what is no mapping becomes an empty one.
    pub(super) fn fields_mut(&mut self) -> &mut Vec<Field> {
        if !matches!(self.value, Value::Map(_)) {
            self.value = Value::Map(Vec::new());
        }
        match &mut self.value {
            Value::Map(fields) => fields,
            _ => unreachable!("it was made one"),
        }
    }

    /// Returns the elements for changing; what is no list becomes an empty one.
    pub(super) fn items_mut(&mut self) -> &mut Vec<Node> {
        if !matches!(self.value, Value::List(_)) {
            self.value = Value::List(Vec::new());
        }
        match &mut self.value {
            Value::List(items) => items,
            _ => unreachable!("it was made one"),
        }
    }

    /// Returns the value that a JSON pointer (RFC 6901) leads to.
    pub(super) fn pointer(&self, pointer: &str) -> Option<&Node> {
        let Some(rest) = pointer.strip_prefix('/') else { return Some(self) };
        rest.split('/').try_fold(self, |node, token| match &node.value {
            Value::List(items) => items.get(token.parse::<usize>().ok()?),
            Value::Map(fields) => {
                let name = token.replace("~1", "/").replace("~0", "~");
                fields.iter().find(|field| field.name == name).map(|field| &field.node)
            }
            _ => None,
        })
    }
}

/// Escapes a field's name for a JSON pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The hook makes it so, whatever the request.
    Default,
    Request,
    /// The pod that the caller gave.
    Given,
    Template(Position),
}

impl Origin {
    /// Returns the place in the template.
    pub fn position(self) -> Option<Position> {
        match self {
            Origin::Template(position) => Some(position),
            _ => None,
        }
    }
}
