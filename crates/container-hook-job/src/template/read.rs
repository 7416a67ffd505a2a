//! Reads a template, and checks it as far as possible without a pod.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_files::spelling::closest_name;
use oci_hooks_yaml::{TextPosition, YamlDialect, YamlDocuments};
use serde::{Deserialize, Serialize};

use super::deserialize::read;
use super::error::{PositionedProblem, TemplateError, TemplateProblem};
use super::node::{PodEntry, PodNode, PodValue, ValueOrigin};

/// Maximum size of a template, the same as of a pod in the API server of Kubernetes.
pub const MAX_BYTES: u64 = 1 << 20;

/// Top-level keys of a template. `apiVersion` and `kind` are accepted, without effect, because templates look
/// like pods.
const FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// A pod template that can be merged into any pod.
#[derive(Clone, Debug)]
pub struct PodTemplate {
    pub(super) file: String,
    pub(super) document: PodNode,
}

impl Default for PodTemplate {
    /// Returns the template that changes nothing.
    fn default() -> Self {
        let document = PodNode { origin: ValueOrigin::Default, value: PodValue::Map(Vec::new()) };
        PodTemplate { file: "template".to_owned(), document }
    }
}

impl PodTemplate {
    /// Reads a template from a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, is larger than [`MAX_BYTES`] or is not a template.
    pub fn read(path: &Path) -> Result<Self, TemplateError> {
        let (file, text) = read_text(path)?;
        PodTemplate::parse(&file, &text)
    }

    /// Reads a template from its text; `file` is its name in messages.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a template: see [`TemplateProblem`].
    pub fn parse(file: &str, text: &str) -> Result<Self, TemplateError> {
        let document = read_document(text).map_err(|fault| fault.into_template_error(file))?;
        check(&document).map_err(|fault| fault.into_template_error(file))?;
        Ok(PodTemplate { file: file.to_owned(), document })
    }
}

/// Returns the top-level keys without effect, except those that begin with `x-`, which only hold anchors.
pub fn ineffective_keys(document: &PodNode) -> impl Iterator<Item = &PodEntry> {
    let is_known = |name: &str| FIELDS.contains(&name) || name.starts_with("x-");
    document.fields().iter().filter(move |field| !is_known(&field.name))
}

/// Returns the name of a file for messages, and its text.
pub fn read_text(path: &Path) -> Result<(String, String), TemplateError> {
    let file = path.display().to_string();
    match String::from_utf8(read_bounded(path, MAX_BYTES)?) {
        Ok(text) => Ok((file, text)),
        Err(error) => {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let before = String::from_utf8_lossy(before);
            let (line, column) = (before.matches('\n').count() + 1, before.chars().rev());
            let column = column.take_while(|c| *c != '\n').count() + 1;
            Err(PositionedProblem::new(TextPosition { line, column }, TemplateProblem::NotUtf8)
                .into_template_error(&file))
        }
    }
}

/// Reads the only document of a text.
pub fn read_document(text: &str) -> Result<PodNode, PositionedProblem> {
    // Kubernetes accepts keys that are numbers: `nodeSelector: {1: x}`.
    let mut documents = YamlDocuments::new(text, YamlDialect::Core);
    let document =
        documents.next().ok_or(PositionedProblem::new(None, TemplateProblem::Empty))??;
    match documents.next() {
        Some(Ok(second)) => Err(PositionedProblem::new(second.start, TemplateProblem::Documents)),
        Some(Err(error)) => Err(error.into()),
        None => Ok(document.root.with_origins(|source| ValueOrigin::Template(source.position))),
    }
}

fn check(document: &PodNode) -> Result<(), PositionedProblem> {
    if !matches!(document.value, PodValue::Map(_)) {
        let problem = TemplateProblem::Type {
            path: "a template".to_owned(),
            expected: "a mapping with `metadata` or `spec`",
            found: document.value.kind(),
            quote: false,
        };
        return Err(PositionedProblem::new(document.origin.position(), problem));
    }
    check_top(document)?;
    if let Some(metadata) = document.get("metadata") {
        read::<ObjectMeta>(metadata, "metadata")?;
    }
    let Some(spec) = document.get("spec") else { return Ok(()) };
    read::<PodSpec>(spec, "spec")?;
    check_containers(spec)?;
    UniqueNames::new("volume").extend(spec, "volumes")
}

/// Rejects a top-level key that looks like a misspelling, because its content would have no effect. Other
/// keys are ignored, as in the Kubernetes hook.
fn check_top(document: &PodNode) -> Result<(), PositionedProblem> {
    if let Some((position, place)) = wrapped_template(document) {
        return Err(PositionedProblem::new(position, TemplateProblem::Wrapped { place }));
    }
    let slip = ineffective_keys(document)
        .find_map(|field| Some((field, closest_name(&field.name, FIELDS)?)));
    let Some((field, meant)) = slip else { return Ok(()) };
    let (path, name) = ("a template".to_owned(), field.name.clone());
    let help = format!("did you mean `{meant}`?");
    Err(PositionedProblem::new(
        field.origin.position(),
        TemplateProblem::UnknownField { path, name, help },
    ))
}

