//! Use of images in the store, and access to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oci_hooks_image::{Credentials, PrunePolicy, PullError, PullPolicy};
use oci_hooks_testsupport::http::{WebResponse, WebServer};

use crate::registry::setup::{MockImage, Puller, basic, chain, login, random_bytes, read};

#[test]
fn moved_tag_is_detected() {
    let current = Arc::new(Mutex::new(MockImage::new(&[b"old"])));
    let server = WebServer::start({
        let current = Arc::clone(&current);
        move |request| current.lock().unwrap().answer(request)
    });
    let mut puller = Puller::new();
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    *current.lock().unwrap() = MockImage::new(&[b"new"]);
    puller.policy = PullPolicy::Missing;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    puller.policy = PullPolicy::Never;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    puller.policy = PullPolicy::Newer;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"new");
    *current.lock().unwrap() = MockImage::new(&[b"newest"]);
    puller.policy = PullPolicy::Always;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"newest");
}

#[test]
fn pulled_image_is_not_pruned_before_its_use() {
    let server = MockImage::new(&[b"a"]).serve();
    let puller = Puller::new();
    let all = PrunePolicy::new(Some(Duration::ZERO), Some(0));
    // The second time the layer is in the store.
    for _ in 0..2 {
        let image = puller.pull(&server.address()).unwrap();
        assert_eq!(puller.store().prune(&all).unwrap().layers, 0);
        puller.store().lease("job", &image).unwrap();
        puller.store().release("job").unwrap();
    }
    assert_eq!(puller.store().prune(&all).unwrap().layers, 1);
}

#[test]
fn pull_policies_differ_if_the_registry_is_down() {
    let server = MockImage::new(&[b"a"]).serve();
    let address = server.address();
    let mut puller = Puller::new();
    puller.policy = PullPolicy::Never;
    assert!(matches!(puller.pull(&address), Err(PullError::NotStored { .. })));
    puller.policy = PullPolicy::Missing;
    puller.pull(&address).unwrap();
    let _refusing = server.refuse_connections();
    for (policy, outdated) in
        [(PullPolicy::Missing, 0), (PullPolicy::Never, 0), (PullPolicy::Newer, 1)]
    {
        puller.policy = policy;
        puller.pull(&address).unwrap();
        assert_eq!(puller.seen.count("outdated"), outdated, "{policy:?}: it is told");
    }
    puller.policy = PullPolicy::Always;
    let error = chain(&puller.pull(&address).unwrap_err());
    assert!(error.contains(&format!("cannot reach {address}: ")), "{error}");
}

/// Change of a response.
type ResponseFault = fn(WebResponse) -> WebResponse;

#[test]
fn stored_image_is_used_if_a_new_layer_is_interrupted() {
    let [old, new] =
        [&b"old"[..], &random_bytes(100_000)].map(|last| MockImage::new(&[b"a", b"b", b"c", last]));
    let current = Arc::new(Mutex::new(old));
    // Fault of the new image's last layer.
    let broken: Arc<Mutex<ResponseFault>> = Arc::new(Mutex::new(|answer| answer));
    let server = WebServer::start({
        let (current, broken, layer) =
            (Arc::clone(&current), Arc::clone(&broken), new.layer_path(3));
        move |request| {
            let answer = current.lock().unwrap().answer(request);
            if request.path == layer { broken.lock().unwrap()(answer) } else { answer }
        }
    });
    let address = server.address();
    let mut puller = Puller::new();
    let first = puller.pull(&address).unwrap();
    let last = |image: &oci_hooks_image::Image| read(image, 3);
    assert_eq!(last(&first), b"old");
    *current.lock().unwrap() = new;
    let faults: [ResponseFault; 3] = [
        |answer| WebResponse { cut: Some(1000), ..answer },
        |_| WebResponse::status(503),
        |answer| WebResponse { refused: true, ..answer },
    ];
    for fault in faults {
        *broken.lock().unwrap() = fault;
        puller.policy = PullPolicy::Newer;
        let before = puller.seen.count("outdated");
        assert_eq!(puller.pull(&address).unwrap(), first);
        assert_eq!(puller.seen.count("outdated"), before + 1, "it is told");
        puller.policy = PullPolicy::Always;
        puller.pull(&address).unwrap_err();
    }
    // A permanent error may be an attack, and is no reason to use another image.
    *broken.lock().unwrap() = |answer| WebResponse { body: random_bytes(99_999), ..answer };
    puller.policy = PullPolicy::Newer;
    puller.pull(&address).unwrap_err();
    *broken.lock().unwrap() = |_| WebResponse::status(404);
    puller.pull(&address).unwrap_err();
    *broken.lock().unwrap() = |answer| answer;
    assert_eq!(last(&puller.pull(&address).unwrap()), random_bytes(100_000));
}

