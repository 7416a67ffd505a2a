//! Fields that templates cannot change: labels, owner, and the first process.

use std::collections::BTreeMap;

use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::runner::PREFIX;
use container_hook_job::template::{MergedPod, SourceLocation};
use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, Pod, PodSpec, PreferredSchedulingTerm, Secret,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::agent::{self, RUNNER_ID};
use super::names;
use crate::own_pod::{OwnPod, WorkClaim};

/// Label with the name of the runner's pod; the controller of actions-runner-controller selects by it.
pub const RUNNER_LABEL: &str = "runner-pod";

/// Label of all objects that the hook creates, and its value.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "oci-hooks");

/// Returns the labels of a runner's objects.
pub fn labels(own: &OwnPod) -> BTreeMap<String, String> {
    let (name, value) = MANAGED_BY;
    BTreeMap::from([
        (RUNNER_LABEL.to_owned(), names::runner_label(&own.name)),
        (name.to_owned(), value.to_owned()),
    ])
}

/// Returns the owner reference of a runner's pods and secrets, which Kubernetes deletes with the owner: the pod of the
/// runner, or the pod of the job if the runner is unknown.
pub fn owner(own: &OwnPod, job: Option<&Pod>) -> Option<Vec<OwnerReference>> {
    let of_job = || {
        let metadata = &job?.metadata;
        Some((metadata.name.clone()?, metadata.uid.clone()?))
    };
    let (name, uid) = own.uid.clone().map(|uid| (own.name.clone(), uid)).or_else(of_job)?;
    Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name,
        uid,
        controller: Some(false),
        block_owner_deletion: Some(false),
    }])
}

/// Inputs for restoring the hook's own fields in a pod, after the template was merged.
pub struct PodFinish<'a> {
    pub merged: &'a MergedPod,
    /// Path of the template for messages; empty without a template.
    pub file: &'a str,
    pub own: &'a OwnPod,
    pub settings: &'a KubernetesSettings,
    /// Path of the runner's externals in the mounted image, if the agent links them.
    pub externals: Option<&'a str>,
    /// Labels and annotations before the merge.
    pub metadata: &'a ObjectMeta,
    /// The job's pod, for the pod of a container step; `None` for a job.
    pub job: Option<&'a Pod>,
    pub notes: Vec<String>,
}

