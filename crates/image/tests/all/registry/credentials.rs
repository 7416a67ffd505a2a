//! Credentials are sent to the right servers only.

use std::sync::{Arc, OnceLock};

use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::registry::{RegistryAuth, RegistryConfig, TestRegistry};
use serde_json::json;

use crate::registry::setup::{MockImage, Puller, basic, chain};

/// Serves an image to users with the password `secret`.
fn serve_private(content: &MockImage) -> WebServer {
    let content = content.clone();
    WebServer::start(move |request| match request.header("authorization") {
        Some(value) if value == basic("user", "secret") => content.answer(request),
        _ => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
    })
}

fn count_authorized(requests: &[WebRequest]) -> usize {
    requests.iter().filter(|request| request.header("authorization").is_some()).count()
}

#[test]
fn password_is_sent_only_on_request_and_to_its_registry() {
    let content = MockImage::new(&[b"a"]);
    let server = serve_private(&content);
    Puller::with_login(&server.address(), "user", "secret").pull(&server.address()).unwrap();
    assert_eq!(server.requests()[0].header("authorization"), None);
    for other in ["127.0.0.1", "127.0.0.1:1", "localhost", "docker.io"] {
        let error = Puller::with_login(other, "user", "secret").pull(&server.address());
        let error = chain(&error.unwrap_err());
        assert!(error.contains("authentication required for"), "{error}");
        assert!(error.contains("or give credentials for the registry"), "{error}");
    }
    let error = Puller::with_login(&server.address(), "user", "wrong").pull(&server.address());
    let error = chain(&error.unwrap_err());
    assert!(error.contains("do not suffice") && !error.contains("wrong"), "{error}");
}

#[test]
fn redirect_to_another_host_or_port_drops_authorization() {
    let content = MockImage::new(&[b"a"]);
    let storage = content.serve();
    for host in ["127.0.0.1", "localhost"] {
        let target = format!("{host}:{}", storage.port());
        let (first, layer) = (content.clone(), content.layer_path(0));
        let server = WebServer::start(move |request| match request.header("authorization") {
            None => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
            Some(_) if request.path == layer => {
                WebResponse::redirect(format!("http://{target}{layer}"))
            }
            Some(_) => first.answer(request),
        });
        Puller::with_login(&server.address(), "user", "secret").pull(&server.address()).unwrap();
        assert!(count_authorized(&server.requests()) >= 3);
    }
    let requests = storage.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(count_authorized(&requests), 0, "{requests:?}");
}

#[test]
fn second_redirect_does_not_restore_authorization() {
    let content = MockImage::new(&[b"a"]);
    let home = Arc::new(OnceLock::new());
    let bounce = WebServer::start({
        let home = Arc::clone(&home);
        move |_| WebResponse::redirect(format!("http://{}/stolen", home.get().unwrap()))
    });
    let (first, layer) = (content.clone(), content.layer_path(0));
    let away = format!("http://{}/", bounce.address());
    let server = WebServer::start(move |request| match request.header("authorization") {
        _ if request.path == "/stolen" => WebResponse::ok(first.layers[0].clone()),
        None => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
        Some(_) if request.path == layer => WebResponse::redirect(&away),
        Some(_) => first.answer(request),
    });
    home.set(server.address()).unwrap();
    Puller::with_login(&server.address(), "user", "secret").pull(&server.address()).unwrap();
    let requests = server.requests();
    let stolen = requests.iter().find(|request| request.path == "/stolen").unwrap();
    assert_eq!(stolen.header("authorization"), None);
    assert_eq!(count_authorized(&bounce.requests()), 0);
}

#[test]
fn redirect_within_the_registry_keeps_authorization() {
    let content = MockImage::new(&[b"a"]);
    let (first, layer) = (content.clone(), content.layer_path(0));
    let server = WebServer::start(move |request| match request.header("authorization") {
        None => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
        Some(_) if request.path == layer => WebResponse::redirect("/moved"),
        Some(_) if request.path == "/moved" => WebResponse::ok(first.layers[0].clone()),
        Some(_) => first.answer(request),
    });
    Puller::with_login(&server.address(), "user", "secret").pull(&server.address()).unwrap();
}

#[test]
fn invalid_redirects_are_rejected() {
    let content = MockImage::new(&[b"a"]);
    for (location, message) in [
        ("/v2/test/image/manifests/latest", "too many redirects"),
        ("ftp://127.0.0.1/", "without a user name or password"),
        ("http://user:pw@127.0.0.1/", "without a user name or password"),
        ("http://169.254.169.254/latest/meta-data", "has the internal address 169.254.169.254"),
    ] {
        let content = content.clone();
        let server = WebServer::start(move |request| match request.path.as_str() {
            "/v2/test/image/manifests/latest" => WebResponse::redirect(location),
            _ => content.answer(request),
        });
        let error = chain(&Puller::new().pull(&server.address()).unwrap_err());
        assert!(error.contains(message), "{location}: {error}");
    }
}

/// Serves an image to users with the token `token` from the token server `realm`.
fn serve_with_tokens(content: &MockImage, realm: String) -> WebServer {
    let content = content.clone();
    WebServer::start(move |request| match request.header("authorization") {
        Some("Bearer token") => content.answer(request),
        _ => WebResponse::status(401).with(
            "www-authenticate",
            format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"repository:other:push\""),
        ),
    })
}

