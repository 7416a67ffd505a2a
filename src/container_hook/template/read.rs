//! The template itself: read, and checked as far as it can be without the pod it is for.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::deserialize::read;
use super::error::{Fault, Problem, TemplateError};
use super::node::{Field, Node, Origin, Value};
use crate::sys::fs::read_bounded;
use crate::yaml::{Dialect, Documents, Position, hint};

/// The most bytes of a template. The API server of Kubernetes takes no more of a pod either.
pub const MAX_BYTES: u64 = 1 << 20;

/// What says something in a template. The first two are there because whoever writes one has a pod in
/// mind; they say nothing.
const FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// A pod template that can be merged into any pod.
#[derive(Clone, Debug)]
pub struct Template {
    pub(super) file: String,
    pub(super) document: Node,
}

impl Default for Template {
    /// Returns the template that changes nothing.
    fn default() -> Self {
        let document = Node { origin: Origin::Default, value: Value::Map(Vec::new()) };
        Template { file: "template".to_owned(), document }
    }
}

impl Template {
    /// Reads a template from a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, is larger than [`MAX_BYTES`] or holds no template.
    pub fn read(path: &Path) -> Result<Self, TemplateError> {
        let (file, text) = read_text(path)?;
        Template::parse(&file, &text)
    }

    /// Reads a template from its text; `file` is what messages call it.
    ///
    /// # Errors
    ///
    /// Fails if the text is no template: see [`Problem`].
    pub fn parse(file: &str, text: &str) -> Result<Self, TemplateError> {
        let document = read_document(text).map_err(|fault| fault.within(file))?;
        check(&document).map_err(|fault| fault.within(file))?;
        Ok(Template { file: file.to_owned(), document })
    }

    /// The keys at the top that say nothing to the hook, and not by their names either.
    pub(super) fn without_effect(&self) -> impl Iterator<Item = &Field> {
        let known = |name: &str| FIELDS.contains(&name) || is_holder(name);
        self.document.fields().iter().filter(move |field| !known(&field.name))
    }

    /// The spec's part of the template, if there is one.
    pub(super) fn spec(&self) -> Option<&Node> {
        self.document.get("spec")
    }
}

/// Returns what messages call a file, and its text.
pub fn read_text(path: &Path) -> Result<(String, String), TemplateError> {
    let file = path.display().to_string();
    match String::from_utf8(read_bounded(path, MAX_BYTES)?) {
        Ok(text) => Ok((file, text)),
        Err(error) => {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let before = String::from_utf8_lossy(before);
            let (line, column) = (before.matches('\n').count() + 1, before.chars().rev());
            let column = column.take_while(|c| *c != '\n').count() + 1;
            Err(Fault::new(Position { line, column }, Problem::NotUtf8).within(&file))
        }
    }
}

/// Reads the only document of a text.
pub fn read_document(text: &str) -> Result<Node, Fault> {
    // Kubernetes takes `nodeSelector: {1: x}`.
    let mut documents = Documents::new(text, Dialect::Core);
    let document = documents.next().ok_or(Fault::new(None, Problem::Empty))??;
    match documents.next() {
        Some(Ok(second)) => Err(Fault::new(second.start, Problem::Documents)),
        Some(Err(error)) => Err(error.into()),
        None => Ok(document.root.with_origins(|source| Origin::Template(source.position))),
    }
}

fn check(document: &Node) -> Result<(), Fault> {
    if !matches!(document.value, Value::Map(_)) {
        let problem = Problem::Type {
            path: "a template".to_owned(),
            expected: "a mapping with `metadata` or `spec`",
            found: document.value.kind(),
            quote: false,
        };
        return Err(Fault::new(document.position(), problem));
    }
    check_top(document)?;
    if let Some(metadata) = document.get("metadata") {
        read::<ObjectMeta>(metadata, "metadata")?;
    }
    let Some(spec) = document.get("spec") else { return Ok(()) };
    read::<PodSpec>(spec, "spec")?;
    check_containers(spec)?;
    Names::new("a volume").extend(spec, "volumes")
}