impl PodFinish<'_> {
    /// Restores the fields that the hook owns; returns notes about the template.
    pub fn run(mut self, pod: &mut Pod, has_agent: bool) -> Vec<String> {
        self.metadata(pod);
        let spec = pod.spec.get_or_insert_default();
        if has_agent {
            self.command(spec);
        }
        self.defaults(spec);
        self.notes
    }

    /// Adds a note about a template field that has no effect, with its position.
    fn note(&mut self, pointer: &str, text: &str) {
        let position = self.merged.origin(pointer).and_then(|origin| origin.position());
        if let Some(position) = position {
            let place = SourceLocation { file: self.file.to_owned(), position: Some(position) };
            self.notes.push(format!("{place}: {text}"));
        }
    }

    fn is_from_template(&self, pointer: &str) -> bool {
        self.merged.origin(pointer).is_some_and(|origin| origin.position().is_some())
    }

    /// Restores the hook's labels and annotations, and sets the owner.
    fn metadata(&mut self, pod: &mut Pod) {
        let ours = self.metadata.labels.clone().unwrap_or_default();
        let labels = pod.metadata.labels.get_or_insert_default();
        let mut changed = Vec::new();
        for (name, value) in ours {
            if labels.insert(name.clone(), value.clone()).is_some_and(|before| before != value) {
                changed.push(("labels", name));
            }
        }
        let ours = self.metadata.annotations.clone().unwrap_or_default();
        let annotations = pod.metadata.annotations.get_or_insert_default();
        let foreign: Vec<String> = annotations
            .iter()
            .filter(|(key, value)| key.starts_with(PREFIX) && ours.get(*key) != Some(*value))
            .map(|(key, _)| key.clone())
            .collect();
        for key in foreign {
            annotations.remove(&key);
            changed.push(("annotations", key));
        }
        annotations.extend(ours);
        for (kind, name) in changed {
            let token = name.replace('~', "~0").replace('/', "~1");
            let kind_of_one = kind.trim_end_matches('s');
            let text =
                format!("the {kind_of_one} {name} has no effect: it is reserved for the hook");
            self.note(&format!("/metadata/{kind}/{token}"), &text);
        }
        pod.metadata.owner_references = owner(self.own, self.job);
    }

    /// Restores the agent as the first process of the container that runs steps. The agent runs the
    /// template's program.
    fn command(&mut self, spec: &mut PodSpec) {
        let Some(container) = spec.containers.first_mut() else { return };
        let (command, args) = ("/spec/containers/0/command", "/spec/containers/0/args");
        let command_is_said = self.is_from_template(command);
        let args_are_said = self.is_from_template(args);
        if !command_is_said && !args_are_said {
            return;
        }
        let said = container.command.take().filter(|_| command_is_said).unwrap_or_default();
        let mut program = said;
        if program.is_empty() {
            self.note(args, "the arguments of $job have no effect without a command");
        } else {
            let said = container.args.take().filter(|_| args_are_said).unwrap_or_default();
            program.extend(said);
            let text = "the command of $job runs in addition to the steps: the first process of the container \
                        is the hook's agent, which starts both";
            self.note(command, text);
        }
        let (command, mut args) = agent::command(self.settings, self.externals, &[]);
        // Unescaped: Kubernetes expands the template's variables.
        args.extend(program);
        (container.command, container.args) = (Some(command), Some(args));
    }

    /// Sets the defaults of fields that the template leaves out.
    fn defaults(&mut self, spec: &mut PodSpec) {
        spec.restart_policy.get_or_insert_with(|| "Never".to_owned());
        // Jobs get no access to the API server.
        spec.automount_service_account_token.get_or_insert(false);
        // Service links would add variables for every service of the namespace.
        spec.enable_service_links.get_or_insert(false);
        let deadline = self.settings.deadline.map(|deadline| deadline.0.as_secs().max(1));
        let deadline = deadline.and_then(|seconds| i64::try_from(seconds).ok());
        let said = spec.active_deadline_seconds;
        spec.active_deadline_seconds = said.into_iter().chain(deadline).min();
        let context = spec.security_context.get_or_insert_default();
        if context.fs_group.is_none() {
            context.fs_group = Some(self.own.fs_group.unwrap_or(RUNNER_ID));
            context.fs_group_change_policy.get_or_insert_with(|| "OnRootMismatch".to_owned());
        }
    }
}

/// Adds the pull secrets of the request's logins and of the runner's pod.
pub fn pull_secrets(spec: &mut PodSpec, own: &OwnPod, logins: &[Secret]) {
    let of_logins = logins.iter().filter_map(|secret| secret.metadata.name.clone());
    let known = spec.image_pull_secrets.take().unwrap_or_default();
    let known = known.into_iter().map(|secret| secret.name);
    let mut names: Vec<String> = Vec::new();
    for name in of_logins.chain(known).chain(own.pull_secrets.iter().cloned()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let references = names.into_iter().map(|name| LocalObjectReference { name });
    spec.image_pull_secrets = Some(references.collect::<Vec<_>>()).filter(|all| !all.is_empty());
}

/// Schedules the pod where the runner's claim can be mounted: on the runner's node, or preferably there if
/// the claim is `ReadWriteMany`.
pub fn place(spec: &mut PodSpec, own: &OwnPod, claim: &WorkClaim) {
    let Some(node) = &own.node else { return };
    let is_shared = claim.access_modes.iter().any(|mode| mode == "ReadWriteMany");
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.clone()]),
    };
    let affinity = spec.affinity.get_or_insert_with(Affinity::default);
    let affinity = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    if is_shared {
        let preference =
            NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
        let list =
            affinity.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
        list.push(PreferredSchedulingTerm { preference, weight: 1 });
        return;
    }
    let selector = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(|| NodeSelector { node_selector_terms: Vec::new() });
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(NodeSelectorTerm::default());
    }
    // The terms are alternatives, so each one needs the requirement.
    for term in &mut selector.node_selector_terms {
        term.match_fields.get_or_insert_default().push(requirement.clone());
    }
}
