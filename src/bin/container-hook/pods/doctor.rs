//! `container-hook doctor` in the pod of a runner: what jobs of the cluster will lack.

use std::env;
use std::path::PathBuf;

use oci_hooks::container_hook::kubernetes::admin::{
    self, Need, PERMISSIONS, Permission, RunnerPod,
};
use oci_hooks::container_hook::kubernetes::{
    Cluster, ClusterError, Operation, PodIdentity, ServerVersion,
};
use oci_hooks::container_hook::template::Template;
use oci_hooks::program::check::Outcome;
use oci_hooks::program::checks::{Check, registries, report};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;
use oci_hooks::program::settings_file::Loaded;
use oci_hooks::sys::error::chain;

use super::connection::connect;
use crate::environment::{self, pod};
use crate::error::Error;
use crate::settings::{Settings, Work};

const PODS: Outcome = Outcome { good: "jobs will run as pods", bad: "jobs will not run" };
/// The default work directory of runners in pods.
pub const WORK: &str = "/home/runner/_work";

pub fn run(loaded: &Loaded<Settings>, context: &mut Context) -> Result<Exit, Error> {
    let settings = &loaded.settings;
    let mut checks = vec![crate::doctor::settings(loaded)];
    match connect(settings) {
        Ok(cluster) => checks.extend(of_cluster(&cluster, settings)),
        Err(error) => checks.push(Check::fail(
            "cluster",
            chain(&*error),
            "run it in the pod of a runner, with its service account, or name a KUBECONFIG",
        )),
    }
    checks.push(template(settings));
    checks.push(dockerfiles(settings));
    checks.extend(registries::checks(&settings.registry));
    Ok(report(&checks, PODS, context)?)
}

fn of_cluster(cluster: &Cluster, settings: &Settings) -> Vec<Check> {
    let server = cluster.server();
    let mut checks = match cluster.run(cluster.version()) {
        Ok(ServerVersion { git_version, .. }) => {
            vec![Check::ok("API server", format!("{git_version} at {server}"))]
        }
        Err(error) => {
            let hint = "a network policy, a proxy, or the certificate of the cluster keeps it away";
            return vec![Check::fail("API server", format!("{server}: {}", chain(&error)), hint)];
        }
    };
    checks.push(Check::ok("namespace", cluster.namespace()));
    checks.extend(permissions(cluster));
    checks.extend(runner(cluster, settings));
    checks
}

/// Asks for every permission that is ever used.
fn permissions(cluster: &Cluster) -> Vec<Check> {
    let ask = |one: &Permission| cluster.run(cluster.may(one.verb, one.resource, one.subresource));
    PERMISSIONS.iter().map(|permission| permission_check(permission, ask(permission))).collect()
}

fn permission_check(permission: &Permission, answer: Result<bool, ClusterError>) -> Check {
    const NAME: &str = "permission";
    let name = permission.name();
    let Permission { verb, resource, subresource, need, loss } = *permission;
    let rule = || {
        let operation = Operation { verb, resource, subresource, name: None };
        format!("add to the Role of the runner's service account: {}", operation.rule())
    };
    match (answer, need) {
        (Ok(true), _) => Check::ok(NAME, name),
        (Ok(false), Need::Always) => Check::fail(NAME, format!("{name} is denied: {loss}"), rule()),
        (Ok(false), Need::Partly) => Check::warn(NAME, format!("{name} is denied: {loss}"), rule()),
        (Err(error), _) => {
            let hint = "without an answer nobody knows; a job will tell";
            Check::warn(NAME, format!("{name}: {}", chain(&error)), hint)
        }
    }
}

