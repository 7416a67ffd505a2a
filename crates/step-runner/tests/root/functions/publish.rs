//! Content of the registry after publishing, and runs of the published function.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use oci_hooks_image::{
    ClientOptions, Credentials, ImageStore, PullPolicy, PullRequest, RegistryClient,
    SilentProgress, StoreOptions, pull,
};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::registry::{RegistryAuth, TestRegistry};
use serde_json::json;
use step_runner::ExprValue;
use step_runner::document::StepReference;
use step_runner::function_oci::OciFunction;
use step_runner::resolve::{Interrupt, ReferenceContext, RemoteAccess, Resolver};

use crate::functions::setup::{ARCHIVE, FunctionJob, HOST};

/// Returns the digest of a tag as seen by skopeo, or nothing if the tag does not exist.
fn tag_digest(registry: &TestRegistry, tag: &str) -> Option<String> {
    let mut skopeo = Command::new(program::find("skopeo"));
    skopeo.args(["inspect", "--raw", "--tls-verify=false"]);
    let ran =
        program::run(skopeo.arg(format!("docker://{}/group/function:{tag}", registry.address())));
    let manifest = ran.status.success().then(|| ran.success())?;
    Some(oci_hooks_image::Digest::of(manifest.as_bytes()).to_string())
}

fn digest(outputs: &BTreeMap<String, ExprValue>) -> String {
    let ExprValue::Object(digest) = &outputs["digest"] else { panic!("{outputs:?}") };
    digest["value"].to_text()
}

#[test]
fn version_gets_the_tags_for_which_it_is_newest() {
    let registry = TestRegistry::start(RegistryAuth::None);
    let repository = format!("{}/group/function", registry.address());
    let job = FunctionJob::new();
    let mut published = BTreeMap::new();
    for (version, tags) in [
        ("0.9.0-rc1", &["0.9.0-rc1"][..]),
        ("1.2.3", &["1.2.3", "1.2", "1", "latest"]),
        ("1.3.0", &["1.3.0", "1.3", "1", "latest"]),
        ("1.2.4", &["1.2.4", "1.2"]),
        ("2.0.0-rc1", &["2.0.0-rc1"]),
        ("1.2.2", &["1.2.2"]),
    ] {
        let built = job.build(version);
        let ran = job.publish(&repository);
        assert!(ran.log.contains(&format!("Tagged {repository}:{version}\n")), "{}", ran.log);
        let outputs = ran.success();
        assert_eq!(digest(&outputs), digest(&built));
        assert_eq!(outputs["tags"], json!(tags).into());
        assert_eq!(outputs["ref"].to_text(), format!("{repository}:{version}"));
        assert_eq!(outputs["registry"].to_text(), registry.address());
        assert_eq!(outputs["repository"].to_text(), "group/function");
        for tag in tags {
            published.insert((*tag).to_owned(), digest(&built));
        }
        for (tag, digest) in &published {
            assert_eq!(tag_digest(&registry, tag).as_ref(), Some(digest), "{tag} after {version}");
        }
    }
    for none in ["0.9", "0", "2.0", "2", "2.0.0"] {
        assert_eq!(tag_digest(&registry, none), None, "{none}");
    }
}

#[test]
fn version_is_published_once_with_one_content() {
    let registry = TestRegistry::start(RegistryAuth::None);
    let repository = format!("{}/group/function", registry.address());
    let job = FunctionJob::new();
    let first = digest(&job.build("1.0.0"));
    assert!(job.publish(&repository).log.contains("Pushed: sha256:"));
    // Publishing again, as in a retried job, uploads nothing.
    let again = job.publish(&repository);
    assert!(again.log.contains("Already in the registry: sha256:"), "{}", again.log);
    assert!(!again.log.contains("Pushed: sha256:"), "{}", again.log);
    again.success();

    job.write("bin/amd64/run", "#!/bin/sh\necho another\n", 0o755);
    let second = digest(&job.build("1.0.0"));
    let error = job.publish(&repository).failure();
    let expected =
        format!("{repository}:1.0.0 is already published with digest {first}, not {second}");
    assert!(error.contains(&expected), "{error}");
    assert_eq!(tag_digest(&registry, "latest"), Some(first));

    let inputs = json!({"archive": ARCHIVE, "to_repository": repository, "overwrite": true});
    job.run(OciFunction::Publish, inputs).success();
    assert_eq!(tag_digest(&registry, "1.0.0"), Some(second));
}

#[test]
fn published_function_runs_on_each_platform() {
    let registry = TestRegistry::start(RegistryAuth::None);
    let repository = format!("{}/group/function", registry.address());
    let job = FunctionJob::new();
    job.build("1.0.0");
    job.publish(&repository).success();

    let registries = || RegistryClient::new(ClientOptions::default()).unwrap();
    let resolver = Resolver::new(RemoteAccess::new(job.path().join("cache"), registries()));
    let reference = StepReference::parse(&format!("{repository}:1")).unwrap();
    let (vars, env) = (BTreeMap::new(), BTreeMap::new());
    let interrupt = Interrupt::new().unwrap();
    let caller = ReferenceContext {
        dir: job.path(),
        tree: None,
        vars: &vars,
        env: &env,
        interrupt: &interrupt,
    };
    let loaded = resolver.load(&reference, &caller).unwrap();
    let ran = program::run(&mut Command::new(loaded.dir.join("bin/run"))).success();
    assert_eq!(ran, format!("on {HOST}\n"));

    let options = StoreOptions::new(job.path().join("store"), job.path().join("run"));
    let store = ImageStore::open(options).unwrap();
    for architecture in ["amd64", "arm64"] {
        let request = PullRequest {
            reference: &format!("{repository}:latest").parse().unwrap(),
            platform: &format!("linux/{architecture}").parse().unwrap(),
            credentials: &Credentials::default(),
            policy: PullPolicy::Always,
            progress: &SilentProgress,
        };
        let image = pull(&store, &registries(), &request).unwrap();
        let program = image.layers.last().unwrap().join("bin/run");
        let text = fs::read_to_string(program).unwrap();
        assert!(text.contains(&format!("on {architecture}\n")), "{text}");
    }
}