/// Refuses a key that looks like a slip: nothing of what it holds would be in force. Other keys are
/// passed over as the Kubernetes hook does.
fn check_top(document: &Node) -> Result<(), Fault> {
    let slip = document.fields().iter().filter(|field| !is_holder(&field.name)).find_map(|field| {
        let help = hint(&field.name, &FIELDS)?;
        (!FIELDS.contains(&field.name.as_str()) && !help.starts_with("expected"))
            .then_some((field, help))
    });
    let Some((field, help)) = slip else { return Ok(()) };
    let (path, name) = ("a template".to_owned(), field.name.clone());
    Err(Fault::new(field.origin.position(), Problem::UnknownField { path, name, help }))
}

/// Returns whether a key at the top says by its name that it only holds what others refer to.
fn is_holder(name: &str) -> bool {
    name.starts_with("x-")
}

/// Checks what the type of a container leaves open.
fn check_containers(spec: &Node) -> Result<(), Fault> {
    let mut names = Names::new("a container");
    for list in ["containers", "initContainers"] {
        for (index, container) in spec.list(list).iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            let missing = |field| {
                let problem = Problem::Missing { path: path.clone(), field };
                Err(Fault::new(container.position(), problem))
            };
            check_mounts(container.list("volumeMounts"), 0, &path)?;
            match container.text("name") {
                None | Some("") => return missing("name"),
                // Of these there may be several for one container; only the first counts.
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

/// Refuses mounts from `first_new` on that are where another of the container is.
pub fn check_mounts(mounts: &[Node], first_new: usize, path: &str) -> Result<(), Fault> {
    let mut seen: HashMap<&str, Option<Position>> = HashMap::new();
    for (index, mount) in mounts.iter().enumerate() {
        let Some(mount_path) = mount.text("mountPath") else { continue };
        let at = mount_path.trim_end_matches('/');
        let first = seen.insert(at, mount.position());
        if let Some(first) = first.filter(|_| index >= first_new) {
            let problem = Problem::DuplicateMount {
                path: format!("{path}.volumeMounts"),
                mount_path: mount_path.to_owned(),
                first,
            };
            return Err(Fault::new(mount.position(), problem));
        }
    }
    Ok(())
}

/// Names that must not occur twice.
pub struct Names {
    what: &'static str,
    seen: HashMap<String, Option<Position>>,
}

impl Names {
    pub(super) fn new(what: &'static str) -> Self {
        Names { what, seen: HashMap::new() }
    }

    /// Adds the names of a list's elements, whatever they are.
    pub fn know(&mut self, spec: &Node, list: &str) {
        let nodes = spec.list(list).iter();
        let names = nodes.filter_map(|node| Some((node.text("name")?.to_owned(), node.position())));
        self.seen.extend(names);
    }

    /// Adds the names of a list's elements, none of which may be there.
    pub fn extend(&mut self, spec: &Node, list: &str) -> Result<(), Fault> {
        for (index, node) in spec.list(list).iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            match node.text("name") {
                None | Some("") => {
                    let problem = Problem::Missing { path, field: "name" };
                    return Err(Fault::new(node.position(), problem));
                }
                Some(name) => self.add(name, node, path)?,
            }
        }
        Ok(())
    }

    /// Adds a name that may not be there.
    pub fn add(&mut self, name: &str, node: &Node, path: String) -> Result<(), Fault> {
        let Some(first) = self.seen.insert(name.to_owned(), node.position()) else { return Ok(()) };
        let problem =
            Problem::DuplicateName { path, what: self.what, name: name.to_owned(), first };
        Err(Fault::new(node.position(), problem))
    }
}

/// The template, and where what it names is found.
#[derive(Clone, Debug)]
pub struct TemplateSettings {
    /// The template; none leaves the containers of jobs as they are.
    pub file: Option<PathBuf>,
    /// Where config maps are, each a directory with a file for each key.
    pub config_maps: PathBuf,
    /// Where secrets are, in the same way.
    pub secrets: PathBuf,
    /// Where the profiles of `seccompProfile` with the type `Localhost` are.
    pub seccomp_profiles: PathBuf,
    /// The runtime of each `runtimeClassName`.
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
