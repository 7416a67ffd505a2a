//! Images that cannot be pulled fail the job early, with the kubelet's message.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use oci_hooks_testsupport::cluster::TestCluster;
use oci_hooks_testsupport::github_runner::{container, merge};
use oci_hooks_testsupport::http::{Gate, WebResponse, WebServer};
use oci_hooks_testsupport::images::SharedLayers;
use serde_json::{Value, json};

use crate::cluster::setup::{NamespaceHook, cluster};

/// Far below the ten minutes that a job waits for its containers.
const SOON: Duration = Duration::from_secs(180);

/// The registry `outside.test` of the node: a proxy of the cluster's registry.
struct OutsideRegistry {
    _server: WebServer,
    /// Logins that it rejected.
    rejected: Arc<Mutex<Vec<String>>>,
    /// Serializes tests, because there is only one address for the registry.
    _lock: MutexGuard<'static, ()>,
}

impl OutsideRegistry {
    /// Starts the registry, which requires `login` (`user:password`) and holds back blobs until `gate` opens,
    /// if given.
    fn start(cluster: &TestCluster, login: Option<&str>, gate: Option<Gate>) -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let login = login.map(authorization);
        let rejected = Arc::new(Mutex::new(Vec::new()));
        let all_rejected = Arc::clone(&rejected);
        let registry = cluster.registry();
        let listener = TcpListener::bind((cluster.own_address(), 5000)).unwrap();
        let server = WebServer::start_at(listener, None, move |request| {
            let given = request.header("authorization");
            if login.is_some() && given != login.as_deref() {
                all_rejected.lock().unwrap().extend(given.map(str::to_owned));
                return WebResponse::status(401).with("WWW-Authenticate", "Basic realm=\"test\"");
            }
            let path = request.path.split('?').next().unwrap_or_default();
            let agent: ureq::Agent =
                ureq::Agent::config_builder().http_status_as_error(false).build().into();
            let from = agent.get(format!("{registry}{path}"));
            let accept = request.header("accept").unwrap_or("*/*");
            let mut answer = from.header("Accept", accept).call().unwrap();
            let body = answer.body_mut().with_config().limit(u64::MAX).read_to_vec().unwrap();
            let mut response = WebResponse::ok(body);
            response.status = answer.status().as_u16();
            for name in ["content-type", "docker-content-digest"] {
                if let Some(value) = answer.headers().get(name) {
                    response = response.with(name, value.to_str().unwrap());
                }
            }
            if path.contains("/blobs/") {
                response.held = gate.clone().map(|gate| (0, gate));
            }
            response
        });
        OutsideRegistry { _server: server, rejected, _lock: lock }
    }
}

/// Returns the header with a login (`user:password`).
fn authorization(login: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(login))
}

#[test]
fn missing_and_foreign_images_fail_the_job_soon() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    // Only nodes use this registry; no mirror has the image.
    let missing = |tag| format!("{}:5000/nobody/has:{tag}", cluster.address());
    let (missing, of_service) = (missing("this"), missing("that"));
    std::thread::scope(|scope| {
        for (name, image, words) in [
            ("missing", missing.as_str(), "cannot be pulled"),
            ("foreign", "test/foreign:1", "platform"),
            ("invalid", "Not An Image", "Not An Image"),
        ] {
            let pods = &pods;
            scope.spawn(move || {
                let mut runner = pods.runner(name);
                let begin = Instant::now();
                let args = json!({"container": runner.job_container(image), "services": []});
                let said = runner.call("prepare_job", args).failure();
                assert!(said.contains(words), "{name}: {said}");
                assert!(said.contains(image), "{name}: {said}");
                assert!(begin.elapsed() < SOON, "{name}: {:?}\n{said}", begin.elapsed());
                pods.wait_until_gone(name);
            });
        }
        // Service images fail in the same way.
        scope.spawn(|| {
            let mut runner = pods.runner("service");
            let services = json!([container(&of_service)]);
            let args =
                json!({"container": runner.job_container("alpine:3.20"), "services": services});
            let said = runner.call("prepare_job", args).failure();
            assert!(said.contains(&of_service) && said.contains("cannot be pulled"), "{said}");
            pods.wait_until_gone("service");
        });
    });
}

#[test]
fn slow_image_pull_is_waited_for() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    // With a layer that the node does not have yet.
    let image = SharedLayers::new().alpine().with_layer(|tree| tree.file("slow", 0o644, "slow\n"));
    image.push(&cluster.registry(), "test/slow:1");
    let gate = Gate::default();
    let _registry = OutsideRegistry::start(&cluster, None, Some(gate.clone()));
    let mut runner = pods.runner("slow");
    let image = "outside.test/test/slow:1";
    let args = json!({"container": runner.job_container(image), "services": []});
    let call = runner.start("prepare_job", args);
    gate.wait_until_reached();
    // The hook polls the pod several times meanwhile.
    std::thread::park_timeout(Duration::from_secs(3));
    gate.open();
    let ended = call.wait().success();
    runner.keep_state(&ended);
    assert_eq!(runner.run("cat /slow").success().stdout(), "slow\n");
    runner.cleanup();
}

#[test]
fn private_images_of_job_service_and_step_are_pulled_with_their_logins() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let alpine = SharedLayers::new().alpine();
    for name in ["job", "service", "step"] {
        // With a layer that the node does not have yet.
        let image = alpine.with_layer(|tree| tree.file("private", 0o644, format!("for {name}\n")));
        image.push(&cluster.registry(), &format!("private/{name}:1"));
    }
    let registry = OutsideRegistry::start(&cluster, Some("octo:p4ss:w\"rd"), None);
    let private = |container: Value, password: &str| {
        let login = json!({"username": "octo", "password": password, "serverUrl": "outside.test"});
        merge(container, json!({"registry": login}))
    };
    // The node retries the pull until the timeout.
    let impatient = NamespaceHook::with(&cluster, "[kubernetes]\nprepare-timeout = \"40s\"\n");
    let mut runner = impatient.runner("wrong");
    let job = private(runner.job_container("outside.test/private/job:1"), "wrong");
    let said = runner.call("prepare_job", json!({"container": job, "services": []})).failure();
    assert!(said.contains("outside.test/private/job:1"), "{said}");
    let rejected = registry.rejected.lock().unwrap().clone();
    assert!(rejected.contains(&authorization("octo:wrong")), "{rejected:?}: {said}");
    let mut runner = pods.runner("private");
    let job = runner.job_container("outside.test/private/job:1");
    let password = "p4ss:w\"rd";
    let service = merge(
        container("outside.test/private/service:1"),
        json!({"contextName": "private", "entryPoint": "sleep", "entryPointArgs": ["1000"]}),
    );
    runner.prepare(private(job, password), &[private(service, password)]);
    assert_eq!(runner.run("cat /private").success().stdout(), "for job\n");
    let step = json!({"image": "outside.test/private/step:1", "entryPoint": "cat",
        "entryPointArgs": ["/private"]});
    let (ended, _) = runner.container_step(private(step, password));
    assert_eq!(ended.success().stdout(), "for step\n");
    runner.cleanup();
    pods.check_gone("private");
}