/// Looks for the runner's pod, and for what is taken from it.
fn runner(cluster: &Cluster, settings: &Settings) -> Vec<Check> {
    let Some(name) = pod::variable(pod::NAME) else {
        let hint =
            "actions-runner-controller sets it; else by the downward API: fieldRef metadata.name";
        return vec![Check::fail("runner pod", format!("{} is not set", pod::NAME), hint)];
    };
    let claim = pod::variable(pod::CLAIM);
    let program = this_program().unwrap_or_default();
    let identity = PodIdentity { name: name.clone(), claim, program };
    let found = match cluster.run(admin::inspect(cluster, &identity, &work())) {
        Ok(found) => found,
        Err(error) => {
            let hint = "what the permissions above say comes first";
            return vec![Check::warn("runner pod", chain(&error), hint)];
        }
    };
    let namespace = cluster.namespace();
    let own = match &found {
        RunnerPod { is_found: true, node, .. } => {
            let node = node.as_deref().map(|node| format!(", on node {node}"));
            Check::ok("runner pod", format!("{name}{}", node.unwrap_or_default()))
        }
        _ => Check::warn(
            "runner pod",
            format!("{name} is not in namespace {namespace}, and cannot own the pods of its jobs"),
            "if a runner dies, its pods stay: run `container-hook prune --all` from time to time",
        ),
    };
    vec![own, image(settings, &found), work_directory(settings, &found)]
}

/// Returns the directory of the runner's jobs.
fn work() -> PathBuf {
    let temp = env::var_os("RUNNER_TEMP").map(PathBuf::from);
    let work = temp.and_then(|temp| temp.parent().map(ToOwned::to_owned));
    work.unwrap_or_else(|| PathBuf::from(WORK))
}

fn image(settings: &Settings, found: &RunnerPod) -> Check {
    let said = settings.kubernetes.runner_image.clone().or_else(|| pod::variable(pod::IMAGE));
    match said.or_else(|| found.image.clone()) {
        Some(image) => Check::ok("runner image", image),
        None => Check::fail(
            "runner image",
            "no image brings this program to pods",
            format!("set `runner-image` under [kubernetes], or {}", pod::IMAGE),
        ),
    }
}

fn work_directory(settings: &Settings, found: &RunnerPod) -> Check {
    const NAME: &str = "work directory";
    match (settings.kubernetes.work, &found.claim) {
        (Work::Copy, _) => Check::ok(NAME, "files are copied, as the settings say"),
        (_, Some(claim)) => Check::ok(NAME, format!("claim {claim}")),
        (Work::Auto, None) => Check::ok(NAME, "on no claim: files are copied"),
        (Work::Claim, None) => Check::fail(
            NAME,
            format!("{} is on no claim", work().display()),
            "mount a claim there, or set `work = \"copy\"` under [kubernetes]",
        ),
    }
}

fn template(settings: &Settings) -> Check {
    const NAME: &str = "template";
    let hint = "`container-hook template lint FILE` says more";
    let path = match environment::template(settings.template.file.clone()) {
        Ok(Some(path)) => path,
        Ok(None) => return Check::ok(NAME, "none"),
        Err(error) => return Check::fail(NAME, chain(&error), hint),
    };
    match Template::read(&path) {
        Ok(_) => Check::ok(NAME, path.display().to_string()),
        Err(error) => Check::fail(NAME, chain(&error), hint),
    }
}

fn dockerfiles(settings: &Settings) -> Check {
    const NAME: &str = "Dockerfile actions";
    let build = &settings.kubernetes.build;
    match (&build.push, build.image.as_ref().or(build.buildkit.as_ref())) {
        (Some(push), Some(_)) => Check::ok(NAME, format!("pushed to {push}")),
        _ => Check::warn(
            NAME,
            "are rejected: nothing says where images go",
            "set `push` and `image` (or `buildkit`) under [kubernetes.build]",
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_denied_is_said_with_its_rule_and_what_is_lost() {
        let check = |permission: &Permission, answer| {
            serde_json::to_value(permission_check(permission, answer)).unwrap()
        };
        let exec = PERMISSIONS.iter().find(|one| one.name() == "get pods/exec").unwrap();
        let log = PERMISSIONS.iter().find(|one| one.name() == "get pods/log").unwrap();
        let ok =
            json!({"name": "permission", "status": "ok", "found": "get pods/exec", "hint": null});
        assert_eq!(check(exec, Ok(true)), ok);
        let denied = json!({
            "name": "permission",
            "status": "fail",
            "found": "get pods/exec is denied: no step can be run",
            "hint": "add to the Role of the runner's service account: \
                     {apiGroups: [\"\"], resources: [pods/exec], verbs: [get]}"
        });
        assert_eq!(check(exec, Ok(false)), denied);
        assert_eq!(check(log, Ok(false))["status"], "warn");
    }
}
