//! The runner's own pod: it owns the pods of its jobs, which share its image, claim, group and pull secrets.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};

/// Name of the runner's container in the chart of actions-runner-controller.
const RUNNER: &str = "runner";

/// Identity of the runner's pod, from the environment of the runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Name of the runner's pod, from `ACTIONS_RUNNER_POD_NAME`.
    pub name: String,
    /// Name of the persistent volume claim with the work directory, from
    /// `ACTIONS_RUNNER_CLAIM_NAME`; `None` if that is not set.
    pub claim: Option<String>,
    /// Path of this program in the runner's image.
    pub program: PathBuf,
}

/// Facts about the runner's pod; only those of the environment if the pod is not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    pub name: String,
    /// `None` if the runner's pod is in another namespace than its jobs' pods, and so cannot own them.
    pub uid: Option<String>,
    /// Image of the runner's container; `None` if the pod is not found.
    pub image: Option<String>,
    pub node: Option<String>,
    /// Container runtime of the node, such as `containerd`; `None` until the kubelet has reported it.
    pub runtime: Option<String>,
    /// Persistent volume claim with the runner's work directory; `None` without one.
    pub claim: Option<WorkClaim>,
    /// `fsGroup` of the pod, the group that owns its volumes; `None` if the pod sets none.
    pub fs_group: Option<i64>,
    /// Names of the image pull secrets.
    pub pull_secrets: Vec<String>,
    /// Path of `container-hook` in the runner's image.
    pub program: PathBuf,
}

/// Persistent volume claim with the runner's work directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkClaim {
    pub name: String,
    /// Path of the work directory on the volume, without a leading slash; `None` for the volume's root.
    pub sub_path: Option<String>,
    /// Access modes such as `ReadWriteOnce`; empty if the pod does not name them.
    pub access_modes: Vec<String>,
}

impl OwnPod {
    /// Collects the facts from `pod`; `work` is the work directory of the runner.
    pub fn new(identity: &PodIdentity, pod: Option<&Pod>, work: &Path) -> Self {
        let spec = pod.and_then(|pod| pod.spec.as_ref());
        let runner = spec.and_then(|spec| {
            let named = spec.containers.iter().find(|one| one.name == RUNNER);
            named.or_else(|| spec.containers.first())
        });
        let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let found = runner.and_then(|runner| claim(&identity.name, runner, volumes, work));
        let claim = match (&identity.claim, found) {
            // The claim may be mounted where this container does not see it.
            (Some(name), found) => found.filter(|found| found.name == *name).or_else(|| {
                let name = name.clone();
                Some(WorkClaim { name, sub_path: None, access_modes: Vec::new() })
            }),
            (None, found) => found,
        };
        let secrets = spec.and_then(|spec| spec.image_pull_secrets.as_deref()).unwrap_or_default();
        OwnPod {
            name: identity.name.clone(),
            uid: pod.and_then(|pod| pod.metadata.uid.clone()),
            image: runner.and_then(|runner| runner.image.clone()),
            node: spec.and_then(|spec| spec.node_name.clone()),
            runtime: pod.and_then(runtime),
            claim,
            fs_group: spec.and_then(|spec| spec.security_context.as_ref()?.fs_group),
            pull_secrets: secrets.iter().map(|secret| secret.name.clone()).collect(),
            program: identity.program.clone(),
        }
    }
}

/// Returns the container runtime that runs the containers of a pod.
fn runtime(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let id = statuses.iter().find_map(|status| status.container_id.as_deref())?;
    id.split_once("://").map(|(runtime, _)| runtime.to_owned())
}

/// Returns the persistent volume claim that contains a directory of a container; `None` if the
/// directory is on no claim.
fn claim(
    pod: &str,
    container: &Container,
    volumes: &[Volume],
    directory: &Path,
) -> Option<WorkClaim> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let above = mounts.iter().filter(|mount| directory.starts_with(&mount.mount_path));
    let mount = above.max_by_key(|mount| Path::new(&mount.mount_path).components().count())?;
    let volume = volumes.iter().find(|volume| volume.name == mount.name)?;
    let (name, access_modes) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => (claim.claim_name.clone(), None),
        (_, Some(ephemeral)) => {
            let template = ephemeral.volume_claim_template.as_ref();
            let modes = template.and_then(|template| template.spec.access_modes.clone());
            (format!("{pod}-{}", volume.name), modes)
        }
        _ => return None,
    };
    let sub_path = sub_path(mount, directory)?;
    let sub_path = (!sub_path.is_empty()).then_some(sub_path);
    Some(WorkClaim { name, sub_path, access_modes: access_modes.unwrap_or_default() })
}

