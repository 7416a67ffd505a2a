//! `container-hook doctor` in the pod of a runner: checks the requirements of jobs in the cluster.

use std::env;
use std::path::PathBuf;

use container_hook_job::kubernetes::{KubernetesSettings, WorkTransport};
use container_hook_job::template::PodTemplate;
use container_hook_kubernetes::admin::{self, PERMISSIONS, Permission, PermissionNeed, RunnerPod};
use container_hook_kubernetes::{
    ApiOperation, ClusterClient, ClusterError, PodIdentity, ServerVersion,
};
use oci_hooks_cli::check::CheckSummary;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::checks::{HostCheck, registries, report};
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::settings_file::LoadedSettings;
use oci_hooks_files::error::chain;

use super::connection::connect;
use crate::environment::{self, pod};
use crate::error::HookCommandError;
use crate::settings::HookFileSettings;
use crate::template::WORK;

const PODS: CheckSummary = CheckSummary { good: "jobs will run as pods", bad: "jobs will not run" };

pub fn run(
    loaded: &LoadedSettings<HookFileSettings>,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    let settings = &loaded.settings;
    let mut checks = vec![crate::doctor::settings(loaded)];
    match connect(settings) {
        Ok(cluster) => checks.extend(check_cluster(&cluster, settings)),
        Err(error) => checks.push(HostCheck::fail(
            "cluster",
            chain(&*error),
            "run it in the pod of a runner, with its service account, or set KUBECONFIG to the path of a kubeconfig",
        )),
    }
    checks.push(template(settings));
    checks.push(dockerfiles(settings));
    checks.extend(registries::checks(&settings.registry));
    Ok(report(&checks, PODS, context)?)
}

fn check_cluster(cluster: &ClusterClient, settings: &HookFileSettings) -> Vec<HostCheck> {
    let server = cluster.server();
    let mut checks = match cluster.run(cluster.version()) {
        Ok(ServerVersion { git_version, .. }) => {
            vec![HostCheck::ok("API server", format!("{git_version} at {server}"))]
        }
        Err(error) => {
            let hint = "check network policies, proxies and the certificate of the cluster";
            return vec![HostCheck::fail(
                "API server",
                format!("{server}: {}", chain(&error)),
                hint,
            )];
        }
    };
    checks.push(HostCheck::ok("namespace", cluster.namespace()));
    checks.extend(permissions(cluster));
    checks.extend(runner(cluster, settings));
    checks
}

/// Checks every permission that this program uses.
fn permissions(cluster: &ClusterClient) -> Vec<HostCheck> {
    let ask = |one: &Permission| {
        cluster.run(cluster.has_permission(one.verb, one.resource, one.subresource))
    };
    PERMISSIONS.iter().map(|permission| permission_check(permission, ask(permission))).collect()
}

fn permission_check(permission: &Permission, answer: Result<bool, ClusterError>) -> HostCheck {
    const NAME: &str = "permission";
    let name = permission.name();
    let Permission { verb, resource, subresource, need, loss } = *permission;
    let rule = || {
        let operation = ApiOperation { verb, resource, subresource, name: None };
        format!("add to the Role of the runner's service account: {}", operation.rule())
    };
    match (answer, need) {
        (Ok(true), _) => HostCheck::ok(NAME, name),
        (Ok(false), PermissionNeed::Always) => {
            HostCheck::fail(NAME, format!("{name} is denied: {loss}"), rule())
        }
        (Ok(false), PermissionNeed::Partly) => {
            HostCheck::warn(NAME, format!("{name} is denied: {loss}"), rule())
        }
        (Err(error), _) => {
            let hint =
                "the permission could not be checked: the log of a job names missing permissions";
            HostCheck::warn(NAME, format!("{name}: {}", chain(&error)), hint)
        }
    }
}

