//! Who may publish, and where secrets go: to the registry and its token server, never into a log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks::image::RegistryOptions;
use serde_json::json;

use crate::setup::{Job, Ran};
use crate::support::http::{Response, Server};
use crate::support::program;
use crate::support::registry::{Auth, Options, Registry};

const PASSWORD: &str = "s3cr3t-of-the-job";

fn auth_config(registry: &str, password: &str) -> String {
    let auth = STANDARD.encode(format!("job:{password}"));
    json!({"auths": {registry: {"auth": auth}}}).to_string()
}

fn with_ci_login(registry: &str, password: &str) -> Job {
    let mut job = Job::new();
    for (name, value) in
        [("CI_REGISTRY", registry), ("CI_REGISTRY_USER", "job"), ("CI_REGISTRY_PASSWORD", password)]
    {
        job.vars.insert(name.to_owned(), value.to_owned());
    }
    job.build("1.0.0");
    job
}

/// Checks that nobody learns a secret from what a function wrote.
#[track_caller]
fn without_secrets(ran: Ran) -> Result<(), String> {
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
fn an_exported_login_comes_before_the_jobs_own() {
    let registry = Registry::start(Auth::Password("job", PASSWORD));
    let repository = format!("{}/group/function", registry.address());
    let address = registry.address();
    without_secrets(with_ci_login(&address, PASSWORD).publish(&repository)).unwrap();

    let mut job = with_ci_login(&address, "wrong");
    let error = without_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("the credentials that were given for it do not suffice"), "{error}");
    job.vars.insert("DOCKER_AUTH_CONFIG".to_owned(), auth_config(&address, "wrong"));
    without_secrets(job.publish(&repository)).unwrap_err();
    job.env.insert("DOCKER_AUTH_CONFIG".to_owned(), auth_config(&address, PASSWORD));
    without_secrets(job.publish(&repository)).unwrap();

    // One for another registry does not hide the job's own.
    let mut job = with_ci_login(&address, PASSWORD);
    job.env.insert("DOCKER_AUTH_CONFIG".to_owned(), auth_config("other.example.com", "wrong"));
    without_secrets(job.publish(&repository)).unwrap();
    job.env.insert("DOCKER_AUTH_CONFIG".to_owned(), format!("{{ {PASSWORD}"));
    let error = without_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("DOCKER_AUTH_CONFIG"), "{error}");
    let job = Job::new();
    job.build("1.0.0");
    let error = without_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("or give credentials for it"), "{error}");
}

#[test]
fn certificates_are_checked() {
    let data = program::repository("tests/data/registry");
    let (certificate, key) = (data.join("server.pem"), data.join("server.key"));
    let options = Options { tls: Some((&certificate, &key)) };
    let registry = Registry::start_with(Auth::Password("job", PASSWORD), options);
    let repository = format!("{}/group/function", registry.address());
    let mut job = with_ci_login(&registry.address(), PASSWORD);
    let mut options = RegistryOptions::default();
    options.ca_files = vec![data.join("authority.pem")];
    job.options.registries.insert(registry.address(), options);
    without_secrets(job.publish(&repository)).unwrap();

    let options = job.options.registries.get_mut(&registry.address()).unwrap();
    options.ca_files = vec![data.join("server.pem")];
    let error = without_secrets(job.publish(&repository)).unwrap_err();
    assert!(error.contains("add its CA certificate"), "{error}");
}

#[test]
fn tokens_are_asked_for_to_push_and_a_login_that_may_only_pull_is_named() {
    for may_push in [true, false] {
        let tokens = Server::start(|_| Response::ok(json!({"token": "t0ken"}).to_string()));
        let realm = format!("http://{}/token", tokens.address());
        let registry = Server::start(move |request| {
            let may_pull = request.header("authorization") == Some("Bearer t0ken");
            match request.method.as_str() {
                "GET" | "HEAD" if may_pull && request.path != "/v2/" => Response::status(404),
                _ if may_pull && may_push => crate::faults::accept(request),
                _ => Response::status(401)
                    .with("www-authenticate", format!("Bearer realm=\"{realm}\",service=\"s\"")),
            }
        });
        let job = with_ci_login(&registry.address(), PASSWORD);
        let result = without_secrets(job.publish(&format!("{}/a/b", registry.address())));
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
fn an_upload_elsewhere_gets_no_login() {
    let storage = Server::start(|_| Response::status(201));
    let target = format!("http://{}/put?signed=x", storage.address());
    let registry = Server::start(move |request| match request.header("authorization") {
        None => Response::status(401).with("www-authenticate", "Basic realm=\"x\""),
        Some(_) if request.method == "POST" => Response::status(202).with("location", &target),
        Some(_) => crate::faults::accept(request),
    });
    let job = with_ci_login(&registry.address(), PASSWORD);
    without_secrets(job.publish(&format!("{}/a/b", registry.address()))).unwrap();
    let requests = storage.requests();
    assert!(!requests.is_empty());
    for request in requests {
        assert_eq!(request.header("authorization"), None);
        assert!(request.path.starts_with("/put?signed=x&digest=sha256:"), "{}", request.path);
    }
}
