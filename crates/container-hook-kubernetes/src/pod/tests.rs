//! Pods of requests, without a cluster.

mod golden;
mod jobs;
mod secured;
mod steps;

use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use container_hook_job::audit::AuditLog;
use container_hook_job::kubernetes::{KubernetesSettings, WorkTransport};
use container_hook_job::request::{HookCommand, HookRequest};
use container_hook_job::runner::CallingRunner;
use container_hook_job::testing::runner;
use container_hook_job::{HookContext, HookSettings};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use oci_hooks_files::error::chain;
use oci_hooks_image::ImageConfig;
use serde_json::{Value, json};

use super::manifest::{ImageFacts, PodManifest};
use super::{job, step};
use crate::own_pod::{OwnPod, WorkClaim};
use crate::testing::KeptLog;

/// Inputs of a pod besides the request.
struct PodFixture {
    settings: HookSettings,
    kubernetes: KubernetesSettings,
    runner: CallingRunner,
    own: OwnPod,
    images: ImageFacts,
    dir: Option<tempfile::TempDir>,
}

impl PodFixture {
    fn new() -> Self {
        let own = OwnPod {
            name: "runner-1".to_owned(),
            uid: Some("uid-1".to_owned()),
            image: Some("runner:1".to_owned()),
            node: Some("node-1".to_owned()),
            runtime: None,
            claim: None,
            fs_group: None,
            pull_secrets: Vec::new(),
            program: PathBuf::from("/usr/local/bin/container-hook"),
        };
        PodFixture {
            settings: HookSettings::default(),
            kubernetes: KubernetesSettings::default(),
            runner: runner(),
            own,
            images: ImageFacts::default(),
            dir: None,
        }
    }

    fn template(mut self, text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("template.yaml");
        std::fs::write(&file, text).unwrap();
        self.settings.template.file = Some(file);
        self.dir = Some(dir);
        self
    }

    fn policy(mut self, text: &str) -> Self {
        self.settings.policy = toml::from_str(text).unwrap();
        self
    }

    fn kubernetes(mut self, change: impl FnOnce(&mut KubernetesSettings)) -> Self {
        change(&mut self.kubernetes);
        self
    }

    fn claim(mut self, sub_path: Option<&str>, mode: &str) -> Self {
        self.own.claim = Some(WorkClaim {
            name: "runner-1-work".to_owned(),
            sub_path: sub_path.map(str::to_owned),
            access_modes: vec![mode.to_owned()],
        });
        self
    }

    fn image(mut self, name: &str, config: &Value) -> Self {
        let config: ImageConfig = serde_json::from_value(config.clone()).unwrap();
        self.images.insert(name, config);
        self
    }

    /// Returns the pod of a request: of `prepare_job` if it has `container` or `services`, else of a step.
    fn make(&self, args: &Value) -> Result<PodManifest, HookError> {
        self.make_of(args, None)
    }

    fn make_of(&self, args: &Value, job_pod: Option<&Pod>) -> Result<PodManifest, HookError> {
        let is_job = args.get("container").is_some() || args.get("services").is_some();
        let command = if is_job { "prepare_job" } else { "run_container_step" };
        self.call(command, args, job_pod)
    }

    fn call(
        &self,
        command: &str,
        args: &Value,
        job_pod: Option<&Pod>,
    ) -> Result<PodManifest, HookError> {
        let request = json!({"command": command, "responseFile": "/r", "args": args});
        let request = HookRequest::parse(request.to_string().as_bytes())?;
        let audit = AuditLog::default();
        let context = HookContext {
            settings: &self.settings,
            runner: &self.runner,
            audit: &audit,
            log: &KeptLog::default(),
        };
        let (settings, own, images) = (&self.kubernetes, &self.own, &self.images);
        match &request.command {
            HookCommand::PrepareJob(args) => job(&context, settings, own, args, images),
            HookCommand::RunContainerStep(args) => {
                step(&context, settings, own, args, images, job_pod)
            }
            other => panic!("{other:?} makes no pod"),
        }
    }

    fn make_pod(&self, args: &Value) -> PodManifest {
        self.make(args).unwrap_or_else(|error| panic!("{}", chain(&error)))
    }

    /// Returns the error of a rejected request.
    fn request_error(&self, args: &Value) -> String {
        match self.make(args) {
            Ok(_) => panic!("there is a pod of {args}"),
            Err(error) => chain(&error),
        }
    }
}

/// Returns a request for a job whose container has these options.
fn job_with(options: &str) -> Value {
    json!({"container": {"image": "node:22", "createOptions": options}})
}

/// Returns a request for a job with these services, each a name, an image and options.
fn services(services: &[(&str, &str, &str)]) -> Value {
    let services = services.iter().map(|(name, image, options)| {
        json!({"contextName": name, "image": image, "createOptions": options})
    });
    json!({"container": {"image": "node:22"}, "services": services.collect::<Vec<_>>()})
}

fn spec(made: &PodManifest) -> &PodSpec {
    made.pod.spec.as_ref().unwrap()
}

fn container<'a>(made: &'a PodManifest, name: &str) -> &'a Container {
    let inits = spec(made).init_containers.iter().flatten();
    let mut all = spec(made).containers.iter().chain(inits);
    all.find(|container| container.name == name).unwrap()
}

fn has_note(made: &PodManifest, part: &str) -> bool {
    made.notes.iter().any(|note| note.contains(part))
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

#[test]
fn the_policy_chooses_the_runtime_class_of_a_repository() {
    let policy = r#"runtimes = { "octo/*" = "gvisor" }"#;
    let class = |template: &str| {
        let made = PodFixture::new().policy(policy).template(template).make_pod(&job_with(""));
        spec(&made).runtime_class_name.clone()
    };
    assert_eq!(class("spec: {}").as_deref(), Some("gvisor"));
    assert_eq!(class("spec: {runtimeClassName: kata}").as_deref(), Some("kata"));
}
