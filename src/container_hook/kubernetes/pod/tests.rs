//! Pods of requests, without a cluster.

mod golden;
mod jobs;
mod secured;
mod steps;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::{Value, json};

use super::made::{ImageFacts, MadePod};
use super::{job, step};
use crate::container_hook::audit::AuditLog;
use crate::container_hook::context::{HookContext, Settings};
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::own_pod::{OwnPod, WorkClaim};
use crate::container_hook::kubernetes::settings::{KubernetesSettings, Work};
use crate::container_hook::kubernetes::testing::Quiet;
use crate::container_hook::request::{Command, Request};
use crate::container_hook::runner::Runner;
use crate::container_hook::runner::tests::runner;
use crate::image::ImageConfig;
use crate::sys::error::chain;

/// What pods are made from besides the request.
struct World {
    settings: Settings,
    kubernetes: KubernetesSettings,
    runner: Runner,
    own: OwnPod,
    images: ImageFacts,
    /// The directory of the template.
    dir: Option<tempfile::TempDir>,
}

impl World {
    fn new() -> Self {
        let own = OwnPod {
            name: "runner-1".to_owned(),
            uid: Some("uid-1".to_owned()),
            image: Some("runner:1".to_owned()),
            node: Some("node-1".to_owned()),
            claim: None,
            fs_group: None,
            pull_secrets: Vec::new(),
            program: PathBuf::from("/usr/local/bin/container-hook"),
        };
        World {
            settings: Settings::default(),
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

    /// Makes the pod of a request: `prepare_job` has `container` or `services`, a step neither.
    fn make(&self, args: &Value) -> Result<MadePod, HookError> {
        self.make_of(args, None)
    }

    fn make_of(&self, args: &Value, job_pod: Option<&Pod>) -> Result<MadePod, HookError> {
        let is_job = args.get("container").is_some() || args.get("services").is_some();
        let command = if is_job { "prepare_job" } else { "run_container_step" };
        self.call(command, args, job_pod)
    }

    fn call(
        &self,
        command: &str,
        args: &Value,
        job_pod: Option<&Pod>,
    ) -> Result<MadePod, HookError> {
        let request = json!({"command": command, "responseFile": "/r", "args": args});
        let request = Request::parse(request.to_string().as_bytes())?;
        let audit = AuditLog::default();
        let context = HookContext {
            settings: &self.settings,
            runner: &self.runner,
            audit: &audit,
            log: &Quiet,
        };
        let (settings, own, images) = (&self.kubernetes, &self.own, &self.images);
        match &request.command {
            Command::PrepareJob(args) => job(&context, settings, own, args, images),
            Command::RunContainerStep(args) => step(&context, settings, own, args, images, job_pod),
            other => panic!("{other:?} makes no pod"),
        }
    }

    fn made(&self, args: &Value) -> MadePod {
        self.make(args).unwrap_or_else(|error| panic!("{}", chain(&error)))
    }

    /// Returns why there is no pod.
    fn refused(&self, args: &Value) -> String {
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

fn spec(made: &MadePod) -> &PodSpec {
    made.pod.spec.as_ref().unwrap()
}

fn container<'a>(made: &'a MadePod, name: &str) -> &'a Container {
    let inits = spec(made).init_containers.iter().flatten();
    let mut all = spec(made).containers.iter().chain(inits);
    all.find(|container| container.name == name).unwrap()
}

fn has_note(made: &MadePod, part: &str) -> bool {
    made.notes.iter().any(|note| note.contains(part))
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kubernetes")
}
