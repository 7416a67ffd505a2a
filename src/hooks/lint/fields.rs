//! The fields of a hook file with their positions: the linter's own view of a file.
//!
//! The loader stops at the first error. The linter keeps all values of the right type and records
//! the others, so that one error does not hide the others.

use std::collections::{HashMap, HashSet};

use crate::hooks::SchemaVersion;
use crate::hooks::schema::MASK_PROGRAM;
use crate::json::{JsonDocument, JsonKind, JsonMember, JsonValue, folds_to};

/// The fields of a hook file. If a key is repeated, the last value counts; repeated objects are
/// merged.
#[derive(Debug)]
pub struct FileFields<'d> {
    pub root: JsonValue<'d>,
    /// The schema that the author most likely meant; consumers may read the file by the other one.
    pub version: SchemaVersion,
    /// The schema whose form the file has, whatever its version; `None` if it has no clear form.
    pub form: Option<SchemaVersion>,
    pub version_member: Option<JsonMember<'d>>,
    pub hook: Option<JsonMember<'d>>,
    pub path: Option<JsonValue<'d>>,
    pub args: Option<StringList<'d>>,
    pub env: Option<StringList<'d>>,
    pub timeout: Option<JsonValue<'d>>,
    pub when: Option<JsonMember<'d>>,
    pub always: Option<JsonMember<'d>>,
    pub has_bind_mounts: Option<JsonMember<'d>>,
    pub annotations: Vec<AnnotationCondition<'d>>,
    /// The annotation patterns of schema 0.1.0, which match only values.
    pub annotation_list: Option<StringList<'d>>,
    pub commands: Option<StringList<'d>>,
    pub stages: Option<StringList<'d>>,
    /// Values of the wrong type, with the expected type.
    pub mismatches: Vec<(JsonValue<'d>, &'static str)>,
    /// Fields of 0.1.0 that are set by both of their names: the key with the short name, then the
    /// short and the long name, such as `stage` and `stages`.
    pub both_set: Vec<(JsonValue<'d>, &'static str, &'static str)>,
    /// The file's root, `hook` and `when` objects, as often as they occur.
    pub objects: Vec<(JsonValue<'d>, ObjectKind)>,
}

/// An array of strings in a hook file.
#[derive(Debug)]
pub struct StringList<'d> {
    pub member: JsonMember<'d>,
    pub items: Vec<JsonValue<'d>>,
}

/// One annotation condition of 1.0.0.
#[derive(Clone, Copy, Debug)]
pub struct AnnotationCondition<'d> {
    pub key: JsonValue<'d>,
    pub value: JsonValue<'d>,
}

/// An object of a hook file; `OldRoot` is the root in schema 0.1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    Root,
    OldRoot,
    Hook,
    When,
}

impl ObjectKind {
    /// Returns the names of the object's fields.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            ObjectKind::Root => &["version", "hook", "when", "stages"],
            ObjectKind::OldRoot => &[
                "version",
                "hook",
                "arguments",
                "stages",
                "stage",
                "cmds",
                "cmd",
                "annotations",
                "annotation",
                "hasbindmounts",
            ],
            ObjectKind::Hook => &["path", "args", "env", "timeout"],
            ObjectKind::When => &["always", "annotations", "commands", "hasBindMounts"],
        }
    }

    /// Returns the field that Go decodes a key into, regardless of case; `None` for unknown keys.
    pub fn field(self, key: &str) -> Option<&'static str> {
        self.names().iter().find(|name| folds_to(key, name)).copied()
    }
}

impl<'d> FileFields<'d> {
    /// Returns whether the file only hides a hook of the same name, as files of `oci-hooks disable` do.
    pub fn is_mask(&self) -> bool {
        let always = self.always.and_then(|member| member.value.as_bool());
        let path = self.path.and_then(JsonValue::as_str);
        always == Some(false) && path.as_deref() == Some(MASK_PROGRAM)
    }

