//! The merge: a pod and a template make a pod.
//!
//! Labels and annotations are added one by one. Volumes, init containers and side-cars are appended.
//! An entry for a container of the hook (`$job`, `$redis`) appends its variables, mounts and ports
//! and overwrites whatever else it has. Every other field replaces the pod's as a whole.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;

use super::base::{Base, Target};
use super::deserialize::read;
use super::error::{Fault, TemplateError};
use super::merged::{Merged, Note, Remark};
use super::node::{Field, Node, Origin, Value};
use super::read::{Names, Template, check_mounts};
use crate::yaml::SourceLocation;

/// Labels by which the hook finds its pods again.
const RESERVED: [&str; 1] = ["runner-pod"];

/// The name of the entry for the container that the steps run in.
const JOB: &str = "job";

impl Template {
    /// Merges the template into the pod of a job.
    ///
    /// # Errors
    ///
    /// Fails if a volume, container or mount of the template is where the pod has one.
    pub fn merge_job(&self, base: Base) -> Result<Merged, TemplateError> {
        self.merge(base, Kind::Job)
    }

    /// Merges the template into the pod of a container step. It has no services, and entries for
    /// them are passed over.
    ///
    /// # Errors
    ///
    /// As [`Self::merge_job`].
    pub fn merge_step(&self, base: Base) -> Result<Merged, TemplateError> {
        self.merge(base, Kind::Step)
    }

    fn merge(&self, base: Base, kind: Kind) -> Result<Merged, TemplateError> {
        let document = base.document();
        let mut merge = Merge { template: self, kind, document, notes: Vec::new() };
        let pod = merge.run(&base.targets).map_err(|fault| fault.within(&self.file))?;
        let Merge { document, notes, .. } = merge;
        Ok(Merged { pod, notes, file: self.file.clone(), document })
    }
}

/// What the pod is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Job,
    Step,
}

struct Merge<'a> {
    template: &'a Template,
    kind: Kind,
    document: Node,
    notes: Vec<Note>,
}

impl<'a> Merge<'a> {
    fn run(&mut self, targets: &[Target]) -> Result<Pod, Fault> {
        for field in self.template.without_effect() {
            self.note(field.origin, Remark::Top { key: field.name.clone() });
        }
        if let Some(metadata) = self.template.document.get("metadata") {
            self.metadata(metadata);
        }
        if let Some(spec) = self.template.spec() {
            for field in spec.fields() {
                match field.name.as_str() {
                    "containers" | "volumes" | "initContainers" => {}
                    _ => self.spec_mut().set(field),
                }
            }
            self.append_named("a volume", spec, "volumes")?;
            self.containers(spec, targets)?;
        }
        read(&self.document, "")
    }

    fn spec_mut(&mut self) -> &mut Node {
        self.document.entry("spec", Origin::Default, Value::Map(Vec::new()))
    }

    fn metadata(&mut self, metadata: &Node) {
        for field in metadata.fields() {
            match field.name.as_str() {
                "labels" => self.add("label", field),
                "annotations" => self.add("annotation", field),
                name => self.note(field.origin, Remark::Metadata { field: name.to_owned() }),
            }
        }
    }

    /// Adds labels or annotations of the template to those of the pod.
    fn add(&mut self, what: &'static str, added: &Field) {
        if added.node.fields().is_empty() {
            return;
        }
        let empty = || Value::Map(Vec::new());
        let metadata = self.document.entry("metadata", Origin::Default, empty());
        let there = metadata.entry(&added.name, added.origin, empty()).fields_mut();
        let names = there.iter().enumerate().map(|(index, field)| (field.name.clone(), index));
        let index: HashMap<String, usize> = names.collect();
        let mut remarks = Vec::new();
        for field in added.node.fields() {
            let name = field.name.clone();
            let remark = match index.get(&name) {
                _ if what == "label" && RESERVED.contains(&name.as_str()) => {
                    Remark::Reserved { label: name }
                }
                Some(index) => {
                    there[*index] = field.clone();
                    Remark::Replaced { what, name }
                }
                None => {
                    there.push(field.clone());
                    continue;
                }
            };
            remarks.push((field.origin, remark));
        }
        remarks.into_iter().for_each(|(origin, remark)| self.note(origin, remark));
    }

    /// Appends to a list of the spec what has other names than all that is there.
    fn append_named(
        &mut self,
        what: &'static str,
        spec: &Node,
        list: &'static str,
    ) -> Result<(), Fault> {
        let mut names = Names::new(what);
        names.know(self.spec_mut(), list);
        names.extend(spec, list)?;
        append(self.spec_mut(), list, spec.list(list));
        Ok(())
    }

