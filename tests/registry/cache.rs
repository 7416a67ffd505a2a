//! What the store has, and who may have it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oci_hooks::image::{Credentials, PrunePolicy, PullError, PullPolicy};

use crate::setup::{Content, Puller, basic, chain, login, noise, read};
use crate::support::http::{Response, Server};

#[test]
fn a_moved_tag_is_seen() {
    let current = Arc::new(Mutex::new(Content::new(&[b"old"])));
    let server = Server::start({
        let current = Arc::clone(&current);
        move |request| current.lock().unwrap().answer(request)
    });
    let mut puller = Puller::new();
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    *current.lock().unwrap() = Content::new(&[b"new"]);
    puller.policy = PullPolicy::Missing;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    puller.policy = PullPolicy::Never;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"old");
    puller.policy = PullPolicy::Newer;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"new");
    *current.lock().unwrap() = Content::new(&[b"newest"]);
    puller.policy = PullPolicy::Always;
    assert_eq!(read(&puller.pull(&server.address()).unwrap(), 0), b"newest");
}

#[test]
fn a_pulled_image_is_not_pruned_before_it_is_used() {
    let server = Content::new(&[b"a"]).serve();
    let puller = Puller::new();
    let all = PrunePolicy::new(Some(Duration::ZERO), Some(0));
    // The second time it is there already.
    for _ in 0..2 {
        let image = puller.pull(&server.address()).unwrap();
        assert_eq!(puller.store().prune(&all).unwrap().layers, 0);
        puller.store().lease("job", &image).unwrap();
        puller.store().release("job").unwrap();
    }
    assert_eq!(puller.store().prune(&all).unwrap().layers, 1);
}

#[test]
fn policies_differ_when_the_registry_is_gone() {
    let server = Content::new(&[b"a"]).serve();
    let address = server.address();
    let mut puller = Puller::new();
    puller.policy = PullPolicy::Never;
    assert!(matches!(puller.pull(&address), Err(PullError::NotStored { .. })));
    puller.policy = PullPolicy::Missing;
    puller.pull(&address).unwrap();
    drop(server);
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

/// What becomes of an answer.
type Fault = fn(Response) -> Response;

#[test]
fn an_image_whose_layer_breaks_off_is_the_one_in_the_store_if_that_will_do() {
    let [old, new] =
        [&b"old"[..], &noise(100_000)].map(|last| Content::new(&[b"a", b"b", b"c", last]));
    let current = Arc::new(Mutex::new(old));
    // What becomes of the last layer of the new one.
    let broken: Arc<Mutex<Fault>> = Arc::new(Mutex::new(|answer| answer));
    let server = Server::start({
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
    let last = |image: &oci_hooks::image::Image| read(image, 3);
    assert_eq!(last(&first), b"old");
    *current.lock().unwrap() = new;
    let faults: [Fault; 3] = [
        |answer| Response { cut: Some(1000), ..answer },
        |_| Response::status(503),
        |answer| Response { refused: true, ..answer },
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
    // What is wrong for good, perhaps somebody's doing, is no reason to take another one.
    *broken.lock().unwrap() = |answer| Response { body: noise(99_999), ..answer };
    puller.policy = PullPolicy::Newer;
    puller.pull(&address).unwrap_err();
    *broken.lock().unwrap() = |_| Response::status(404);
    puller.pull(&address).unwrap_err();
    *broken.lock().unwrap() = |answer| answer;
    assert_eq!(last(&puller.pull(&address).unwrap()), noise(100_000));
}

/// Serves an image to `a` with password `a` and `b` with `b`, while it is `private`.
fn shared(content: &Content, private: &Arc<AtomicBool>) -> Server {
    let (content, private) = (content.clone(), Arc::clone(private));
    Server::start(move |request| {
        let known = [basic("a", "a"), basic("b", "b")];
        let is_known =
            request.header("authorization").is_some_and(|value| known.iter().any(|k| k == value));
        if is_known || !private.load(Ordering::SeqCst) {
            content.answer(request)
        } else {
            Response::status(401).with("www-authenticate", "Basic realm=\"x\"")
        }
    })
}

#[test]
fn a_private_image_in_the_store_needs_authorisation_of_each_job() {
    let private = Arc::new(AtomicBool::new(true));
    let server = shared(&Content::new(&[b"a"]), &private);
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
    drop(server);
    puller.pull(&address).unwrap();
    // A registry that is down keeps nobody from what was given to them, and gives nothing to others.
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
fn an_image_that_became_private_or_public_is_known_as_that() {
    let private = Arc::new(AtomicBool::new(false));
    let server = shared(&Content::new(&[b"a"]), &private);
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