#[test]
fn token_is_fetched_once_and_only_for_reading() {
    let tokens = WebServer::start(|_| WebResponse::ok(json!({"token": "token"}).to_string()));
    let realm = format!("http://{}/token?a=b", tokens.address());
    let server = serve_with_tokens(&MockImage::new(&[b"a", b"b", b"c", b"d", b"e"]), realm);
    Puller::with_login(&server.address(), "user", "secret").pull(&server.address()).unwrap();
    let requests = tokens.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].path, "/token?a=b&service=s&scope=repository:test/image:pull");
    assert_eq!(requests[0].header("authorization"), Some(&*basic("user", "secret")));
    assert!(server.requests().iter().all(|request| {
        request.header("authorization").is_none_or(|value| value == "Bearer token")
    }));
}

#[test]
fn a_realm_at_a_metadata_address_is_rejected() {
    for realm in [
        "http://169.254.169.254/latest/api/token",
        "https://169.254.169.254/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "http://0.0.0.0:1/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
    ] {
        let server = serve_with_tokens(&MockImage::new(&[b"a"]), realm.to_owned());
        let puller = Puller::with_login(&server.address(), "user", "secret");
        let error = chain(&puller.pull(&server.address()).unwrap_err());
        assert!(error.contains("only a registry at this address may do so"), "{realm}: {error}");
    }
}

#[test]
fn a_realm_without_tls_is_rejected_if_the_registry_has_it() {
    let tokens = WebServer::start(|_| WebResponse::ok(json!({"token": "token"}).to_string()));
    let realm = format!("http://{}/token", tokens.address());
    let data = program::repository("crates/testsupport/data/registry");
    let (certificate, key) = (data.join("server.pem"), data.join("server.key"));
    let options = RegistryConfig { tls: Some((&certificate, &key)) };
    let registry = TestRegistry::start_with(RegistryAuth::Token(&realm), options);
    let mut puller = Puller::with_login(&registry.address(), "user", "secret");
    for ca_files in [Vec::new(), vec![data.join("authority.pem")]] {
        puller.options.registries.entry(registry.address()).or_default().ca_files = ca_files;
        let error = chain(&puller.pull(&registry.address()).unwrap_err());
        assert!(error.contains("it is not encrypted, but the registry is"), "{error}");
    }
    assert!(tokens.requests().is_empty());
}

#[test]
fn realms_without_a_valid_address_or_token_are_rejected() {
    let broken = WebServer::start(|_| WebResponse::ok("{}"));
    let spaced = WebServer::start(|_| WebResponse::ok(json!({"token": "a\r\nb: c"}).to_string()));
    let huge = WebServer::start(|_| WebResponse::ok(" ".repeat(2 << 20)));
    for (realm, message) in [
        ("nonsense", "expected an http or https URL"),
        ("file:///etc/passwd", "expected an http or https URL"),
        ("http://user@127.0.0.1/", "expected an http or https URL"),
        (&format!("http://{}/", broken.address()), "no token in its response"),
        (&format!("http://{}/", spaced.address()), "no token in its response"),
        (&format!("http://{}/", huge.address()), ""),
    ] {
        let server = serve_with_tokens(&MockImage::new(&[b"a"]), realm.to_owned());
        let error = chain(&Puller::new().pull(&server.address()).unwrap_err());
        assert!(error.contains(message), "{realm}: {error}");
    }
}

#[test]
fn foreign_layers_never_get_credentials() {
    let mut content = MockImage::new(&[b"a"]);
    let elsewhere = {
        let layer = content.layers[0].clone();
        WebServer::start(move |_| WebResponse::ok(layer.clone()))
    };
    content.manifest["layers"][0]["urls"] = json!([format!("http://{}/f", elsewhere.address())]);
    let layer = content.layer_path(0);
    let hidden = content.clone();
    let server = WebServer::start(move |request| match request.header("authorization") {
        None => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
        Some(_) if request.path == layer => WebResponse::status(404),
        Some(_) => hidden.answer(request),
    });
    let mut puller = Puller::with_login(&server.address(), "user", "secret");
    let error = chain(&puller.pull(&server.address()).unwrap_err());
    assert!(error.contains("from which it is not fetched: push the image"), "{error}");
    assert!(elsewhere.requests().is_empty());

    puller.options.foreign_layers = true;
    puller.pull(&server.address()).unwrap();
    assert_eq!(elsewhere.requests().len(), 1);
    assert_eq!(count_authorized(&elsewhere.requests()), 0);
}

#[test]
fn a_foreign_layer_is_not_fetched_from_a_metadata_address() {
    let mut content = MockImage::new(&[b"a"]);
    content.manifest["layers"][0]["urls"] = json!(["http://169.254.169.254/latest/meta-data"]);
    let layer = content.layer_path(0);
    let server = WebServer::start(move |request| {
        if request.path == layer { WebResponse::status(404) } else { content.answer(request) }
    });
    let mut puller = Puller::new();
    puller.options.foreign_layers = true;
    let error = chain(&puller.pull(&server.address()).unwrap_err());
    assert!(error.contains("has the internal address 169.254.169.254"), "{error}");
}