/// Serves an image; while it is `private`, only to `a` with password `a` and `b` with `b`.
fn serve_shared(content: &MockImage, private: &Arc<AtomicBool>) -> WebServer {
    let (content, private) = (content.clone(), Arc::clone(private));
    WebServer::start(move |request| {
        let known = [basic("a", "a"), basic("b", "b")];
        let is_known =
            request.header("authorization").is_some_and(|value| known.iter().any(|k| k == value));
        if is_known || !private.load(Ordering::SeqCst) {
            content.answer(request)
        } else {
            WebResponse::status(401).with("www-authenticate", "Basic realm=\"x\"")
        }
    })
}

#[test]
fn private_image_in_the_store_needs_authorization_by_each_job() {
    let private = Arc::new(AtomicBool::new(true));
    let server = serve_shared(&MockImage::new(&[b"a"]), &private);
    let address = server.address();
    let mut puller = Puller::with_login(&address, "a", "a");
    let image = puller.pull(&address).unwrap();
    assert!(image.access.is_some());

    let strangers =
        [Credentials::default(), login(&address, "a", "b"), login("other.example", "a", "a")];
    for stranger in &strangers {
        for policy in
            [PullPolicy::Always, PullPolicy::Newer, PullPolicy::Missing, PullPolicy::Never]
        {
            puller.credentials = stranger.clone();
            puller.policy = policy;
            let error = chain(&puller.pull(&address).unwrap_err());
            let is_refusal =
                error.contains("authentication required") || error.contains("other credentials");
            assert!(is_refusal, "{policy:?}: {error}");
        }
    }
    puller.credentials = login(&address, "b", "b");
    for policy in [PullPolicy::Always, PullPolicy::Newer, PullPolicy::Missing] {
        puller.policy = policy;
        puller.pull(&address).unwrap();
    }
    puller.policy = PullPolicy::Never;
    assert!(matches!(puller.pull(&address), Err(PullError::Private { .. })));
    puller.credentials = login(&address, "a", "a");
    puller.pull(&address).unwrap();
    let _refusing = server.refuse_connections();
    puller.pull(&address).unwrap();
    // While a registry is down, users get only the images that were served to them.
    for policy in [PullPolicy::Missing, PullPolicy::Newer] {
        puller.policy = policy;
        puller.credentials = login(&address, "a", "a");
        let before = puller.seen.count("outdated");
        puller.pull(&address).unwrap();
        assert_eq!(puller.seen.count("outdated"), before + 1, "{policy:?}: it is told");
        for stranger in strangers.iter().chain([&login(&address, "b", "b")]) {
            puller.credentials = stranger.clone();
            let error = chain(&puller.pull(&address).unwrap_err());
            assert!(error.contains("cannot reach"), "{error}");
        }
    }
}

#[test]
fn change_between_private_and_public_is_recorded() {
    let private = Arc::new(AtomicBool::new(false));
    let server = serve_shared(&MockImage::new(&[b"a"]), &private);
    let mut puller = Puller::with_login(&server.address(), "a", "a");
    assert_eq!(puller.pull(&server.address()).unwrap().access, None);
    private.store(true, Ordering::SeqCst);
    assert!(puller.pull(&server.address()).unwrap().access.is_some());
    private.store(false, Ordering::SeqCst);
    puller.credentials = Credentials::default();
    puller.policy = PullPolicy::Missing;
    puller.pull(&server.address()).unwrap();
    puller.policy = PullPolicy::Always;
    assert_eq!(puller.pull(&server.address()).unwrap().access, None);
}