/// Checks the runner's pod, its image and its work directory.
fn runner(cluster: &ClusterClient, settings: &HookFileSettings) -> Vec<HostCheck> {
    let Some(name) = pod::variable(pod::NAME) else {
        let hint = "actions-runner-controller sets it; without it, set it by the downward API (fieldRef metadata.name)";
        return vec![HostCheck::fail("runner pod", format!("{} is not set", pod::NAME), hint)];
    };
    let claim = pod::variable(pod::CLAIM);
    let program = program_path().unwrap_or_default();
    let identity = PodIdentity { name: name.clone(), claim, program };
    let mut kubernetes = settings.kubernetes.clone();
    kubernetes.runner_image = kubernetes.runner_image.or_else(|| pod::variable(pod::IMAGE));
    let found = match cluster.run(admin::inspect(cluster, &kubernetes, &identity, &work())) {
        Ok(found) => found,
        Err(error) => {
            let hint = "fix the permissions above first";
            return vec![HostCheck::warn("runner pod", chain(&error), hint)];
        }
    };
    let namespace = cluster.namespace();
    let own = match &found {
        RunnerPod { is_found: true, node, .. } => {
            let node = node.as_deref().map(|node| format!(", on node {node}"));
            HostCheck::ok("runner pod", format!("{name}{}", node.unwrap_or_default()))
        }
        _ => HostCheck::warn(
            "runner pod",
            format!("{name} is not in namespace {namespace}, and cannot own the pods of its jobs"),
            "if a runner dies, its pods stay: run `container-hook prune --all` from time to time",
        ),
    };
    vec![own, image(&kubernetes, &found), image_volume(&found), work_directory(settings, &found)]
}

/// Returns whether pods mount the runner image. Both ways are correct.
fn image_volume(found: &RunnerPod) -> HostCheck {
    let said = match &found.no_image_volume {
        None => "come from the runner image, mounted as a volume".to_owned(),
        Some(reason) => format!("come from an init container: {reason}"),
    };
    HostCheck::ok("agent and externals", said)
}

/// Returns the work directory of the runner.
fn work() -> PathBuf {
    let temp = env::var_os("RUNNER_TEMP").map(PathBuf::from);
    let work = temp.and_then(|temp| temp.parent().map(ToOwned::to_owned));
    work.unwrap_or_else(|| PathBuf::from(WORK))
}

fn image(settings: &KubernetesSettings, found: &RunnerPod) -> HostCheck {
    match settings.runner_image.as_ref().or(found.image.as_ref()) {
        Some(image) => HostCheck::ok("runner image", image),
        None => HostCheck::fail(
            "runner image",
            "none: pods need an image with this program",
            format!("set `runner-image` under [kubernetes], or {}", pod::IMAGE),
        ),
    }
}

fn work_directory(settings: &HookFileSettings, found: &RunnerPod) -> HostCheck {
    const NAME: &str = "work directory";
    match (settings.kubernetes.work, &found.claim) {
        (WorkTransport::Copy, _) => {
            HostCheck::ok(NAME, "files are copied, because of `work = \"copy\"` under [kubernetes]")
        }
        (_, Some(claim)) => HostCheck::ok(NAME, format!("claim {claim}")),
        (WorkTransport::Auto, None) => {
            HostCheck::ok(NAME, "not on a persistent volume claim: files are copied")
        }
        (WorkTransport::Claim, None) => HostCheck::fail(
            NAME,
            format!("{} is not on a persistent volume claim", work().display()),
            "mount a claim there, or set `work = \"copy\"` under [kubernetes]",
        ),
    }
}

fn template(settings: &HookFileSettings) -> HostCheck {
    const NAME: &str = "template";
    let hint = "`container-hook template lint FILE` prints each mistake";
    let path = match environment::template(settings.template.file.clone()) {
        Ok(Some(path)) => path,
        Ok(None) => return HostCheck::ok(NAME, "none"),
        Err(error) => return HostCheck::fail(NAME, chain(&error), hint),
    };
    match PodTemplate::read(&path) {
        Ok(_) => HostCheck::ok(NAME, path.display().to_string()),
        Err(error) => HostCheck::fail(NAME, chain(&error), hint),
    }
}

fn dockerfiles(settings: &HookFileSettings) -> HostCheck {
    const NAME: &str = "Dockerfile actions";
    let build = &settings.kubernetes.build;
    match (&build.push, build.image.as_ref().or(build.buildkit.as_ref())) {
        (Some(push), Some(_)) => HostCheck::ok(NAME, format!("pushed to {push}")),
        _ => HostCheck::warn(
            NAME,
            "are rejected: the registry or the builder for their images is not set",
            "set `push` and `image` (or `buildkit`) under [kubernetes.build]",
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denied_permission_is_reported_with_its_rule_and_consequence() {
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
                     {apiGroups: [\"\"], resources: [pods/exec], verbs: [create, get]}"
        });
        assert_eq!(check(exec, Ok(false)), denied);
        assert_eq!(check(log, Ok(false))["status"], "warn");
    }
}
