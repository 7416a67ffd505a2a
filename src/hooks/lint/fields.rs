//! What a hook file says, with the place of each value: the linter's own view of a file.
//!
//! The loader stops at the first fault. Here everything of the right type is kept and everything else
//! is noted, so that one fault does not hide the others.

use std::collections::{HashMap, HashSet};

use crate::hooks::Version;
use crate::hooks::schema::MASK_PROGRAM;
use crate::json::{Document, Kind, Member, Value, folds_to};

/// The fields of a hook file. Of a field that repeats, the last counts; objects merge.
#[derive(Debug)]
pub struct Fields<'d> {
    pub root: Value<'d>,
    /// The schema the file is meant to follow, which need not be the one it is read by.
    pub version: Version,
    pub version_member: Option<Member<'d>>,
    pub hook: Option<Member<'d>>,
    pub path: Option<Value<'d>>,
    pub args: Option<List<'d>>,
    pub env: Option<List<'d>>,
    pub timeout: Option<Value<'d>>,
    pub when: Option<Member<'d>>,
    pub always: Option<Member<'d>>,
    pub has_bind_mounts: Option<Member<'d>>,
    pub annotations: Vec<Annotation<'d>>,
    /// The list of 0.1.0, of which the values alone are patterns.
    pub annotation_list: Option<List<'d>>,
    pub commands: Option<List<'d>>,
    pub stages: Option<List<'d>>,
    /// Values of a wrong type, with what is expected.
    pub mismatches: Vec<(Value<'d>, &'static str)>,
    /// Pairs of 0.1.0 that say the same and are both set.
    pub both_set: Vec<(Value<'d>, &'static str, &'static str)>,
    /// Every object that has known names, with those names.
    pub objects: Vec<(Value<'d>, ObjectKind)>,
}

/// An array of strings in a hook file.
#[derive(Debug)]
pub struct List<'d> {
    pub member: Member<'d>,
    pub items: Vec<Value<'d>>,
}

/// One annotation condition of 1.0.0.
#[derive(Clone, Copy, Debug)]
pub struct Annotation<'d> {
    pub key: Value<'d>,
    pub value: Value<'d>,
}

/// Which object of a hook file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    Root,
    OldRoot,
    Hook,
    When,
}

impl ObjectKind {
    /// Returns the names of the fields.
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

    /// Finds the field that Go takes a key for.
    pub fn field(self, key: &str) -> Option<&'static str> {
        self.names().iter().find(|name| folds_to(key, name)).copied()
    }
}

impl<'d> Fields<'d> {
    /// Returns whether the file only hides a hook of its name, as `oci-hooks disable` makes them.
    pub fn is_mask(&self) -> bool {
        let always = self.always.and_then(|member| member.value.as_bool());
        let path = self.path.and_then(Value::as_str);
        always == Some(false) && path.as_deref() == Some(MASK_PROGRAM)
    }

    /// Reads a document, whatever is in it.
    pub fn read(document: &'d Document<'d>) -> Self {
        let root = document.root();
        let mut fields = Fields::empty(root);
        if root.kind() != Kind::Object {
            if !root.is_null() {
                fields.mismatches.push((root, "an object"));
            }
            return fields;
        }
        fields.find_version();
        if fields.version == Version::V1_0_0 {
            fields.object(root, ObjectKind::Root, Fields::root_field);
            fields.drop_replaced_annotations();
        } else {
            let mut old = OldLists::default();
            fields.object(root, ObjectKind::OldRoot, |fields, name, member| {
                fields.old_field(name, member, &mut old);
            });
            fields.merge_old(old);
        }
        fields
    }

    fn empty(root: Value<'d>) -> Self {
        Fields {
            root,
            version: Version::V0_1_0,
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

    /// Decides which schema the file is meant to follow: by its version if that is known, or else by
    /// what is in it.
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
            // Any hook that is an object makes the old reader reject the file.
            if folds_to(&key, "hook") && kind != Kind::Null && hook != Some(Kind::Object) {
                hook = Some(kind);
            }
            has_when |= folds_to(&key, "when") && kind == Kind::Object;
        }
        let looks_new = hook == Some(Kind::Object) || (hook.is_none() && has_when);
        if looks_new || text.is_some_and(|text| !matches!(&*text, "" | "0.1.0")) {
            self.version = Version::V1_0_0;
        }
    }

