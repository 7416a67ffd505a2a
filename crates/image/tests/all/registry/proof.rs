//! Stored layers become part of an image only if its registry serves them.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use oci_hooks_image::{Credentials, Digest, PullPolicy};
use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use serde_json::json;

use crate::registry::setup::{
    GZIP, MockImage, Puller, archive, basic, chain, descriptor, gzip, login, read,
};

/// Repositories of one registry: name, content, and the logins with access; public if empty.
type SharedRepositories = Arc<Mutex<Vec<(&'static str, MockImage, &'static [&'static str])>>>;

fn repositories(all: &[(&'static str, MockImage, &'static [&'static str])]) -> SharedRepositories {
    Arc::new(Mutex::new(all.to_vec()))
}

/// Serves repositories. A user's password is the user's name.
fn registry(repositories: &SharedRepositories) -> WebServer {
    let repositories = Arc::clone(repositories);
    WebServer::start(move |request| {
        let repositories = repositories.lock().unwrap();
        let of = |name: &str| request.path.starts_with(&format!("/v2/{name}/"));
        let Some((name, content, users)) = repositories.iter().find(|(name, ..)| of(name)) else {
            return WebResponse::status(if request.path == "/v2/" { 200 } else { 404 });
        };
        let shown = request.header("authorization");
        if !users.is_empty() && !users.iter().any(|user| shown == Some(&*basic(user, user))) {
            return WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\"");
        }
        answer(name, content, request)
    })
}

fn answer(name: &str, content: &MockImage, request: &WebRequest) -> WebResponse {
    let mut request = request.clone();
    request.path = request.path.replace(&format!("/v2/{name}/"), "/v2/test/image/");
    content.answer(&request)
}

/// Returns an image that names a layer of another image, as a blob with this descriptor.
fn stealing_image(victim: &MockImage, blob: &serde_json::Value) -> MockImage {
    let mut content = victim.clone();
    // Makes the image's digest differ from the other image's.
    content.config.push(b'\n');
    content.manifest["config"] =
        descriptor(crate::registry::setup::media_type::OCI_CONFIG, &content.config);
    content.manifest["layers"] = json!([blob]);
    content.layers = Vec::new();
    content
}

/// Returns the method of each request for a blob, with true if it had a login.
fn blob_requests(server: &WebServer, repository: &str, blob: &[u8]) -> Vec<(String, bool)> {
    let path = format!("/v2/{repository}/blobs/{}", Digest::of(blob));
    let requests = server.requests().into_iter().filter(|request| request.path == path);
    requests.map(|it| (it.method.clone(), it.header("authorization").is_some())).collect()
}

const ASKING: [PullPolicy; 3] = [PullPolicy::Always, PullPolicy::Newer, PullPolicy::Missing];

/// Pulls the victim's image with a login, then the thief's without that login, by all policies;
/// returns the last error.
#[track_caller]
fn attempt_theft(blob: impl Fn(&MockImage) -> serde_json::Value) -> String {
    let victim = MockImage::new(&[b"secret"]);
    let repositories = repositories(&[
        ("victim/private", victim.clone(), &["a"]),
        ("test/image", stealing_image(&victim, &blob(&victim)), &[]),
    ]);
    let server = registry(&repositories);
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull_image(&format!("{}/victim/private", server.address())).unwrap();
    let mut said = String::new();
    for credentials in [Credentials::default(), login(&server.address(), "b", "b")] {
        puller.credentials = credentials;
        for policy in ASKING {
            puller.policy = policy;
            said = chain(&puller.pull(&server.address()).unwrap_err());
        }
    }
    puller.policy = PullPolicy::Never;
    puller.pull(&server.address()).unwrap_err();
    said
}

#[test]
fn private_layer_is_not_given_for_a_nonexistent_blob() {
    let nothing = descriptor(GZIP, b"nothing");
    let said = attempt_theft(|_| nothing.clone());
    let digest = Digest::of(b"nothing");
    assert!(
        said.contains(&format!("blob {digest} of test/image not found in 127.0.0.1")),
        "{said}"
    );
}

#[test]
fn private_layer_is_not_given_for_a_blob_of_another_repository() {
    let said = attempt_theft(|victim| victim.manifest["layers"][0].clone());
    assert!(said.contains("blob sha256:") && said.contains("not found in"), "{said}");
}

#[test]
fn private_layer_is_not_given_for_a_false_claim_of_a_registry() {
    let victim = MockImage::new(&[b"secret"]);
    let server = registry(&repositories(&[("test/image", victim.clone(), &["a"])]));
    let puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull(&server.address()).unwrap();

    let blob = victim.manifest["layers"][0].clone();
    let content = stealing_image(&victim, &blob);
    let layer = victim.layer_path(0);
    let length = blob["size"].to_string();
    for lie in [WebResponse::status(404), WebResponse::ok(vec![0; victim.layers[0].len()])] {
        let (content, layer, length) = (content.clone(), layer.clone(), length.clone());
        let liar = WebServer::start(move |request| match content.answer(request) {
            _ if request.path == layer && request.method == "HEAD" => {
                WebResponse::status(200).with("content-length", &length)
            }
            _ if request.path == layer => lie.clone(),
            answer => answer,
        });
        let said = chain(&puller.pull(&liar.address()).unwrap_err());
        let is_known = said.contains("not found in") || said.contains("digest mismatch for");
        assert!(is_known, "{said}");
    }
}

#[test]
fn private_layer_is_not_given_for_a_redirect_to_its_registry() {
    let victim = MockImage::new(&[b"secret"]);
    let server = registry(&repositories(&[("test/image", victim.clone(), &["a"])]));
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull(&server.address()).unwrap();

    let mut blob = victim.manifest["layers"][0].clone();
    blob["urls"] = json!([format!("http://{}{}", server.address(), victim.layer_path(0))]);
    let thief = stealing_image(&victim, &blob).serve();
    puller.options.foreign_layers = true;
    let said = chain(&puller.pull(&thief.address()).unwrap_err());
    assert!(said.contains("answered 401 to the request for foreign layer"), "{said}");
}

#[test]
fn bytes_from_elsewhere_do_not_prove_a_layer_of_the_repository() {
    let content = MockImage::new(&[b"a"]);
    let elsewhere = content.serve();
    let mut blob = content.manifest["layers"][0].clone();
    blob["urls"] = json!([format!("http://{}{}", elsewhere.address(), content.layer_path(0))]);
    let server = stealing_image(&content, &blob).serve();
    let mut puller = Puller::new();
    puller.options.foreign_layers = true;
    puller.pull(&server.address()).unwrap();
    assert_eq!(layer_records(&puller), <[PathBuf; 0]>::default());
}

#[test]
fn other_repository_is_asked_once_with_the_login() {
    let (shared, own): (&[u8], &[u8]) = (b"shared", b"own");
    let all = repositories(&[
        ("team/a", MockImage::new(&[shared]), &["a"]),
        ("team/b", MockImage::new(&[shared, own]), &["b"]),
    ]);
    let server = registry(&all);
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull_image(&format!("{}/team/a", server.address())).unwrap();
    puller.credentials = login(&server.address(), "b", "b");
    let name = format!("{}/team/b", server.address());
    let image = puller.pull_image(&name).unwrap();
    assert_eq!(read(&image, 0), shared);
    let blob = gzip(&archive("0", shared));
    assert_eq!(blob_requests(&server, "team/b", &blob), [("HEAD".to_owned(), true)]);
    assert_eq!(puller.seen.count("cached"), 1);

    all.lock().unwrap()[1].1 = MockImage::new(&[shared, b"new"]);
    puller.pull_image(&name).unwrap();
    assert_eq!(blob_requests(&server, "team/b", &blob).len(), 1, "it is known by now");
    assert_eq!(puller.seen.count("cached"), 2);
}

#[test]
fn another_login_asks_the_registry_and_no_login_gets_nothing() {
    let shared: &[u8] = b"shared";
    let current = Arc::new(Mutex::new(MockImage::new(&[shared])));
    let blob = gzip(&archive("0", shared));
    // Manifests and configurations are public, layers are not.
    let server = WebServer::start({
        let (current, digest) = (Arc::clone(&current), Digest::of(&blob).to_string());
        move |request| {
            let shown = request.header("authorization");
            let is_known = ["a", "b"].iter().any(|user| shown == Some(&*basic(user, user)));
            if request.path.contains(&digest) && !is_known {
                return WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\"");
            }
            current.lock().unwrap().answer(request)
        }
    });
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull(&server.address()).unwrap();
    *current.lock().unwrap() = MockImage::new(&[shared, b"1"]);
    puller.credentials = Credentials::default();
    for policy in ASKING {
        puller.policy = policy;
        let said = chain(&puller.pull(&server.address()).unwrap_err());
        assert!(said.contains("authentication required for"), "{said}");
    }
    puller.credentials = login(&server.address(), "b", "b");
    let before = blob_requests(&server, "test/image", &blob).len();
    puller.pull(&server.address()).unwrap();
    let asked = blob_requests(&server, "test/image", &blob).split_off(before);
    assert_eq!(asked, [("HEAD".to_owned(), false), ("HEAD".to_owned(), true)]);
}

#[test]
fn known_image_needs_no_request() {
    let current = repositories(&[("test/image", MockImage::new(&[b"a", b"b"]), &[])]);
    let server = registry(&current);
    let puller = Puller::new();
    puller.pull(&server.address()).unwrap();
    let count = || server.requests().iter().filter(|it| it.path != "/v2/").count();
    let before = count();
    puller.pull(&server.address()).unwrap();
    assert_eq!(count() - before, 1, "the manifest");
    current.lock().unwrap()[0].1 = MockImage::new(&[b"a", b"b", b"c"]);
    let before = count();
    puller.pull(&server.address()).unwrap();
    assert_eq!(count() - before, 3, "manifest, configuration and the new layer");
    assert_eq!(puller.seen.count("cached"), 2);
}

/// Returns the records of the layers in a store.
fn layer_records(puller: &Puller) -> Vec<PathBuf> {
    let layers = puller.store().options().root.join("layers");
    let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().map(|it| it.unwrap().path());
    list(layers).flat_map(|layer| list(layer.join("served"))).collect()
}

#[test]
fn unproven_layers_are_fetched_again_and_then_known() {
    let current = repositories(&[("test/image", MockImage::new(&[b"a"]), &[])]);
    let server = registry(&current);
    let puller = Puller::new();
    let blob = gzip(&archive("0", b"a"));
    let image = puller.pull(&server.address()).unwrap();
    let spoil: [&dyn Fn(&PathBuf); 5] = [
        &|record| fs::remove_dir_all(record.parent().unwrap()).unwrap(),
        &|record| fs::write(record, "").unwrap(),
        &|record| fs::write(record, b"{\"blob\":\"sha256:../x\",\"registry\":7}\xff").unwrap(),
        &|record| fs::write(record, "[".repeat(1 << 20)).unwrap(),
        &|record| {
            fs::remove_file(record).unwrap();
            fs::create_dir(record).unwrap();
        },
    ];
    for (at, spoil) in spoil.iter().enumerate() {
        layer_records(&puller).iter().for_each(spoil);
        // The original image is still in the store.
        let before = blob_requests(&server, "test/image", &blob).len();
        puller.pull(&server.address()).unwrap();
        assert_eq!(blob_requests(&server, "test/image", &blob).len(), before);
        for (round, expected) in [(0, 1), (1, 0)] {
            let before = blob_requests(&server, "test/image", &blob).len();
            let other = format!("{at} {round}");
            current.lock().unwrap()[0].1 = MockImage::new(&[b"a", other.as_bytes()]);
            let pulled = puller.pull(&server.address()).unwrap();
            assert_eq!(pulled.layers[0], image.layers[0]);
            assert_eq!(blob_requests(&server, "test/image", &blob).len() - before, expected);
        }
    }
}

#[test]
fn concurrent_pulls_are_all_recorded() {
    const NAMES: [&str; 6] = ["x/0", "x/1", "x/2", "x/3", "x/4", "x/5"];
    let all: Vec<_> =
        NAMES.iter().map(|name| (*name, MockImage::new(&[b"shared"]), &[] as &[&str])).collect();
    let server = registry(&repositories(&all));
    let puller = Puller::new();
    thread::scope(|scope| {
        for name in NAMES.iter().chain(&NAMES) {
            let (puller, name) = (&puller, format!("{}/{name}", server.address()));
            scope.spawn(move || puller.pull_beside_others(&name).unwrap());
        }
    });
    assert_eq!(puller.layers(), 1);
    assert_eq!(layer_records(&puller).len(), NAMES.len());
    // Some of them waited and asked the registry, but nothing is left behind.
    puller.pull_image(&format!("{}/x/0", server.address())).unwrap();
}

#[test]
fn layer_records_have_a_limited_size() {
    let all = repositories(&[("test/image", MockImage::new(&[b"a"]), &["a"])]);
    let server = WebServer::start({
        let all = Arc::clone(&all);
        move |request| match request.header("authorization") {
            None => WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\""),
            Some(_) => all.lock().unwrap()[0].1.answer(request),
        }
    });
    let mut puller = Puller::new();
    for job in 0..70 {
        let user = job.to_string();
        puller.credentials = login(&server.address(), &user, &user);
        all.lock().unwrap()[0].1 = MockImage::new(&[b"a", user.as_bytes()]);
        puller.pull(&server.address()).unwrap();
    }
    let most = layer_records(&puller).iter().filter_map(|record| record.parent()).fold(
        std::collections::BTreeMap::<_, usize>::new(),
        |mut counts, layer| {
            *counts.entry(layer.to_owned()).or_default() += 1;
            counts
        },
    );
    assert_eq!(most.values().max(), Some(&64));
    assert_eq!(puller.seen.count("cached"), 69);
}

#[test]
fn public_image_is_used_if_the_registry_is_unreachable() {
    let down = Arc::new(Mutex::new(false));
    let old = MockImage::new(&[b"old"]);
    let current = Arc::new(Mutex::new(old.clone()));
    let shared = MockImage::new(&[b"shared"]);
    let server = WebServer::start({
        let (down, current, shared) = (Arc::clone(&down), Arc::clone(&current), shared.clone());
        move |request| {
            if request.method == "HEAD" && request.path != "/v2/" && *down.lock().unwrap() {
                return WebResponse::status(503);
            }
            if request.path.starts_with("/v2/other/image/") {
                return answer("other/image", &shared, request);
            }
            current.lock().unwrap().answer(request)
        }
    });
    let mut puller = Puller::new();
    puller.pull(&server.address()).unwrap();
    puller.pull_image(&format!("{}/other/image", server.address())).unwrap();
    // The new image has a layer that is known only from another repository.
    *current.lock().unwrap() = shared;
    *down.lock().unwrap() = true;
    puller.policy = PullPolicy::Newer;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    puller.policy = PullPolicy::Always;
    let said = chain(&puller.pull(&server.address()).unwrap_err());
    assert!(said.contains("answered 503 to the request for blob"), "{said}");
    *down.lock().unwrap() = false;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"shared");
}
