//! Removes leftovers of killed runners.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;

use super::super::client::{ClusterClient, ClusterError};
use super::list::selector;

/// Grace period of containers, in seconds; the agent ends at once.
const GRACE_SECONDS: u32 = 1;

/// Names of the objects that [`prune`] removed, and of those that it kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrunedObjects {
    pub pods: Vec<String>,
    pub secrets: Vec<String>,
    /// Pods and secrets without an owner: their runner is in another namespace and may need them.
    pub kept: Vec<String>,
}

/// Removes the pods and secrets of runners whose pod is deleted or has ended; with `all`, of running
/// runners too. The cluster's garbage collection takes time, and ignores runners whose ended pod still exists.
///
/// # Errors
///
/// Fails if the cluster is unreachable or denies a request; objects removed before the failure stay removed.
pub async fn prune(cluster: &ClusterClient, all: bool) -> Result<PrunedObjects, ClusterError> {
    let mut owners = OwnerCache { cluster, alive: BTreeMap::new() };
    let mut pruned = PrunedObjects::default();
    let pods = cluster.pods(&selector()).await?;
    // Objects owned by a pod removed here are removed with it.
    for pod in pods {
        let Some((name, fate)) = owners.find_fate(&pod.metadata, all).await? else { continue };
        match fate {
            ObjectFate::Remove => {
                cluster.delete_pod(&name, Some(GRACE_SECONDS)).await?;
                pruned.pods.push(name);
            }
            ObjectFate::Unowned => pruned.kept.push(format!("pod {name}")),
        }
    }
    for secret in cluster.secrets(&selector()).await? {
        let Some((name, fate)) = owners.find_fate(&secret.metadata, all).await? else { continue };
        match fate {
            ObjectFate::Remove => {
                cluster.delete_secret(&name).await?;
                pruned.secrets.push(name);
            }
            ObjectFate::Unowned => pruned.kept.push(format!("secret {name}")),
        }
    }
    Ok(pruned)
}

enum ObjectFate {
    Remove,
    Unowned,
}

/// Pods that own other objects; each is requested from the cluster once.
struct OwnerCache<'a> {
    cluster: &'a ClusterClient,
    alive: BTreeMap<(String, String), bool>,
}

impl OwnerCache<'_> {
    /// Returns the name of an object and the action to take; `None` if the object is in use or is
    /// already being deleted.
    async fn find_fate(
        &mut self,
        metadata: &ObjectMeta,
        all: bool,
    ) -> Result<Option<(String, ObjectFate)>, ClusterError> {
        let Some(name) = metadata.name.clone() else { return Ok(None) };
        if metadata.deletion_timestamp.is_some() {
            // It is already being deleted.
            return Ok(None);
        }
        if all {
            return Ok(Some((name, ObjectFate::Remove)));
        }
        let owners = metadata.owner_references.iter().flatten();
        let owners: Vec<_> = owners.filter(|owner| owner.kind == "Pod").collect();
        if owners.is_empty() {
            return Ok(Some((name, ObjectFate::Unowned)));
        }
        for owner in owners {
            if self.is_alive(owner).await? {
                return Ok(None);
            }
        }
        Ok(Some((name, ObjectFate::Remove)))
    }

    async fn is_alive(&mut self, owner: &OwnerReference) -> Result<bool, ClusterError> {
        let key = (owner.name.clone(), owner.uid.clone());
        if let Some(alive) = self.alive.get(&key) {
            return Ok(*alive);
        }
        let pod = self.cluster.pod(&owner.name).await?;
        let is_it = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&owner.uid));
        let alive = is_it.is_some_and(|pod| {
            let phase = pod.status.and_then(|status| status.phase);
            !matches!(phase.as_deref(), Some("Succeeded" | "Failed"))
        });
        self.alive.insert(key, alive);
        Ok(alive)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::testing::{RecordedCalls, ScriptedReply, answer, cluster_with_replies};

    fn object(name: &str, owner: Option<(&str, &str)>) -> Value {
        let owners = owner.map(
            |(name, uid)| json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]),
        );
        json!({"metadata": {"name": name, "ownerReferences": owners}})
    }

    fn mark_deleted(mut object: Value) -> Value {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object
    }

    /// A cluster with a running runner, an ended one, one replaced by a pod of the same name, and a deleted
    /// one.
    fn cluster() -> (ClusterClient, RecordedCalls) {
        cluster_with_replies(|line, _| {
            let runner = |uid: &str, phase: &str| -> ScriptedReply {
                let pod = json!({"metadata": {"uid": uid}, "status": {"phase": phase}});
                answer(200, &pod.to_string())
            };
            let (verb, path) = line.split_once(' ').unwrap();
            let path = path.trim_start_matches("/api/v1/namespaces/ns/");
            let items = |items: Value| answer(200, &json!({"items": items}).to_string());
            match (verb, path) {
                ("DELETE", _) => answer(200, "{}"),
                (_, "pods/alive") => runner("1", "Running"),
                (_, "pods/ended") => runner("2", "Failed"),
                (_, "pods/other") => runner("new", "Running"),
                (_, "pods/gone") => answer(404, "{}"),
                (_, path) if path.starts_with("pods?") => items(json!([
                    object("a", Some(("alive", "1"))),
                    object("b", Some(("ended", "2"))),
                    object("c", Some(("other", "3"))),
                    object("d", Some(("gone", "4"))),
                    object("e", None),
                    mark_deleted(object("f", Some(("gone", "4")))),
                ])),
                (_, path) if path.starts_with("secrets?") => items(json!([
                    object("s", Some(("alive", "1"))),
                    object("t", Some(("gone", "4"))),
                    object("u", None),
                ])),
                other => panic!("{other:?}"),
            }
        })
    }

    fn deleted_paths(calls: &RecordedCalls) -> Vec<String> {
        let calls = calls.lock().unwrap();
        let lines = calls.iter().filter_map(|(line, _)| line.strip_prefix("DELETE "));
        lines
            .map(|path| path.rsplit('/').next().unwrap().trim_end_matches('?').to_owned())
            .collect()
    }

    #[test]
    fn only_leftovers_of_runners_are_removed() {
        let (cluster, calls) = cluster();
        let pruned = cluster.run(prune(&cluster, false)).unwrap();
        let expected = PrunedObjects {
            pods: ["b", "c", "d"].map(str::to_owned).into(),
            secrets: vec!["t".to_owned()],
            kept: ["pod e", "secret u"].map(str::to_owned).into(),
        };
        assert_eq!(pruned, expected);
        assert_eq!(deleted_paths(&calls), ["b", "c", "d", "t"]);
        let asked =
            calls.lock().unwrap().iter().filter(|(line, _)| line.ends_with("/alive")).count();
        assert_eq!(asked, 1);
    }

    #[test]
    fn all_removes_pods_and_secrets_of_all_runners() {
        let (cluster, calls) = cluster();
        let pruned = cluster.run(prune(&cluster, true)).unwrap();
        assert!(pruned.kept.is_empty());
        assert_eq!(deleted_paths(&calls), ["a", "b", "c", "d", "e", "s", "t", "u"]);
    }
}