    /// Visits the known fields of an object.
    fn object(
        &mut self,
        value: Value<'d>,
        place: ObjectKind,
        mut field: impl FnMut(&mut Self, &'static str, Member<'d>),
    ) {
        match value.kind() {
            Kind::Object => {
                self.objects.push((value, place));
                for member in value.members() {
                    let key = member.key.as_str().unwrap_or_default();
                    if let Some(name) = place.field(&key) {
                        field(self, name, member);
                    }
                }
            }
            Kind::Null => {}
            _ => self.mismatches.push((value, "an object")),
        }
    }

    fn root_field(&mut self, name: &'static str, member: Member<'d>) {
        match name {
            "version" => self.string(member.value, |_, _| {}),
            "hook" => {
                self.hook = Some(member);
                self.object(member.value, ObjectKind::Hook, Fields::hook_field);
            }
            "when" => {
                self.when = Some(member);
                self.object(member.value, ObjectKind::When, Fields::when_field);
            }
            _ => self.list(member, |fields, list| fields.stages = list),
        }
    }

    fn hook_field(&mut self, name: &'static str, member: Member<'d>) {
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

    fn when_field(&mut self, name: &'static str, member: Member<'d>) {
        match name {
            "always" => self.bool(member, |fields, member| fields.always = member),
            "hasBindMounts" => self.bool(member, |fields, member| fields.has_bind_mounts = member),
            "commands" => self.list(member, |fields, list| fields.commands = list),
            _ => match member.value.kind() {
                Kind::Null => self.annotations.clear(),
                Kind::Object => {
                    for member in member.value.members() {
                        let (key, value) = (member.key, member.value);
                        match value.kind() {
                            Kind::String | Kind::Null => {
                                self.annotations.push(Annotation { key, value });
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

    fn old_field(&mut self, name: &'static str, member: Member<'d>, old: &mut OldLists<'d>) {
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
        self.stages = self.one_of("stage", old.stage, "stages", old.stages);
        self.commands = self.one_of("cmd", old.cmd, "cmds", old.cmds);
        self.annotation_list =
            self.one_of("annotation", old.annotation, "annotations", old.annotations);
    }

    fn one_of(
        &mut self,
        short_name: &'static str,
        short: Option<List<'d>>,
        long_name: &'static str,
        long: Option<List<'d>>,
    ) -> Option<List<'d>> {
        if let (Some(short), Some(_)) = (&short, &long) {
            self.both_set.push((short.member.key, short_name, long_name));
        }
        long.or(short)
    }

    fn string(&mut self, value: Value<'d>, set: impl FnOnce(&mut Self, Value<'d>)) {
        match value.kind() {
            Kind::String => set(self, value),
            Kind::Null => {}
            _ => self.mismatches.push((value, "a string")),
        }
    }

    fn bool(&mut self, member: Member<'d>, set: impl FnOnce(&mut Self, Option<Member<'d>>)) {
        match member.value.kind() {
            Kind::Bool => set(self, Some(member)),
            Kind::Null => set(self, None),
            _ => self.mismatches.push((member.value, "a boolean")),
        }
    }

    fn list(&mut self, member: Member<'d>, set: impl FnOnce(&mut Self, Option<List<'d>>)) {
        match member.value.kind() {
            Kind::Null => set(self, None),
            Kind::Array => {
                let (mut items, wrong): (Vec<_>, Vec<_>) =
                    member.value.elements().partition(|element| element.kind() == Kind::String);
                items.shrink_to_fit();
                let wrong = wrong.into_iter().filter(|element| !element.is_null());
                self.mismatches.extend(wrong.map(|element| (element, "a string")));
                set(self, Some(List { member, items }));
            }
            _ => self.mismatches.push((member.value, "an array of strings")),
        }
    }

    /// Returns the members that are conditions with a value that counts.
    pub fn conditions(&self) -> Vec<Value<'d>> {
        let mut conditions: Vec<_> =
            [self.always, self.has_bind_mounts].into_iter().flatten().map(|m| m.key).collect();
        conditions.extend(self.annotations.iter().map(|annotation| annotation.key));
        conditions.extend(self.annotation_list.iter().map(|list| list.member.key));
        let commands = self.commands.iter().filter(|list| list.member.value.elements().count() > 0);
        conditions.extend(commands.map(|list| list.member.key));
        conditions
    }
}

/// The lists of 0.1.0, in both spellings.
#[derive(Default)]
struct OldLists<'d> {
    stages: Option<List<'d>>,
    stage: Option<List<'d>>,
    cmds: Option<List<'d>>,
    cmd: Option<List<'d>>,
    annotations: Option<List<'d>>,
    annotation: Option<List<'d>>,
}

impl List<'_> {
    /// Returns the strings of the array, decoded.
    pub fn texts(&self) -> Vec<String> {
        self.items.iter().filter_map(|item| Some(item.as_str()?.into_owned())).collect()
    }
}