/// Returns the path of a directory on a mounted volume; `None` if the mount has a `subPathExpr`, which only
/// the kubelet can expand.
fn sub_path(mount: &VolumeMount, directory: &Path) -> Option<String> {
    if mount.sub_path_expr.as_ref().is_some_and(|text| !text.is_empty()) {
        return None;
    }
    let rest = directory.strip_prefix(&mount.mount_path).ok()?.to_str()?;
    let of_mount = mount.sub_path.as_deref().unwrap_or_default();
    let parts = of_mount.split('/').chain(rest.split('/')).filter(|part| !part.is_empty());
    Some(parts.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WORK: &str = "/home/runner/_work";

    fn identity(claim: Option<&str>) -> PodIdentity {
        let program = PathBuf::from("/usr/local/bin/container-hook");
        PodIdentity { name: "runner-1".into(), claim: claim.map(str::to_owned), program }
    }

    fn pod(volume: serde_json::Value, mount: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": "u"},
            "status": {"containerStatuses": [{"name": "runner", "image": "", "imageID": "",
                "ready": true, "restartCount": 0, "containerID": "containerd://c"}]},
            "spec": {
                "nodeName": "node-1",
                "securityContext": {"fsGroup": 123},
                "imagePullSecrets": [{"name": "login"}],
                "containers": [
                    {"name": "dind", "image": "docker"},
                    {"name": "runner", "image": "runner:1", "volumeMounts": [
                        {"name": "root", "mountPath": "/home"}, mount
                    ]},
                ],
                "volumes": [{"name": "root", "emptyDir": {}}, volume],
            },
        }))
        .unwrap()
    }

    fn claim_of(volume: serde_json::Value, mount: serde_json::Value) -> Option<WorkClaim> {
        OwnPod::new(&identity(None), Some(&pod(volume, mount)), Path::new(WORK)).claim
    }

    #[test]
    fn claim_of_the_chart_is_an_ephemeral_volume() {
        let spec = json!({"accessModes": ["ReadWriteOnce"]});
        let volume = json!({"name": "work", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
        let pod = pod(volume, json!({"name": "work", "mountPath": "/home/runner/_work"}));
        let own = OwnPod::new(&identity(None), Some(&pod), Path::new(WORK));
        let claim = WorkClaim {
            name: "runner-1-work".into(),
            sub_path: None,
            access_modes: vec!["ReadWriteOnce".into()],
        };
        let expected = OwnPod {
            name: "runner-1".into(),
            uid: Some("u".into()),
            image: Some("runner:1".into()),
            node: Some("node-1".into()),
            runtime: Some("containerd".into()),
            claim: Some(claim),
            fs_group: Some(123),
            pull_secrets: vec!["login".into()],
            program: "/usr/local/bin/container-hook".into(),
        };
        assert_eq!(own, expected);
    }

    #[test]
    fn directory_below_a_mount_is_a_sub_path() {
        let volume = json!({"name": "home", "persistentVolumeClaim": {"claimName": "homes"}});
        let mount = json!({"name": "home", "mountPath": "/home/runner/", "subPath": "a/b"});
        let claim = claim_of(volume, mount).unwrap();
        assert_eq!((claim.name.as_str(), claim.sub_path.as_deref()), ("homes", Some("a/b/_work")));
    }

    #[test]
    fn only_persistent_volume_claims_are_claims() {
        let mount = json!({"name": "work", "mountPath": WORK});
        assert_eq!(claim_of(json!({"name": "work", "emptyDir": {}}), mount), None);
        let volume = json!({"name": "work", "persistentVolumeClaim": {"claimName": "c"}});
        let mount = json!({"name": "work", "mountPath": WORK, "subPathExpr": "$(POD)"});
        assert_eq!(claim_of(volume.clone(), mount), None);
        let mount = json!({"name": "work", "mountPath": "/home/runner/_work2"});
        assert_eq!(claim_of(volume, mount), None);
    }

    #[test]
    fn variable_names_a_claim_without_a_mount() {
        let own = OwnPod::new(&identity(Some("mine")), None, Path::new(WORK));
        assert_eq!(own.claim.unwrap().name, "mine");
        assert_eq!((own.uid, own.image), (None, None));
    }
}