    /// Returns the expected types of the values within `outer` that have another type.
    pub fn mismatches_in(&self, outer: JsonValue<'_>) -> impl Iterator<Item = &'static str> {
        let outer = outer.span();
        self.mismatches.iter().filter_map(move |(value, expected)| {
            let inner = value.span();
            (outer.start <= inner.start && inner.end <= outer.end).then_some(*expected)
        })
    }

    /// Reads the fields of a document, even if values have the wrong type.
    pub fn read(document: &'d JsonDocument<'d>) -> Self {
        let root = document.root();
        let mut fields = FileFields::empty(root);
        if root.kind() != JsonKind::Object {
            if !root.is_null() {
                fields.mismatches.push((root, "an object"));
            }
            return fields;
        }
        fields.find_version();
        if fields.version == SchemaVersion::V1_0_0 {
            fields.object(root, ObjectKind::Root, FileFields::root_field);
            fields.drop_replaced_annotations();
        } else {
            let mut old = OldLists::default();
            fields.object(root, ObjectKind::OldRoot, |fields, name, member| {
                fields.set_old_field(name, member, &mut old);
            });
            fields.merge_old(old);
        }
        fields
    }

    fn empty(root: JsonValue<'d>) -> Self {
        FileFields {
            root,
            version: SchemaVersion::V0_1_0,
            form: None,
            version_member: None,
            hook: None,
            path: None,
            args: None,
            env: None,
            timeout: None,
            when: None,
            always: None,
            has_bind_mounts: None,
            annotations: Vec::new(),
            annotation_list: None,
            commands: None,
            stages: None,
            mismatches: Vec::new(),
            both_set: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Determines the schema that the author most likely meant. It is 1.0.0 if `hook` is an object,
    /// if there is a `when` object but no `hook`, or if `version` is neither empty nor 0.1.0; an
    /// unknown version does not count if the file has the form of 0.1.0.
    fn find_version(&mut self) {
        for member in self.root.members() {
            let key = member.key.as_str().unwrap_or_default();
            if folds_to(&key, "version") && !member.value.is_null() {
                self.version_member = Some(member);
            }
        }
        let text = self.version_member.and_then(|member| member.value.as_str());
        let mut hook = None;
        let mut has_when = false;
        for member in self.root.members() {
            let key = member.key.as_str().unwrap_or_default();
            let kind = member.value.kind();
            // If any `hook` is an object, the reader of 0.1.0 rejects the file.
            if folds_to(&key, "hook") && kind != JsonKind::Null && hook != Some(JsonKind::Object) {
                hook = Some(kind);
            }
            has_when |= folds_to(&key, "when") && kind == JsonKind::Object;
        }
        self.form = match hook {
            Some(JsonKind::Object) => Some(SchemaVersion::V1_0_0),
            Some(JsonKind::String) if !has_when => Some(SchemaVersion::V0_1_0),
            _ => None,
        };
        let looks_new = hook == Some(JsonKind::Object) || (hook.is_none() && has_when);
        let is_named_new = text.is_some_and(|text| match &*text {
            "" | "0.1.0" => false,
            "1.0.0" => true,
            _ => self.form != Some(SchemaVersion::V0_1_0),
        });
        if looks_new || is_named_new {
            self.version = SchemaVersion::V1_0_0;
        }
    }

    /// Visits the known fields of an object.
    fn object(
        &mut self,
        value: JsonValue<'d>,
        place: ObjectKind,
        mut field: impl FnMut(&mut Self, &'static str, JsonMember<'d>),
    ) {
        match value.kind() {
            JsonKind::Object => {
                self.objects.push((value, place));
                for member in value.members() {
                    let key = member.key.as_str().unwrap_or_default();
                    if let Some(name) = place.field(&key) {
                        field(self, name, member);
                    }
                }
            }
            JsonKind::Null => {}
            _ => self.mismatches.push((value, "an object")),
        }
    }

    fn root_field(&mut self, name: &'static str, member: JsonMember<'d>) {
        match name {
            "version" => self.string(member.value, |_, _| {}),
            "hook" => {
                self.hook = Some(member);
                self.object(member.value, ObjectKind::Hook, FileFields::hook_field);
            }
            "when" => {
                self.when = Some(member);
                self.object(member.value, ObjectKind::When, FileFields::set_when_field);
            }
            _ => self.list(member, |fields, list| fields.stages = list),
        }
    }

    fn hook_field(&mut self, name: &'static str, member: JsonMember<'d>) {
        let value = member.value;
        match name {
            "path" => self.string(value, |fields, value| fields.path = Some(value)),
            "args" => self.list(member, |fields, list| fields.args = list),
            "env" => self.list(member, |fields, list| fields.env = list),
            _ if value.is_null() => self.timeout = None,
            _ if value.as_i64().is_some() => self.timeout = Some(value),
            _ => self.mismatches.push((value, "an integer")),
        }
    }

    fn set_when_field(&mut self, name: &'static str, member: JsonMember<'d>) {
        match name {
            "always" => self.bool(member, |fields, member| fields.always = member),
            "hasBindMounts" => self.bool(member, |fields, member| fields.has_bind_mounts = member),
            "commands" => self.list(member, |fields, list| fields.commands = list),
            _ => match member.value.kind() {
                JsonKind::Null => self.annotations.clear(),
                JsonKind::Object => {
                    for member in member.value.members() {
                        let (key, value) = (member.key, member.value);
                        match value.kind() {
                            JsonKind::String | JsonKind::Null => {
                                self.annotations.push(AnnotationCondition { key, value });
                            }
                            _ => self.mismatches.push((value, "a string")),
                        }
                    }
                }
                _ => self.mismatches.push((member.value, "an object of strings")),
            },
        }
    }

    /// Keeps the last of the annotations with the same key, as Go's map does.
    fn drop_replaced_annotations(&mut self) {
        let last: HashMap<_, _> = self
            .annotations
            .iter()
            .enumerate()
            .map(|(at, annotation)| (annotation.key.as_str(), at))
            .collect();
        let kept: HashSet<_> = last.into_values().collect();
        let mut at = 0..;
        self.annotations.retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
    }

    fn set_old_field(
        &mut self,
        name: &'static str,
        member: JsonMember<'d>,
        old: &mut OldLists<'d>,
    ) {
        match name {
            "version" => self.string(member.value, |_, _| {}),
            "hook" => {
                self.hook = Some(member);
                if member.value.is_null() {
                    self.path = None;
                }
                self.string(member.value, |fields, value| fields.path = Some(value));
            }
            "hasbindmounts" => self.bool(member, |fields, member| fields.has_bind_mounts = member),
            "arguments" => self.list(member, |fields, list| fields.args = list),
            _ => self.list(member, |_, list| {
                *match name {
                    "stages" => &mut old.stages,
                    "stage" => &mut old.stage,
                    "cmds" => &mut old.cmds,
                    "cmd" => &mut old.cmd,
                    "annotations" => &mut old.annotations,
                    _ => &mut old.annotation,
                } = list;
            }),
        }
    }

    fn merge_old(&mut self, old: OldLists<'d>) {
        self.stages = self.choose_spelling("stage", old.stage, "stages", old.stages);
        self.commands = self.choose_spelling("cmd", old.cmd, "cmds", old.cmds);
        self.annotation_list =
            self.choose_spelling("annotation", old.annotation, "annotations", old.annotations);
    }

    fn choose_spelling(
        &mut self,
        short_name: &'static str,
        short: Option<StringList<'d>>,
        long_name: &'static str,
        long: Option<StringList<'d>>,
    ) -> Option<StringList<'d>> {
        if let (Some(short), Some(_)) = (&short, &long) {
            self.both_set.push((short.member.key, short_name, long_name));
        }
        long.or(short)
    }

    fn string(&mut self, value: JsonValue<'d>, set: impl FnOnce(&mut Self, JsonValue<'d>)) {
        match value.kind() {
            JsonKind::String => set(self, value),
            JsonKind::Null => {}
            _ => self.mismatches.push((value, "a string")),
        }
    }

    fn bool(
        &mut self,
        member: JsonMember<'d>,
        set: impl FnOnce(&mut Self, Option<JsonMember<'d>>),
    ) {
        match member.value.kind() {
            JsonKind::Bool => set(self, Some(member)),
            JsonKind::Null => set(self, None),
            _ => self.mismatches.push((member.value, "a boolean")),
        }
    }

    fn list(
        &mut self,
        member: JsonMember<'d>,
        set: impl FnOnce(&mut Self, Option<StringList<'d>>),
    ) {
        match member.value.kind() {
            JsonKind::Null => set(self, None),
            JsonKind::Array => {
                let (mut items, wrong): (Vec<_>, Vec<_>) =
                    member.value.elements().partition(|element| element.kind() == JsonKind::String);
                items.shrink_to_fit();
                let wrong = wrong.into_iter().filter(|element| !element.is_null());
                self.mismatches.extend(wrong.map(|element| (element, "a string")));
                set(self, Some(StringList { member, items }));
            }
            _ => self.mismatches.push((member.value, "an array of strings")),
        }
    }

    /// Returns the keys of all conditions. An empty list of commands is not a condition.
    pub fn conditions(&self) -> Vec<JsonValue<'d>> {
        let mut conditions: Vec<_> =
            [self.always, self.has_bind_mounts].into_iter().flatten().map(|m| m.key).collect();
        conditions.extend(self.annotations.iter().map(|annotation| annotation.key));
        conditions.extend(self.annotation_list.iter().map(|list| list.member.key));
        let commands = self.commands.iter().filter(|list| list.member.value.elements().count() > 0);
        conditions.extend(commands.map(|list| list.member.key));
        conditions
    }
}

/// The list properties of a 0.1.0 file. Each has two names, such as `stage` and `stages`.
#[derive(Default)]
struct OldLists<'d> {
    stages: Option<StringList<'d>>,
    stage: Option<StringList<'d>>,
    cmds: Option<StringList<'d>>,
    cmd: Option<StringList<'d>>,
    annotations: Option<StringList<'d>>,
    annotation: Option<StringList<'d>>,
}

impl StringList<'_> {
    /// Returns the strings of the array, decoded.
    pub fn texts(&self) -> Vec<String> {
        self.items.iter().filter_map(|item| Some(item.as_str()?.into_owned())).collect()
    }
}
