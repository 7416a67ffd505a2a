//! Logins for publishing. Secrets are sent only to the registry and its token server, and never logged.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_image::RegistryOptions;
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::registry::{RegistryAuth, RegistryConfig, TestRegistry};
use serde_json::json;

use crate::functions::setup::{FunctionJob, FunctionRun};

const PASSWORD: &str = "s3cr3t-of-the-job";

fn auth_config(registry: &str, password: &str) -> String {
    let auth = STANDARD.encode(format!("job:{password}"));
    json!({"auths": {registry: {"auth": auth}}}).to_string()
}

fn with_ci_login(registry: &str, password: &str) -> FunctionJob {
    let mut job = FunctionJob::new();
    for (name, value) in
        [("CI_REGISTRY", registry), ("CI_REGISTRY_USER", "job"), ("CI_REGISTRY_PASSWORD", password)]
    {
        job.vars.insert(name.to_owned(), value.to_owned());
    }
    job.build("1.0.0");
    job
}

/// Checks that a function's output contains no secret.
#[track_caller]
fn check_no_secrets(ran: FunctionRun) -> Result<(), String> {
    let said = match &ran.result {
        Ok(outputs) => format!("{} {outputs:?}", ran.log),
        Err(error) => format!("{} {error:?}", ran.log),
    };
    for secret in [PASSWORD, "wrong", &STANDARD.encode(format!("job:{PASSWORD}")), "t0ken"] {
        assert!(!said.contains(secret), "{said}");
    }
    match ran.result.is_ok() {
        true => Ok(()),
        false => Err(ran.failure()),
    }
}

#[test]
fn exported_login_precedes_the_jobs_own() {
    let registry = TestRegistry::start(RegistryAuth::Password("job", PASSWORD));
    let repository = format!("{}/group/function", registry.address());
    let address = registry.address();
    check_no_secrets(with_ci_login(&address, PASSWORD).publish(&repository)).unwrap();

    let mut job = with_ci_login(&address, "wrong");
    let error = check_no_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("the given credentials do not suffice"), "{error}");
    job.vars.insert("DOCKER_AUTH_CONFIG".to_owned(), auth_config(&address, "wrong"));
    check_no_secrets(job.publish(&repository)).unwrap_err();
    job.env.insert("DOCKER_AUTH_CONFIG".to_owned(), auth_config(&address, PASSWORD));
    check_no_secrets(job.publish(&repository)).unwrap();

    // A login for another registry does not hide the job's own.
    let mut job = with_ci_login(&address, PASSWORD);
    job.env.insert("DOCKER_AUTH_CONFIG".to_owned(), auth_config("other.example.com", "wrong"));
    check_no_secrets(job.publish(&repository)).unwrap();
    job.env.insert("DOCKER_AUTH_CONFIG".to_owned(), format!("{{ {PASSWORD}"));
    let error = check_no_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("DOCKER_AUTH_CONFIG"), "{error}");
    let job = FunctionJob::new();
    job.build("1.0.0");
    let error = check_no_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("or give credentials for the registry"), "{error}");
}

#[test]
fn certificates_are_checked() {
    let data = program::repository("crates/testsupport/data/registry");
    let (certificate, key) = (data.join("server.pem"), data.join("server.key"));
    let options = RegistryConfig { tls: Some((&certificate, &key)) };
    let registry = TestRegistry::start_with(RegistryAuth::Password("job", PASSWORD), options);
    let repository = format!("{}/group/function", registry.address());
    let mut job = with_ci_login(&registry.address(), PASSWORD);
    let options = RegistryOptions {
        ca_files: vec![data.join("authority.pem")],
        ..RegistryOptions::default()
    };
    job.options.registries.insert(registry.address(), options);
    check_no_secrets(job.publish(&repository)).unwrap();

    let options = job.options.registries.get_mut(&registry.address()).unwrap();
    options.ca_files = vec![data.join("server.pem")];
    let error = check_no_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("cannot trust the certificate of "), "{error}");
}

#[test]
fn push_tokens_are_requested_and_pull_only_logins_reported() {
    for may_push in [true, false] {
        let tokens = WebServer::start(|_| WebResponse::ok(json!({"token": "t0ken"}).to_string()));
        let realm = format!("http://{}/token", tokens.address());
        let registry = WebServer::start(move |request| {
            let may_pull = request.header("authorization") == Some("Bearer t0ken");
            match request.method.as_str() {
                "GET" | "HEAD" if may_pull && request.path != "/v2/" => WebResponse::status(404),
                _ if may_pull && may_push => crate::functions::faults::accept(request),
                _ => WebResponse::status(401)
                    .with("www-authenticate", format!("Bearer realm=\"{realm}\",service=\"s\"")),
            }
        });
        let job = with_ci_login(&registry.address(), PASSWORD);
        let result = check_no_secrets(job.publish(&format!("{}/a/b", registry.address())));
        let requests = tokens.requests();
        for request in &requests {
            assert_eq!(request.path, "/token?service=s&scope=repository:a/b:pull%2Cpush");
        }
        match may_push {
            true => {
                result.unwrap();
                assert_eq!(requests.len(), 1);
            }
            false => {
                let error = result.unwrap_err();
                assert!(error.contains("authentication required for a/b"), "{error}");
            }
        }
    }
}

#[test]
fn upload_to_another_host_gets_no_login() {
    let storage = WebServer::start(|_| WebResponse::status(201));
    let target = format!("http://{}/put?signed=x", storage.address());
    let registry = WebServer::start(move |request| match request.header("authorization") {
        None => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
        Some(_) if request.method == "POST" => WebResponse::status(202).with("location", &target),
        Some(_) => crate::functions::faults::accept(request),
    });
    let job = with_ci_login(&registry.address(), PASSWORD);
    check_no_secrets(job.publish(&format!("{}/a/b", registry.address()))).unwrap();
    let requests = storage.requests();
    assert!(!requests.is_empty());
    for request in requests {
        assert_eq!(request.header("authorization"), None);
        assert!(request.path.starts_with("/put?signed=x&digest=sha256:"), "{}", request.path);
    }
}