/// Returns the place of the template in an object of Kubernetes that contains it: a ConfigMap, a Secret or a
/// PodTemplate.
fn wrapped_template(document: &PodNode) -> Option<(Option<TextPosition>, String)> {
    let find = |name: &str| document.fields().iter().find(|field| field.name == name);
    if let Some(field) = find("template")
        && (field.node.get("spec").is_some() || field.node.get("metadata").is_some())
    {
        return Some((field.origin.position(), "the content of `template`".to_owned()));
    }
    let kind = document.text("kind").filter(|kind| ["ConfigMap", "Secret"].contains(kind))?;
    let field = ["data", "stringData", "binaryData"].into_iter().find_map(find)?;
    let keys: Vec<_> = field.node.fields().iter().map(|key| format!("`{}`", key.name)).collect();
    Some((
        field.origin.position(),
        format!("the text of a key of this {kind}: {}", keys.join(", ")),
    ))
}

/// Checks rules for containers that their type does not express.
fn check_containers(spec: &PodNode) -> Result<(), PositionedProblem> {
    let mut names = UniqueNames::new("container");
    for list in ["containers", "initContainers"] {
        for (index, container) in spec.list(list).iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            let missing = |field| {
                let problem = TemplateProblem::Missing { path: path.clone(), field };
                Err(PositionedProblem::new(container.origin.position(), problem))
            };
            check_mounts(container.list("volumeMounts"), 0, &path)?;
            match container.text("name") {
                None | Some("") => return missing("name"),
                // Several entries for a container of the hook are allowed; only the first counts.
                Some(name) if list == "containers" && name.starts_with('$') => {}
                Some(_) if container.text("image").unwrap_or_default().is_empty() => {
                    return missing("image");
                }
                Some(name) => names.add(name, container, path)?,
            }
        }
    }
    Ok(())
}

/// Rejects a mount at index `first_new` or later if an earlier mount of the container has its path.
pub fn check_mounts(
    mounts: &[PodNode],
    first_new: usize,
    path: &str,
) -> Result<(), PositionedProblem> {
    let mut seen: HashMap<&str, Option<TextPosition>> = HashMap::new();
    for (index, mount) in mounts.iter().enumerate() {
        let Some(mount_path) = mount.text("mountPath") else { continue };
        let at = mount_path.trim_end_matches('/');
        let first = seen.insert(at, mount.origin.position());
        if let Some(first) = first.filter(|_| index >= first_new) {
            let problem = TemplateProblem::DuplicateMount {
                path: format!("{path}.volumeMounts"),
                mount_path: mount_path.to_owned(),
                first,
            };
            return Err(PositionedProblem::new(mount.origin.position(), problem));
        }
    }
    Ok(())
}

/// A set of names that must be unique.
pub struct UniqueNames {
    what: &'static str,
    seen: HashMap<String, Option<TextPosition>>,
}

impl UniqueNames {
    pub(super) fn new(what: &'static str) -> Self {
        UniqueNames { what, seen: HashMap::new() }
    }

    /// Adds the names of a list's elements without checking for duplicates.
    pub fn add_names(&mut self, spec: &PodNode, list: &str) {
        let nodes = spec.list(list).iter();
        let names =
            nodes.filter_map(|node| Some((node.text("name")?.to_owned(), node.origin.position())));
        self.seen.extend(names);
    }

    /// Adds the names of a list's elements. Fails if a name is missing or already in the set.
    pub fn extend(&mut self, spec: &PodNode, list: &str) -> Result<(), PositionedProblem> {
        for (index, node) in spec.list(list).iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            match node.text("name") {
                None | Some("") => {
                    let problem = TemplateProblem::Missing { path, field: "name" };
                    return Err(PositionedProblem::new(node.origin.position(), problem));
                }
                Some(name) => self.add(name, node, path)?,
            }
        }
        Ok(())
    }

    /// Adds a name. Fails if it is already in the set.
    pub fn add(
        &mut self,
        name: &str,
        node: &PodNode,
        path: String,
    ) -> Result<(), PositionedProblem> {
        let Some(first) = self.seen.insert(name.to_owned(), node.origin.position()) else {
            return Ok(());
        };
        let problem =
            TemplateProblem::DuplicateName { path, what: self.what, name: name.to_owned(), first };
        Err(PositionedProblem::new(node.origin.position(), problem))
    }
}

/// The template, and the locations of the objects that it refers to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TemplateSettings {
    /// Template file; without one, the containers of jobs are not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Directory of config maps, each a directory with a file for each key.
    pub config_maps: PathBuf,
    /// Directory of secrets, each a directory with a file for each key.
    pub secrets: PathBuf,
    /// Directory of the profiles of `seccompProfile` with the type `Localhost`.
    pub seccomp_profiles: PathBuf,
    /// Runtime of each `runtimeClassName`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runtime_classes: BTreeMap<String, PathBuf>,
}

impl Default for TemplateSettings {
    fn default() -> Self {
        TemplateSettings {
            file: None,
            config_maps: "/etc/oci-hooks/config-maps".into(),
            secrets: "/etc/oci-hooks/secrets".into(),
            seccomp_profiles: "/etc/oci-hooks/seccomp".into(),
            runtime_classes: BTreeMap::new(),
        }
    }
}
