//! What killed runners left.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;

use super::super::client::{Cluster, ClusterError};
use super::list::selector;

/// How long containers may take to end, in seconds; our own first process ends at once.
const GRACE_SECONDS: u32 = 1;

/// What was removed, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    pub pods: Vec<String>,
    pub secrets: Vec<String>,
    /// Pods and secrets that nothing owns: their runner is in another namespace, and may need them.
    pub kept: Vec<String>,
}

/// Removes the pods and secrets of runners whose pod is gone or has ended; with `all` those of all runners,
/// also of those that have a job. The cluster collects by itself what has an owner, but not at once, and
/// nothing of a runner whose pod has ended and is still there.
///
/// # Errors
///
/// Fails if the cluster cannot be asked, or refuses; what was removed by then is removed.
pub async fn prune(cluster: &Cluster, all: bool) -> Result<Pruned, ClusterError> {
    let mut owners = Owners { cluster, alive: BTreeMap::new() };
    let mut pruned = Pruned::default();
    let pods = cluster.pods(&selector()).await?;
    // Those that a pod has that is removed now go with it.
    for pod in pods {
        let Some((name, fate)) = owners.fate(&pod.metadata, all).await? else { continue };
        match fate {
            Fate::Remove => {
                cluster.delete_pod(&name, Some(GRACE_SECONDS)).await?;
                pruned.pods.push(name);
            }
            Fate::Unowned => pruned.kept.push(format!("pod {name}")),
        }
    }
    for secret in cluster.secrets(&selector()).await? {
        let Some((name, fate)) = owners.fate(&secret.metadata, all).await? else { continue };
        match fate {
            Fate::Remove => {
                cluster.delete_secret(&name).await?;
                pruned.secrets.push(name);
            }
            Fate::Unowned => pruned.kept.push(format!("secret {name}")),
        }
    }
    Ok(pruned)
}

enum Fate {
    Remove,
    Unowned,
}

/// The pods that own others, each asked for once.
struct Owners<'a> {
    cluster: &'a Cluster,
    alive: BTreeMap<(String, String), bool>,
}

impl Owners<'_> {
    /// Returns the name of an object and what becomes of it; nothing if it stays.
    async fn fate(
        &mut self,
        metadata: &ObjectMeta,
        all: bool,
    ) -> Result<Option<(String, Fate)>, ClusterError> {
        let Some(name) = metadata.name.clone() else { return Ok(None) };
        if metadata.deletion_timestamp.is_some() {
            // Somebody has removed it already.
            return Ok(None);
        }
        if all {
            return Ok(Some((name, Fate::Remove)));
        }
        let owners = metadata.owner_references.iter().flatten();
        let owners: Vec<_> = owners.filter(|owner| owner.kind == "Pod").collect();
        if owners.is_empty() {
            return Ok(Some((name, Fate::Unowned)));
        }
        for owner in owners {
            if self.is_alive(owner).await? {
                return Ok(None);
            }
        }
        Ok(Some((name, Fate::Remove)))
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
    use crate::container_hook::kubernetes::client::testing::{Calls, Reply, answer, answering};

    fn object(name: &str, owner: Option<(&str, &str)>) -> Value {
        let owners = owner.map(
            |(name, uid)| json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]),
        );
        json!({"metadata": {"name": name, "ownerReferences": owners}})
    }

    fn going(mut object: Value) -> Value {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object
    }

    /// A cluster with a runner that lives, one that has ended, one that is another now, and one that is
    /// gone.
    fn cluster() -> (Cluster, Calls) {
        answering(|line, _| {
            let runner = |uid: &str, phase: &str| -> Reply {
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
                    going(object("f", Some(("gone", "4")))),
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

    fn deleted(calls: &Calls) -> Vec<String> {
        let calls = calls.lock().unwrap();
        let lines = calls.iter().filter_map(|(line, _)| line.strip_prefix("DELETE "));
        lines
            .map(|path| path.rsplit('/').next().unwrap().trim_end_matches('?').to_owned())
            .collect()
    }

    #[test]
    fn only_what_runners_left_is_removed() {
        let (cluster, calls) = cluster();
        let pruned = cluster.run(prune(&cluster, false)).unwrap();
        let expected = Pruned {
            pods: ["b", "c", "d"].map(str::to_owned).into(),
            secrets: vec!["t".to_owned()],
            kept: ["pod e", "secret u"].map(str::to_owned).into(),
        };
        assert_eq!(pruned, expected);
        assert_eq!(deleted(&calls), ["b", "c", "d", "t"]);
        let asked =
            calls.lock().unwrap().iter().filter(|(line, _)| line.ends_with("/alive")).count();
        assert_eq!(asked, 1);
    }

    #[test]
    fn all_is_all() {
        let (cluster, calls) = cluster();
        let pruned = cluster.run(prune(&cluster, true)).unwrap();
        assert!(pruned.kept.is_empty());
        assert_eq!(deleted(&calls), ["a", "b", "c", "d", "e", "s", "t", "u"]);
    }
}
