//! The table of all fields of a pod, and their treatment.

/// A field of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodField {
    /// Path, such as `spec.containers.env`; `containers` stands for `initContainers` too. A field without fields
    /// below it in the table is treated as a whole.
    pub path: &'static str,
    pub treatment: FieldTreatment,
}

/// The treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldTreatment {
    /// Applied, with a remark for the manual; an empty remark means as on Kubernetes.
    Applied(&'static str),
    /// Without effect on a single host, for this reason; reported in the log.
    Ineffective(&'static str),
    /// Rejected with the whole template, for this reason.
    Rejected(&'static str),
}

use FieldTreatment::{Applied, Ineffective, Rejected};

const CLUSTER: &str = "there is no cluster";
const ONE_HOST: &str = "there is only one host";
const SCHEDULER: &str = "there is no scheduler";
const TERMINAL: &str = "containers have no terminal";
const HOOK_NAMES: &str = "the hook sets it";
const NOT_A_DISK: &str = "mount it on the host, and use `hostPath`";
const SELINUX: &str = "SELinux labels are not supported";
const WINDOWS: &str = "only for Windows containers";
const GROUP: &str = "the user's supplementary groups from the image are ignored";
const NO_CLAIMS: &str = "use an annotation, and a hooks.d hook that matches it and adds the device";
const EMPTY: &str = "";

/// All fields of a pod.
pub const FIELDS: &[PodField] = &[
    field("apiVersion", Ineffective("a template is a pod in any case")),
    field("kind", Ineffective("a template is a pod in any case")),
    field("status", Rejected("only Kubernetes sets it")),
    field("metadata", Applied(EMPTY)),
    field(
        "metadata.annotations",
        Applied("annotations of the bundle, for hooks; not com.github.actions.*"),
    ),
    field("metadata.labels", Applied("annotations com.github.actions.label.KEY")),
    field("metadata.name", Ineffective(HOOK_NAMES)),
    field("metadata.generateName", Ineffective(HOOK_NAMES)),
    field("metadata.namespace", Ineffective(CLUSTER)),
    field("metadata.creationTimestamp", Ineffective(CLUSTER)),
    field("metadata.deletionGracePeriodSeconds", Ineffective(CLUSTER)),
    field("metadata.deletionTimestamp", Ineffective(CLUSTER)),
    field("metadata.finalizers", Ineffective(CLUSTER)),
    field("metadata.generation", Ineffective(CLUSTER)),
    field("metadata.managedFields", Ineffective(CLUSTER)),
    field("metadata.ownerReferences", Ineffective(CLUSTER)),
    field("metadata.resourceVersion", Ineffective(CLUSTER)),
    field("metadata.selfLink", Ineffective(CLUSTER)),
    field("metadata.uid", Ineffective(CLUSTER)),
    field("spec", Applied(EMPTY)),
    field("spec.activeDeadlineSeconds", Rejected("set timeout-minutes of the job")),
    field("spec.affinity", Ineffective(ONE_HOST)),
    field("spec.automountServiceAccountToken", Ineffective(CLUSTER)),
    field("spec.dnsConfig", Applied("/etc/resolv.conf, after the host's entries")),
    field("spec.dnsPolicy", Applied("None omits the host's entries; all others keep them")),
    field("spec.enableServiceLinks", Ineffective(CLUSTER)),
    field("spec.ephemeralContainers", Rejected("use containers")),
    field("spec.hostAliases", Applied("/etc/hosts")),
    field("spec.hostIPC", Applied("if the policy allows the namespace ipc")),
    field("spec.hostNetwork", Applied("not for services; if the policy allows network")),
    field("spec.hostPID", Applied("if the policy allows the namespace pid")),
    field("spec.hostUsers", Applied("false needs a user namespace, which is the default")),
    field("spec.hostname", Applied("not for services, which keep their names")),
    field("spec.hostnameOverride", Rejected("use hostname")),
    field(
        "spec.imagePullSecrets",
        Applied("secrets with the key .dockerconfigjson, besides other logins"),
    ),
    field("spec.imagePullSecrets.name", Applied(EMPTY)),
    field("spec.nodeName", Ineffective(ONE_HOST)),
    field("spec.nodeSelector", Ineffective(ONE_HOST)),
    field("spec.os", Ineffective(WINDOWS)),
    field("spec.overhead", Ineffective(SCHEDULER)),
    field("spec.preemptionPolicy", Ineffective(SCHEDULER)),
    field("spec.priority", Ineffective(SCHEDULER)),
    field("spec.priorityClassName", Ineffective(SCHEDULER)),
    field("spec.readinessGates", Ineffective(CLUSTER)),
    field("spec.resourceClaims", Rejected(NO_CLAIMS)),
    field("spec.resources", Rejected("set the resources of each container")),
    field("spec.restartPolicy", Applied("only Never: containers are not restarted")),
    field("spec.runtimeClassName", Applied("a name of [template.runtime-classes]")),
    field("spec.schedulerName", Ineffective(SCHEDULER)),
    field("spec.schedulingGates", Ineffective(SCHEDULER)),
    field("spec.schedulingGroup", Ineffective(SCHEDULER)),
    field("spec.serviceAccount", Ineffective(CLUSTER)),
    field("spec.serviceAccountName", Ineffective(CLUSTER)),
    field("spec.setHostnameAsFQDN", Applied("the host name is hostname.subdomain")),
    field(
        "spec.shareProcessNamespace",
        Applied("of the job container, its init containers and its sidecars"),
    ),
    field("spec.subdomain", Applied("hostname.subdomain is in /etc/hosts")),
    field(
        "spec.terminationGracePeriodSeconds",
        Applied("if unset, containers are killed immediately"),
    ),
    field("spec.tolerations", Ineffective(ONE_HOST)),
    field("spec.topologySpreadConstraints", Ineffective(ONE_HOST)),
    // The pod's security.
    field("spec.securityContext", Applied("of all containers; fields of a container override it")),
    field("spec.securityContext.appArmorProfile", Applied("RuntimeDefault means no profile")),
    field(
        "spec.securityContext.fsGroup",
        Applied("group of emptyDir, configMap, secret, projected"),
    ),
    field("spec.securityContext.fsGroupChangePolicy", Ineffective("each job has new volumes")),
    field("spec.securityContext.runAsGroup", Applied(GROUP)),
    field("spec.securityContext.runAsNonRoot", Applied(EMPTY)),
    field("spec.securityContext.runAsUser", Applied(EMPTY)),
    field("spec.securityContext.seLinuxChangePolicy", Rejected(SELINUX)),
    field("spec.securityContext.seLinuxOptions", Rejected(SELINUX)),
    field("spec.securityContext.seccompProfile", Applied("as for a container")),
    field("spec.securityContext.supplementalGroups", Applied(EMPTY)),
    field("spec.securityContext.supplementalGroupsPolicy", Applied("only Merge")),
    field("spec.securityContext.sysctls", Applied("those of the container's own namespaces")),
    field("spec.securityContext.windowsOptions", Rejected(WINDOWS)),
    // Containers.
    field("spec.containers", Applied("sidecars, besides $job and $SERVICE")),
    field("spec.containers.args", Applied("not for container steps, which have their own")),
    field("spec.containers.command", Applied("not for container steps, which have their own")),
    field("spec.containers.env", Applied("after what the workflow sets; $(NAME) is replaced")),
    field("spec.containers.env.name", Applied(EMPTY)),
    field("spec.containers.env.value", Applied(EMPTY)),
    field("spec.containers.env.valueFrom", Applied(EMPTY)),
    field("spec.containers.env.valueFrom.configMapKeyRef", Applied("config-maps/NAME/KEY")),
    field(
        "spec.containers.env.valueFrom.fieldRef",
        Applied("metadata.*, status.podIP, .podIPs, .hostIP"),
    ),
    field("spec.containers.env.valueFrom.fileKeyRef", Rejected("use configMapKeyRef")),
    field("spec.containers.env.valueFrom.resourceFieldRef", Applied("of the same container")),
    field("spec.containers.env.valueFrom.secretKeyRef", Applied("secrets/NAME/KEY")),
    field("spec.containers.envFrom", Applied("all of config-maps/NAME or secrets/NAME")),
    field("spec.containers.image", Applied("of init containers and sidecars")),
    field("spec.containers.imagePullPolicy", Applied("else store.pull of the settings")),
    field("spec.containers.lifecycle", Applied(EMPTY)),
    field("spec.containers.lifecycle.postStart", Applied("not for container steps")),
    field("spec.containers.lifecycle.postStart.exec", Applied(EMPTY)),
    field("spec.containers.lifecycle.postStart.httpGet", Applied(EMPTY)),
    field("spec.containers.lifecycle.postStart.sleep", Applied(EMPTY)),
    field("spec.containers.lifecycle.postStart.tcpSocket", Rejected("use exec or httpGet")),
    field("spec.containers.lifecycle.preStop", Applied("at cleanup_job; not for container steps")),
    field("spec.containers.lifecycle.preStop.exec", Applied(EMPTY)),
    field("spec.containers.lifecycle.preStop.httpGet", Applied(EMPTY)),
    field("spec.containers.lifecycle.preStop.sleep", Applied(EMPTY)),
    field("spec.containers.lifecycle.preStop.tcpSocket", Rejected("use exec or httpGet")),
    field("spec.containers.lifecycle.stopSignal", Applied("else the image's, else SIGTERM")),
    field("spec.containers.livenessProbe", Applied("has to succeed before the job begins")),
    field("spec.containers.livenessProbe.exec", Applied(EMPTY)),
    field("spec.containers.livenessProbe.failureThreshold", Applied(EMPTY)),
    field("spec.containers.livenessProbe.grpc", Rejected("use exec or tcpSocket")),
    field("spec.containers.livenessProbe.httpGet", Applied("from the container's own network")),
    field("spec.containers.livenessProbe.initialDelaySeconds", Applied("failures do not count")),
    field("spec.containers.livenessProbe.periodSeconds", Applied("at most; the first come sooner")),
    field("spec.containers.livenessProbe.successThreshold", Applied(EMPTY)),
    field("spec.containers.livenessProbe.tcpSocket", Applied("from the container's own network")),
    field(
        "spec.containers.livenessProbe.terminationGracePeriodSeconds",
        Ineffective("containers are not restarted"),
    ),
    field("spec.containers.livenessProbe.timeoutSeconds", Applied(EMPTY)),
    field("spec.containers.readinessProbe", Applied("as livenessProbe")),
    field("spec.containers.startupProbe", Applied("as livenessProbe, before the others")),
    field("spec.containers.name", Applied("$job, $SERVICE, or a name")),
    field("spec.containers.ports", Applied("published if they have hostPort")),
    field("spec.containers.resizePolicy", Ineffective("containers are not resized")),
    field("spec.containers.resources", Applied(EMPTY)),
    field("spec.containers.resources.claims", Rejected(NO_CLAIMS)),
    field("spec.containers.resources.limits", Applied("cpu, memory; not ephemeral-storage")),
    field("spec.containers.resources.requests", Applied("weight of cpu, reservation of memory")),
    field("spec.containers.restartPolicy", Applied("Always makes an init container a sidecar")),
    field("spec.containers.restartPolicyRules", Rejected("containers are not restarted")),
    field("spec.containers.securityContext", Applied(EMPTY)),
    field(
        "spec.containers.securityContext.allowPrivilegeEscalation",
        Applied("if unset, the settings apply"),
    ),
    field(
        "spec.containers.securityContext.appArmorProfile",
        Applied("RuntimeDefault means no profile"),
    ),
    field("spec.containers.securityContext.capabilities", Applied(EMPTY)),
    field("spec.containers.securityContext.privileged", Applied("if the policy allows it")),
    field("spec.containers.securityContext.procMount", Applied(EMPTY)),
    field("spec.containers.securityContext.readOnlyRootFilesystem", Applied(EMPTY)),
    field("spec.containers.securityContext.runAsGroup", Applied(GROUP)),
    field("spec.containers.securityContext.runAsNonRoot", Applied(EMPTY)),
    field("spec.containers.securityContext.runAsUser", Applied(EMPTY)),
    field("spec.containers.securityContext.seLinuxOptions", Rejected(SELINUX)),
    field(
        "spec.containers.securityContext.seccompProfile",
        Applied(
            "Localhost is a file of seccomp-profiles, in the form of the runtime specification",
        ),
    ),
    field("spec.containers.securityContext.windowsOptions", Rejected(WINDOWS)),
    field("spec.containers.stdin", Ineffective(TERMINAL)),
    field("spec.containers.stdinOnce", Ineffective(TERMINAL)),
    field(
        "spec.containers.terminationMessagePath",
        Ineffective("the log of the job has the output"),
    ),
    field(
        "spec.containers.terminationMessagePolicy",
        Ineffective("the log of the job has the output"),
    ),
    field("spec.containers.tty", Ineffective(TERMINAL)),
    field("spec.containers.volumeDevices", Rejected("use a hooks.d hook that adds the device")),
    field("spec.containers.volumeMounts", Applied(EMPTY)),
    field("spec.containers.volumeMounts.mountPath", Applied("in place of a workflow's volume")),
    field(
        "spec.containers.volumeMounts.mountPropagation",
        Applied("Bidirectional only for hostPath, if the policy allows shared-mounts"),
    ),
    field(
        "spec.containers.volumeMounts.name",
        Applied("work, externals and github are the runner's own directories"),
    ),
    field("spec.containers.volumeMounts.readOnly", Applied(EMPTY)),
    field("spec.containers.volumeMounts.recursiveReadOnly", Applied("not Enabled")),
    field("spec.containers.volumeMounts.subPath", Applied("made if missing")),
    field("spec.containers.volumeMounts.subPathExpr", Applied(EMPTY)),
    field("spec.containers.workingDir", Applied("not for container steps")),
    // Volumes.
    field("spec.volumes", Applied(EMPTY)),
    field("spec.volumes.name", Applied(EMPTY)),
    field("spec.volumes.configMap", Applied("files of config-maps/NAME, read-only")),
    field("spec.volumes.downwardAPI", Applied("fields as in env, read-only")),
    field("spec.volumes.emptyDir", Applied("gone with the job, or with the container step")),
    field("spec.volumes.emptyDir.medium", Applied("Memory or none")),
    field("spec.volumes.emptyDir.sizeLimit", Applied("with medium Memory; rejected without")),
    field("spec.volumes.hostPath", Applied("not an engine's socket, unless the policy allows it")),
    field("spec.volumes.projected", Applied(EMPTY)),
    field("spec.volumes.projected.defaultMode", Applied(EMPTY)),
    field("spec.volumes.projected.sources", Applied(EMPTY)),
    field("spec.volumes.projected.sources.clusterTrustBundle", Rejected(CLUSTER)),
    field("spec.volumes.projected.sources.configMap", Applied(EMPTY)),
    field("spec.volumes.projected.sources.downwardAPI", Applied(EMPTY)),
    field("spec.volumes.projected.sources.podCertificate", Rejected(CLUSTER)),
    field("spec.volumes.projected.sources.secret", Applied(EMPTY)),
    field("spec.volumes.projected.sources.serviceAccountToken", Rejected(CLUSTER)),
    field("spec.volumes.secret", Applied("files of secrets/NAME, read-only")),
    field("spec.volumes.awsElasticBlockStore", Rejected(NOT_A_DISK)),
    field("spec.volumes.azureDisk", Rejected(NOT_A_DISK)),
    field("spec.volumes.azureFile", Rejected(NOT_A_DISK)),
    field("spec.volumes.cephfs", Rejected(NOT_A_DISK)),
    field("spec.volumes.cinder", Rejected(NOT_A_DISK)),
    field("spec.volumes.csi", Rejected(NOT_A_DISK)),
    field("spec.volumes.ephemeral", Rejected("use emptyDir")),
    field("spec.volumes.fc", Rejected(NOT_A_DISK)),
    field("spec.volumes.flexVolume", Rejected(NOT_A_DISK)),
    field("spec.volumes.flocker", Rejected(NOT_A_DISK)),
    field("spec.volumes.gcePersistentDisk", Rejected(NOT_A_DISK)),
    field("spec.volumes.gitRepo", Rejected("use an init container that clones it")),
    field("spec.volumes.glusterfs", Rejected(NOT_A_DISK)),
    field("spec.volumes.image", Rejected("use an init container that copies from the image")),
    field("spec.volumes.iscsi", Rejected(NOT_A_DISK)),
    field("spec.volumes.nfs", Rejected(NOT_A_DISK)),
    field("spec.volumes.persistentVolumeClaim", Rejected("use hostPath")),
    field("spec.volumes.photonPersistentDisk", Rejected(NOT_A_DISK)),
    field("spec.volumes.portworxVolume", Rejected(NOT_A_DISK)),
    field("spec.volumes.quobyte", Rejected(NOT_A_DISK)),
    field("spec.volumes.rbd", Rejected(NOT_A_DISK)),
    field("spec.volumes.scaleIO", Rejected(NOT_A_DISK)),
    field("spec.volumes.storageos", Rejected(NOT_A_DISK)),
    field("spec.volumes.vsphereVolume", Rejected(NOT_A_DISK)),
];

const fn field(path: &'static str, treatment: FieldTreatment) -> PodField {
    PodField { path, treatment }
}

/// Fields whose subfields are not in the table, each with the field whose subfields it shares.
const SAME: [(&str, &str); 3] = [
    ("spec.initContainers", "spec.containers"),
    ("spec.containers.readinessProbe", "spec.containers.livenessProbe"),
    ("spec.containers.startupProbe", "spec.containers.livenessProbe"),
];

impl PodField {
    /// Returns the field at a path; none if the supported versions of Kubernetes have no such field.
    pub fn find(path: &str) -> Option<&'static PodField> {
        if let Some(field) = FIELDS.iter().find(|field| field.path == path) {
            return Some(field);
        }
        let alias = SAME.iter().find_map(|(alias, same)| {
            Some(format!("{same}{}", path.strip_prefix(alias).filter(|rest| is_below(rest))?))
        });
        PodField::find(&alias?)
    }

    /// Returns whether [`FIELDS`] has fields below the field at `path`.
    pub(super) fn has_fields(path: &str) -> bool {
        let is_within =
            |other: &str| other.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        FIELDS.iter().any(|field| is_within(field.path))
            || SAME.iter().any(|(alias, same)| {
                path.strip_prefix(alias)
                    .filter(|rest| is_below(rest))
                    .is_some_and(|rest| PodField::has_fields(&format!("{same}{rest}")))
            })
    }
}

fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('.')
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::fmt;

    use k8s_openapi::api::core::v1::Pod;
    use serde::Deserialize;
    use serde::de::value::{Error, StrDeserializer};
    use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
    use serde::forward_to_deserialize_any;

    use super::*;

    #[test]
    fn table_contains_every_field_of_kubernetes() {
        let mut missing = Vec::new();
        let mut seen = BTreeSet::new();
        let mut left = vec![String::new()];
        while let Some(parent) = left.pop() {
            for name in fields_at(&parent) {
                let path =
                    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
                match PodField::find(&path) {
                    None => missing.push(path),
                    Some(field) => {
                        seen.insert(field.path);
                        if PodField::has_fields(&path) {
                            left.push(path);
                        }
                    }
                }
            }
        }
        assert!(missing.is_empty(), "not in the table: {missing:#?}");
        let unknown: Vec<_> = FIELDS.iter().filter(|field| !seen.contains(field.path)).collect();
        assert!(unknown.is_empty(), "not in Kubernetes: {unknown:#?}");
    }

    #[test]
    fn table_contains_each_field_once() {
        let paths: BTreeSet<_> = FIELDS.iter().map(|field| field.path).collect();
        assert_eq!(paths.len(), FIELDS.len());
    }

    /// Returns the names of the fields that a pod has at a path, as its Rust type requests them.
    fn fields_at(path: &str) -> Vec<&'static str> {
        let names = RefCell::new(Vec::new());
        let path: Vec<&str> = path.split('.').filter(|name| !name.is_empty()).collect();
        // Fails at the end of the path, after collecting the names.
        let _ = Pod::deserialize(Tracer { path: &path, names: &names });
        names.into_inner()
    }

    /// Deserializes only the fields on a path, and collects the field names of the last type.
    #[derive(Clone, Copy)]
    struct Tracer<'a> {
        path: &'a [&'a str],
        names: &'a RefCell<Vec<&'static str>>,
    }

    fn end() -> Error {
        serde::de::Error::custom("the end of the path")
    }

    impl<'de> Deserializer<'de> for Tracer<'_> {
        type Error = Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Error> {
            if self.path.is_empty() {
                self.names.borrow_mut().extend(fields);
                return Err(end());
            }
            visitor.visit_map(self)
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(end())
        }

        fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_some(self)
        }

        fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.visit_seq(self)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
            unit_struct newtype_struct tuple tuple_struct map enum identifier ignored_any
        }
    }

    impl<'de> MapAccess<'de> for Tracer<'_> {
        type Error = Error;

        fn next_key_seed<K: DeserializeSeed<'de>>(
            &mut self,
            seed: K,
        ) -> Result<Option<K::Value>, Error> {
            let name: &str = self.path[0];
            seed.deserialize(StrDeserializer::new(name)).map(Some)
        }

        fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
            self.path = &self.path[1..];
            seed.deserialize(*self)
        }
    }

    impl<'de> SeqAccess<'de> for Tracer<'_> {
        type Error = Error;

        fn next_element_seed<T: DeserializeSeed<'de>>(
            &mut self,
            seed: T,
        ) -> Result<Option<T::Value>, Error> {
            seed.deserialize(*self).map(Some)
        }
    }

    impl fmt::Debug for Tracer<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_list().entries(self.path).finish()
        }
    }
}