    fn containers(&mut self, spec: &'a Node, targets: &[Target]) -> Result<(), Fault> {
        let mut entries: Vec<Entry<'a>> = Vec::new();
        let mut side_cars = Vec::new();
        for (index, node) in spec.list("containers").iter().enumerate() {
            let name = node.text("name").unwrap_or_default();
            let path = format!("spec.containers[{index}]");
            match name.strip_prefix('$') {
                Some(name) => entries.push(Entry { name, node, path, is_used: false }),
                None => side_cars.push((name, node, path)),
            }
        }
        let mut containers = std::mem::take(
            self.spec_mut()
                .entry("containers", Origin::Default, Value::List(Vec::new()))
                .items_mut(),
        );
        let images = images(&containers, targets);
        // What an entry may be called to be for one of the containers.
        let mut known: HashSet<String> = HashSet::new();
        for (container, target) in containers.iter_mut().zip(targets) {
            let chosen = match target {
                Target::Job => entries.iter().position(|entry| entry.name == JOB),
                Target::Service { .. } if self.kind == Kind::Step => None,
                Target::Service { names } => {
                    let name = container.text("name").unwrap_or_default();
                    let made_up = [name, lone_image(container, &images)];
                    known.extend(made_up.map(str::to_owned));
                    choose(&entries, names, &made_up)
                }
            };
            if let Some(index) = chosen {
                entries[index].is_used = true;
                self.apply(container, &entries[index])?;
            }
        }
        self.unused(&entries, known);

        let mut names = Names::new("a container");
        *self.spec_mut().entry("containers", Origin::Default, Value::Null).items_mut() = containers;
        names.know(self.spec_mut(), "containers");
        names.know(self.spec_mut(), "initContainers");
        for (name, node, path) in side_cars {
            names.add(name, node, path)?;
            append(self.spec_mut(), "containers", std::slice::from_ref(node));
        }
        names.extend(spec, "initContainers")?;
        append(self.spec_mut(), "initContainers", spec.list("initContainers"));
        Ok(())
    }

    /// Changes a container of the hook.
    fn apply(&mut self, container: &mut Node, entry: &Entry<'_>) -> Result<(), Fault> {
        for field in entry.node.fields() {
            match field.name.as_str() {
                "name" => {}
                "image" => {
                    let container = format!("${}", entry.name);
                    self.note(field.origin, Remark::Image { container });
                }
                list @ ("env" | "volumeMounts" | "ports") => {
                    let before = container.list(list).len();
                    append(container, list, field.node.items());
                    if list == "volumeMounts" {
                        check_mounts(container.list(list), before, &entry.path)?;
                    }
                }
                _ => container.set(field),
            }
        }
        Ok(())
    }

    /// Says which entries were for nothing; those with a known name, because of another entry.
    fn unused(&mut self, entries: &[Entry<'_>], mut known: HashSet<String>) {
        known.remove("");
        for entry in entries {
            let is_first = known.insert(entry.name.to_owned());
            if entry.is_used {
                continue;
            }
            let name = format!("${}", entry.name);
            let remark = if !is_first {
                Remark::Again { name }
            } else if self.kind == Kind::Job || entry.name == JOB {
                Remark::NoContainer { name }
            } else {
                continue;
            };
            self.note(entry.node.origin, remark);
        }
    }

    fn note(&mut self, origin: Origin, remark: Remark) {
        let place =
            SourceLocation { file: self.template.file.clone(), position: origin.position() };
        self.notes.push(Note { place, remark });
    }
}

/// What the template has for a container of the hook.
struct Entry<'a> {
    /// Its name without the dollar sign.
    name: &'a str,
    node: &'a Node,
    path: String,
    is_used: bool,
}

/// Returns the first entry for one of a service's own names, else the first for a name that it has
/// of its image.
fn choose(entries: &[Entry<'_>], own: &[String], made_up: &[&str]) -> Option<usize> {
    // `$job` is the job's container, however a service is called; `$` is nobody's.
    let is_service = |entry: &Entry<'_>| entry.name != JOB && !entry.name.is_empty();
    let is_own = |entry: &Entry<'_>| own.iter().any(|name| name == entry.name);
    let is_made_up = |entry: &Entry<'_>| made_up.contains(&entry.name);
    let own = entries.iter().position(|entry| is_service(entry) && is_own(entry));
    own.or_else(|| entries.iter().position(|entry| is_service(entry) && is_made_up(entry)))
}

/// Counts the services of each image.
fn images(containers: &[Node], targets: &[Target]) -> HashMap<String, usize> {
    let mut images = HashMap::new();
    for (container, target) in containers.iter().zip(targets) {
        if matches!(target, Target::Service { .. }) {
            *images.entry(image(container).to_owned()).or_default() += 1;
        }
    }
    images
}

/// Returns the name of a container's image, unless other services have the same: then it would be
/// left to chance which of them is meant.
fn lone_image<'a>(container: &'a Node, images: &HashMap<String, usize>) -> &'a str {
    let image = image(container);
    if images.get(image) == Some(&1) { image } else { "" }
}

/// Returns the last part of a container's image, without tag and digest.
fn image(container: &Node) -> &str {
    let image = container.text("image").unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split([':', '@']).next().unwrap_or_default()
}

fn append(node: &mut Node, list: &str, items: &[Node]) {
    let Some(first) = items.first() else { return };
    let list = node.entry(list, first.origin, Value::List(Vec::new()));
    list.items_mut().extend_from_slice(items);
}
