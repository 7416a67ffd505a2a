//! Merges a template into a pod.
//!
//! Labels and annotations are added one by one. Volumes, init containers and sidecars are appended. An entry
//! for a container of the hook (`$job`, `$redis`) appends its variables, mounts and ports, and replaces all
//! other fields that it has. Every other field replaces the pod's as a whole.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;
use oci_hooks_yaml::SourceLocation;

use super::base::{BasePod, MergeTarget, base_name};
use super::deserialize::read;
use super::error::{PositionedProblem, TemplateError};
use super::merged::{MergeNote, MergeRemark, MergedPod};
use super::node::{PodEntry, PodNode, PodValue, ValueOrigin};
use super::read::{PodTemplate, UniqueNames, check_mounts, ineffective_keys};

/// Labels by which the hook finds its pods.
const RESERVED: [&str; 1] = ["runner-pod"];

/// Name of the template's entry for the job container, `$job`, without the `$`.
const JOB: &str = "job";

impl PodTemplate {
    /// Merges the template into the pod of a job.
    ///
    /// # Errors
    ///
    /// Fails if the pod already has a volume, container or mount of the template.
    pub fn merge_job(&self, base: BasePod) -> Result<MergedPod, TemplateError> {
        self.merge(base, PodPurpose::Job)
    }

    /// Merges the template into the pod of a container step, which has no services; entries for services are
    /// ignored.
    ///
    /// # Errors
    ///
    /// See [`Self::merge_job`].
    pub fn merge_step(&self, base: BasePod) -> Result<MergedPod, TemplateError> {
        self.merge(base, PodPurpose::Step)
    }

    fn merge(&self, base: BasePod, kind: PodPurpose) -> Result<MergedPod, TemplateError> {
        let document = base.document();
        let mut merge = Merge { template: self, kind, document, notes: Vec::new() };
        let pod =
            merge.run(&base.targets).map_err(|fault| fault.into_template_error(&self.file))?;
        let Merge { document, notes, .. } = merge;
        Ok(MergedPod { pod, notes, file: self.file.clone(), document })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodPurpose {
    Job,
    Step,
}

struct Merge<'a> {
    template: &'a PodTemplate,
    kind: PodPurpose,
    document: PodNode,
    notes: Vec<MergeNote>,
}

impl<'a> Merge<'a> {
    fn run(&mut self, targets: &[MergeTarget]) -> Result<Pod, PositionedProblem> {
        for field in ineffective_keys(&self.template.document) {
            self.note(field.origin, MergeRemark::Top { key: field.name.clone() });
        }
        if let Some(metadata) = self.template.document.get("metadata") {
            self.metadata(metadata);
        }
        if let Some(spec) = self.template.document.get("spec") {
            for field in spec.fields() {
                match field.name.as_str() {
                    "containers" | "volumes" | "initContainers" => {}
                    _ => self.spec_mut().set(field),
                }
            }
            self.append_named("volume", spec, "volumes")?;
            self.containers(spec, targets)?;
        }
        read(&self.document, "")
    }

    fn spec_mut(&mut self) -> &mut PodNode {
        self.document.entry("spec", ValueOrigin::Default, PodValue::Map(Vec::new()))
    }

    fn metadata(&mut self, metadata: &PodNode) {
        for field in metadata.fields() {
            match field.name.as_str() {
                "labels" => self.add("label", field),
                "annotations" => self.add("annotation", field),
                name => self.note(field.origin, MergeRemark::Metadata { field: name.to_owned() }),
            }
        }
    }

