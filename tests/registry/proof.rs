//! Layers that are in the store become part of an image only if its registry gives them.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use oci_hooks::image::{Credentials, Digest, PullPolicy};
use serde_json::json;

use crate::setup::{Content, GZIP, Puller, archive, basic, chain, descriptor, gzip, login, read};
use crate::support::http::{Request, Response, Server};

/// Repositories of one registry: name, content, and the logins it is given to; none for everybody.
type Repositories = Arc<Mutex<Vec<(&'static str, Content, &'static [&'static str])>>>;

fn repositories(all: &[(&'static str, Content, &'static [&'static str])]) -> Repositories {
    Arc::new(Mutex::new(all.to_vec()))
}

/// Serves repositories. A user's password is the user's name.
fn registry(repositories: &Repositories) -> Server {
    let repositories = Arc::clone(repositories);
    Server::start(move |request| {
        let repositories = repositories.lock().unwrap();
        let of = |name: &str| request.path.starts_with(&format!("/v2/{name}/"));
        let Some((name, content, users)) = repositories.iter().find(|(name, ..)| of(name)) else {
            return Response::status(if request.path == "/v2/" { 200 } else { 404 });
        };
        let shown = request.header("authorization");
        if !users.is_empty() && !users.iter().any(|user| shown == Some(&*basic(user, user))) {
            return Response::status(401).with("www-authenticate", "Basic realm=\"x\"");
        }
        answer(name, content, request)
    })
}

fn answer(name: &str, content: &Content, request: &Request) -> Response {
    let mut request = request.clone();
    request.path = request.path.replace(&format!("/v2/{name}/"), "/v2/test/image/");
    content.answer(&request)
}

/// Returns an image that names a layer of another one, as a blob with this descriptor.
fn thief(victim: &Content, blob: &serde_json::Value) -> Content {
    let mut content = victim.clone();
    // Another image, or it would be the same by its digest.
    content.config.push(b'\n');
    content.manifest["config"] = descriptor(crate::setup::media_type::OCI_CONFIG, &content.config);
    content.manifest["layers"] = json!([blob]);
    content.layers = Vec::new();
    content
}

/// Returns the requests for a blob: method and whether there was a login.
fn asked(server: &Server, repository: &str, blob: &[u8]) -> Vec<(String, bool)> {
    let path = format!("/v2/{repository}/blobs/{}", Digest::of(blob));
    let requests = server.requests().into_iter().filter(|request| request.path == path);
    requests.map(|it| (it.method.clone(), it.header("authorization").is_some())).collect()
}

const ASKING: [PullPolicy; 3] = [PullPolicy::Always, PullPolicy::Newer, PullPolicy::Missing];

/// Pulls the victim's image with a login, and then another one without, by all policies; returns
/// what the last one said.
#[track_caller]
fn theft(blob: impl Fn(&Content) -> serde_json::Value) -> String {
    let victim = Content::new(&[b"secret"]);
    let repositories = repositories(&[
        ("victim/private", victim.clone(), &["a"]),
        ("test/image", thief(&victim, &blob(&victim)), &[]),
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
fn a_private_layer_is_not_given_to_an_image_that_names_it_with_a_blob_that_does_not_exist() {
    let nothing = descriptor(GZIP, b"nothing");
    let said = theft(|_| nothing.clone());
    let digest = Digest::of(b"nothing");
    assert!(
        said.contains(&format!("blob {digest} of test/image not found in 127.0.0.1")),
        "{said}"
    );
}

#[test]
fn a_private_layer_is_not_given_to_an_image_of_the_same_registry_that_names_its_blob() {
    let said = theft(|victim| victim.manifest["layers"][0].clone());
    assert!(said.contains("blob sha256:") && said.contains("not found in"), "{said}");
}

#[test]
fn a_private_layer_is_not_given_on_the_word_of_a_registry_that_does_not_have_it() {
    let victim = Content::new(&[b"secret"]);
    let server = registry(&repositories(&[("test/image", victim.clone(), &["a"])]));
    let puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull(&server.address()).unwrap();

    let blob = victim.manifest["layers"][0].clone();
    let content = thief(&victim, &blob);
    let layer = victim.layer_path(0);
    let length = blob["size"].to_string();
    for lie in [Response::status(404), Response::ok(vec![0; victim.layers[0].len()])] {
        let (content, layer, length) = (content.clone(), layer.clone(), length.clone());
        let liar = Server::start(move |request| match content.answer(request) {
            _ if request.path == layer && request.method == "HEAD" => {
                Response::status(200).with("content-length", &length)
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
fn a_private_layer_is_not_given_for_an_address_that_leads_to_its_registry() {
    let victim = Content::new(&[b"secret"]);
    let server = registry(&repositories(&[("test/image", victim.clone(), &["a"])]));
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull(&server.address()).unwrap();

    let mut blob = victim.manifest["layers"][0].clone();
    blob["urls"] = json!([format!("http://{}{}", server.address(), victim.layer_path(0))]);
    let thief = thief(&victim, &blob).serve();
    puller.options.foreign_layers = true;
    let said = chain(&puller.pull(&thief.address()).unwrap_err());
    assert!(said.contains("answered 401 to the request for foreign layer"), "{said}");
}

#[test]
fn bytes_from_elsewhere_do_not_make_a_layer_one_of_the_repository() {
    let content = Content::new(&[b"a"]);
    let elsewhere = content.serve();
    let mut blob = content.manifest["layers"][0].clone();
    blob["urls"] = json!([format!("http://{}{}", elsewhere.address(), content.layer_path(0))]);
    let server = thief(&content, &blob).serve();
    let mut puller = Puller::new();
    puller.options.foreign_layers = true;
    puller.pull(&server.address()).unwrap();
    assert_eq!(served(&puller), <[PathBuf; 0]>::default());
}

#[test]
fn another_repository_of_the_registry_is_asked_for_a_layer_with_the_login_once() {
    let (shared, own): (&[u8], &[u8]) = (b"shared", b"own");
    let all = repositories(&[
        ("team/a", Content::new(&[shared]), &["a"]),
        ("team/b", Content::new(&[shared, own]), &["b"]),
    ]);
    let server = registry(&all);
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull_image(&format!("{}/team/a", server.address())).unwrap();
    puller.credentials = login(&server.address(), "b", "b");
    let name = format!("{}/team/b", server.address());
    let image = puller.pull_image(&name).unwrap();
    assert_eq!(read(&image, 0), shared);
    let blob = gzip(&archive("0", shared));
    assert_eq!(asked(&server, "team/b", &blob), [("HEAD".to_owned(), true)]);
    assert_eq!(puller.seen.count("cached"), 1);

    all.lock().unwrap()[1].1 = Content::new(&[shared, b"new"]);
    puller.pull_image(&name).unwrap();
    assert_eq!(asked(&server, "team/b", &blob).len(), 1, "it is known by now");
    assert_eq!(puller.seen.count("cached"), 2);
}

#[test]
fn another_login_has_the_registry_asked_and_no_login_gets_nothing() {
    let shared: &[u8] = b"shared";
    let current = Arc::new(Mutex::new(Content::new(&[shared])));
    let blob = gzip(&archive("0", shared));
    // Manifests and configurations are public, layers are not.
    let server = Server::start({
        let (current, digest) = (Arc::clone(&current), Digest::of(&blob).to_string());
        move |request| {
            let shown = request.header("authorization");
            let is_known = ["a", "b"].iter().any(|user| shown == Some(&*basic(user, user)));
            if request.path.contains(&digest) && !is_known {
                return Response::status(401).with("www-authenticate", "Basic realm=\"x\"");
            }
            current.lock().unwrap().answer(request)
        }
    });
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    puller.pull(&server.address()).unwrap();
    *current.lock().unwrap() = Content::new(&[shared, b"1"]);
    puller.credentials = Credentials::default();
    for policy in ASKING {
        puller.policy = policy;
        let said = chain(&puller.pull(&server.address()).unwrap_err());
        assert!(said.contains("authentication required for"), "{said}");
    }
    puller.credentials = login(&server.address(), "b", "b");
    let before = asked(&server, "test/image", &blob).len();
    puller.pull(&server.address()).unwrap();
    let asked = asked(&server, "test/image", &blob).split_off(before);
    assert_eq!(asked, [("HEAD".to_owned(), false), ("HEAD".to_owned(), true)]);
}

#[test]
fn what_is_known_costs_no_request() {
    let current = repositories(&[("test/image", Content::new(&[b"a", b"b"]), &[])]);
    let server = registry(&current);
    let puller = Puller::new();
    puller.pull(&server.address()).unwrap();
    let count = || server.requests().iter().filter(|it| it.path != "/v2/").count();
    let before = count();
    puller.pull(&server.address()).unwrap();
    assert_eq!(count() - before, 1, "the manifest");
    current.lock().unwrap()[0].1 = Content::new(&[b"a", b"b", b"c"]);
    let before = count();
    puller.pull(&server.address()).unwrap();
    assert_eq!(count() - before, 3, "manifest, configuration and the new layer");
    assert_eq!(puller.seen.count("cached"), 2);
}

/// Returns the records of the layers in a store.
fn served(puller: &Puller) -> Vec<PathBuf> {
    let layers = puller.store().options().root.join("layers");
    let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().map(|it| it.unwrap().path());
    list(layers).flat_map(|layer| list(layer.join("served"))).collect()
}

#[test]
fn layers_of_an_earlier_version_or_with_damaged_records_are_fetched_and_known_then() {
    let current = repositories(&[("test/image", Content::new(&[b"a"]), &[])]);
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
        served(&puller).iter().for_each(spoil);
        // The same image is there as it was.
        let before = asked(&server, "test/image", &blob).len();
        puller.pull(&server.address()).unwrap();
        assert_eq!(asked(&server, "test/image", &blob).len(), before);
        for (round, expected) in [(0, 1), (1, 0)] {
            let before = asked(&server, "test/image", &blob).len();
            let other = format!("{at} {round}");
            current.lock().unwrap()[0].1 = Content::new(&[b"a", other.as_bytes()]);
            let pulled = puller.pull(&server.address()).unwrap();
            assert_eq!(pulled.layers[0], image.layers[0]);
            assert_eq!(asked(&server, "test/image", &blob).len() - before, expected);
        }
    }
}

#[test]
fn many_pulls_at_once_are_all_known_afterwards() {
    const NAMES: [&str; 6] = ["x/0", "x/1", "x/2", "x/3", "x/4", "x/5"];
    let all: Vec<_> =
        NAMES.iter().map(|name| (*name, Content::new(&[b"shared"]), &[] as &[&str])).collect();
    let server = registry(&repositories(&all));
    let puller = Puller::new();
    thread::scope(|scope| {
        for name in NAMES.iter().chain(&NAMES) {
            let (puller, name) = (&puller, format!("{}/{name}", server.address()));
            scope.spawn(move || puller.pull_beside_others(&name).unwrap());
        }
    });
    assert_eq!(puller.layers(), 1);
    assert_eq!(served(&puller).len(), NAMES.len());
    // Some of them waited for others and asked, but nobody left anything.
    puller.pull_image(&format!("{}/x/0", server.address())).unwrap();
}

#[test]
fn records_of_a_layer_do_not_grow_without_end() {
    let all = repositories(&[("test/image", Content::new(&[b"a"]), &["a"])]);
    let server = Server::start({
        let all = Arc::clone(&all);
        move |request| match request.header("authorization") {
            None => Response::status(401).with("www-authenticate", "Basic realm=\"x\""),
            Some(_) => all.lock().unwrap()[0].1.answer(request),
        }
    });
    let mut puller = Puller::new();
    for job in 0..70 {
        let user = job.to_string();
        puller.credentials = login(&server.address(), &user, &user);
        all.lock().unwrap()[0].1 = Content::new(&[b"a", user.as_bytes()]);
        puller.pull(&server.address()).unwrap();
    }
    let most = served(&puller).iter().filter_map(|record| record.parent()).fold(
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
fn a_registry_that_cannot_be_asked_leaves_the_public_image_that_is_there() {
    let down = Arc::new(Mutex::new(false));
    let old = Content::new(&[b"old"]);
    let current = Arc::new(Mutex::new(old.clone()));
    let shared = Content::new(&[b"shared"]);
    let server = Server::start({
        let (down, current, shared) = (Arc::clone(&down), Arc::clone(&current), shared.clone());
        move |request| {
            if request.method == "HEAD" && request.path != "/v2/" && *down.lock().unwrap() {
                return Response::status(503);
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
    // The new image has a layer that is known of another repository only.
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