    /// Adds labels or annotations of the template to the pod.
    fn add(&mut self, what: &'static str, added: &PodEntry) {
        if added.node.fields().is_empty() {
            return;
        }
        let empty = || PodValue::Map(Vec::new());
        let metadata = self.document.entry("metadata", ValueOrigin::Default, empty());
        let there = metadata.entry(&added.name, added.origin, empty()).fields_mut();
        let names = there.iter().enumerate().map(|(index, field)| (field.name.clone(), index));
        let index: HashMap<String, usize> = names.collect();
        let mut remarks = Vec::new();
        for field in added.node.fields() {
            let name = field.name.clone();
            let remark = match index.get(&name) {
                _ if what == "label" && RESERVED.contains(&name.as_str()) => {
                    MergeRemark::Reserved { label: name }
                }
                Some(index) => {
                    there[*index] = field.clone();
                    MergeRemark::Replaced { what, name }
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

    /// Appends the template's elements to a list of the spec. Fails if a name is already in the list.
    fn append_named(
        &mut self,
        what: &'static str,
        spec: &PodNode,
        list: &'static str,
    ) -> Result<(), PositionedProblem> {
        let mut names = UniqueNames::new(what);
        names.add_names(self.spec_mut(), list);
        names.extend(spec, list)?;
        append(self.spec_mut(), list, spec.list(list));
        Ok(())
    }

    fn containers(
        &mut self,
        spec: &'a PodNode,
        targets: &[MergeTarget],
    ) -> Result<(), PositionedProblem> {
        let mut entries: Vec<TemplateEntry<'a>> = Vec::new();
        let mut side_cars = Vec::new();
        for (index, node) in spec.list("containers").iter().enumerate() {
            let name = node.text("name").unwrap_or_default();
            let path = format!("spec.containers[{index}]");
            match name.strip_prefix('$') {
                Some(name) => entries.push(TemplateEntry { name, node, path, is_used: false }),
                None => side_cars.push((name, node, path)),
            }
        }
        let mut containers = std::mem::take(
            self.spec_mut()
                .entry("containers", ValueOrigin::Default, PodValue::List(Vec::new()))
                .items_mut(),
        );
        let services = containers.iter().zip(targets);
        let services = services.filter(|(_, target)| matches!(target, MergeTarget::Service { .. }));
        let images: Vec<_> = services.map(|(service, _)| image(service).to_owned()).collect();
        // Names by which entries can refer to services.
        let mut known: HashSet<String> = HashSet::new();
        for (container, target) in containers.iter_mut().zip(targets) {
            let chosen = match target {
                MergeTarget::Job => entries.iter().position(|entry| entry.name == JOB),
                MergeTarget::Service { .. } if self.kind == PodPurpose::Step => None,
                MergeTarget::Service { names } => {
                    let name = container.text("name").unwrap_or_default();
                    let image = image(container);
                    let is_unique = images.iter().filter(|other| *other == image).count() == 1;
                    let made_up = [name, if is_unique { image } else { "" }];
                    known.extend(made_up.map(str::to_owned));
                    choose(&entries, names, &made_up)
                }
            };
            if let Some(index) = chosen {
                entries[index].is_used = true;
                self.apply(container, &entries[index])?;
            }
        }
        self.note_unused(&entries, known);

        let mut names = UniqueNames::new("container");
        *self.spec_mut().entry("containers", ValueOrigin::Default, PodValue::Null).items_mut() =
            containers;
        names.add_names(self.spec_mut(), "containers");
        names.add_names(self.spec_mut(), "initContainers");
        for (name, node, path) in side_cars {
            names.add(name, node, path)?;
            append(self.spec_mut(), "containers", std::slice::from_ref(node));
        }
        names.extend(spec, "initContainers")?;
        append(self.spec_mut(), "initContainers", spec.list("initContainers"));
        Ok(())
    }

    /// Applies an entry to a container of the hook.
    fn apply(
        &mut self,
        container: &mut PodNode,
        entry: &TemplateEntry<'_>,
    ) -> Result<(), PositionedProblem> {
        for field in entry.node.fields() {
            match field.name.as_str() {
                "name" => {}
                "image" => {
                    let container = format!("${}", entry.name);
                    self.note(field.origin, MergeRemark::Image { container });
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

    /// Notes the unused entries. An entry with a known name is unused because another entry was used.
    fn note_unused(&mut self, entries: &[TemplateEntry<'_>], mut known: HashSet<String>) {
        known.remove("");
        for entry in entries {
            let is_first = known.insert(entry.name.to_owned());
            if entry.is_used {
                continue;
            }
            let name = format!("${}", entry.name);
            let remark = if !is_first {
                MergeRemark::Again { name }
            } else if self.kind == PodPurpose::Job || entry.name == JOB {
                MergeRemark::NoContainer { name }
            } else {
                continue;
            };
            self.note(entry.node.origin, remark);
        }
    }

    fn note(&mut self, origin: ValueOrigin, remark: MergeRemark) {
        let place =
            SourceLocation { file: self.template.file.clone(), position: origin.position() };
        self.notes.push(MergeNote { place, remark });
    }
}

/// A template's entry for a container of the hook.
struct TemplateEntry<'a> {
    /// Name without the dollar sign.
    name: &'a str,
    node: &'a PodNode,
    path: String,
    is_used: bool,
}

/// Returns the first entry for one of a service's own names, else the first entry for a name derived from its
/// image.
fn choose(entries: &[TemplateEntry<'_>], own: &[String], made_up: &[&str]) -> Option<usize> {
    // `$job` is always the job container, even if a service has that name; `$` is no container.
    let is_service = |entry: &TemplateEntry<'_>| entry.name != JOB && !entry.name.is_empty();
    let is_own = |entry: &TemplateEntry<'_>| own.iter().any(|name| name == entry.name);
    let is_made_up = |entry: &TemplateEntry<'_>| made_up.contains(&entry.name);
    let own = entries.iter().position(|entry| is_service(entry) && is_own(entry));
    own.or_else(|| entries.iter().position(|entry| is_service(entry) && is_made_up(entry)))
}

fn image(container: &PodNode) -> &str {
    base_name(container.text("image").unwrap_or_default())
}

fn append(node: &mut PodNode, list: &str, items: &[PodNode]) {
    let Some(first) = items.first() else { return };
    let list = node.entry(list, first.origin, PodValue::List(Vec::new()));
    list.items_mut().extend_from_slice(items);
}
