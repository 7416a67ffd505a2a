//! Invalid archives, and paths that lead elsewhere: no part of them is tagged.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::symlink;

use oci_hooks_image::Digest;
use oci_hooks_testsupport::http::WebServer;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};
use step_runner::function_oci::OciFunction;

use crate::functions::faults::accept;
use crate::functions::setup::{ARCHIVE, FunctionJob};

type ArchiveEntries = Vec<(String, Vec<u8>)>;

/// Returns the files of a job's archive.
fn entries(job: &FunctionJob) -> ArchiveEntries {
    let mut archive = tar::Archive::new(File::open(job.path().join(ARCHIVE)).unwrap());
    let read = |entry: std::io::Result<tar::Entry<'_, File>>| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().to_str().unwrap().to_owned(), content)
    };
    archive.entries().unwrap().map(read).collect()
}

fn write(job: &FunctionJob, entries: &ArchiveEntries) {
    let mut archive = tar::Builder::new(File::create(job.path().join(ARCHIVE)).unwrap());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content.as_slice()).unwrap();
    }
    archive.finish().unwrap();
}

/// Publishes an archive of a job to a registry that accepts all uploads, and returns the error.
#[track_caller]
fn publish_error(job: &FunctionJob, archive: &str) -> String {
    let server = WebServer::start(accept);
    let repository = format!("{}/a/b", server.address());
    let ran =
        job.run(OciFunction::Publish, json!({"archive": archive, "to_repository": repository}));
    let requests = server.requests();
    let is_tag = |path: &str| path.contains("/manifests/") && !path.contains("sha256:");
    let tagged = requests.iter().any(|request| request.method == "PUT" && is_tag(&request.path));
    assert!(!tagged, "{requests:?}");
    ran.failure()
}

fn find(entries: &mut ArchiveEntries, is_it: impl Fn(&[u8]) -> bool) -> &mut (String, Vec<u8>) {
    entries.iter_mut().find(|(_, content)| is_it(content)).unwrap()
}

fn is_layer(content: &[u8]) -> bool {
    content.starts_with(b"\x28\xb5\x2f\xfd")
}

/// A change of an archive.
type ArchiveChange = fn(&mut ArchiveEntries);

#[test]
fn content_with_a_wrong_digest_is_not_published() {
    let tampered: [(&str, ArchiveChange, &str); 6] = [
        ("a layer", |all| find(all, is_layer).1[20] ^= 1, "digest mismatch"),
        ("a short layer", |all| find(all, is_layer).1.truncate(20), "digest or size mismatch"),
        ("a long layer", |all| find(all, is_layer).1.push(0), "digest or size mismatch"),
        (
            "no layer",
            |all| all.retain(|(_, content)| !is_layer(content)),
            "is missing from the image",
        ),
        (
            "a manifest",
            |all| {
                let manifest =
                    find(all, |content| content.windows(10).any(|w| w == b"\"layers\":["));
                let at = manifest.1.windows(6).position(|w| w == b"sha256").unwrap();
                manifest.1[at + 10] = if manifest.1[at + 10] == b'0' { b'1' } else { b'0' };
            },
            "digest or size mismatch",
        ),
        ("no index", |all| all.retain(|(name, _)| name != "index.json"), "is not an image"),
    ];
    for (what, tamper, expected) in tampered {
        let job = FunctionJob::new();
        job.build("1.0.0");
        let mut all = entries(&job);
        tamper(&mut all);
        write(&job, &all);
        let error = publish_error(&job, ARCHIVE);
        assert!(error.contains(expected), "{what}: {error}");
    }
}

#[test]
fn archive_needs_one_image_with_a_version() {
    let job = FunctionJob::new();
    job.build("1.0.0");
    let all = entries(&job);
    let original: Value =
        serde_json::from_slice(&all.iter().find(|(name, _)| name == "index.json").unwrap().1)
            .unwrap();
    let entry = original["manifests"][0].clone();
    let blob = |digest: &Value| {
        let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        let name = format!("blobs/sha256/{hex}");
        all.iter().find(|(other, _)| *other == name).unwrap().1.clone()
    };
    // An image without its own annotation, and an index that points to an index.
    let mut plain: Value = serde_json::from_slice(&blob(&entry["digest"])).unwrap();
    plain["annotations"] = json!({});
    let described = |document: &Value, annotations: Value| {
        let bytes = document.to_string();
        json!({"mediaType": entry["mediaType"], "digest": Digest::of(bytes.as_bytes()),
               "size": bytes.len(), "annotations": annotations})
    };
    let mut nested = plain.clone();
    nested["manifests"] = json!([entry]);
    let mut many = plain.clone();
    many["manifests"] = vec![plain["manifests"][0].clone(); 101].into();
    let version = |text: &str| json!({"org.opencontainers.image.version": text});
    for (manifests, expected) in [
        (json!([]), "expected one image, got 0"),
        (json!([entry, entry]), "expected one image, got 2"),
        (json!([described(&plain, json!({}))]), "has no version"),
        (json!([described(&plain, version("latest"))]), "invalid version \"latest\""),
        (json!([described(&plain, version("../1"))]), "invalid version"),
        (json!([described(&nested, version("1.0.0"))]), "names another index"),
        (json!([described(&many, version("1.0.0"))]), "more than 100 platforms"),
        (json!([{"mediaType": "x", "digest": "sha256:../../x", "size": 1}]), "malformed"),
        (json!("x"), "malformed"),
    ] {
        let index = json!({"schemaVersion": 2, "manifests": manifests}).to_string();
        let mut changed = all.clone();
        changed.retain(|(name, _)| name != "index.json");
        changed.push(("index.json".to_owned(), index.into_bytes()));
        for document in [&plain, &nested, &many] {
            let bytes = document.to_string().into_bytes();
            changed.push((format!("blobs/sha256/{}", Digest::of(&bytes).hex()), bytes));
        }
        write(&job, &changed);
        let error = publish_error(&job, ARCHIVE);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn files_that_are_no_archive_of_the_job_are_not_read() {
    let job = FunctionJob::new();
    job.build("1.0.0");
    let outside = oci_hooks_testsupport::program::temporary_directory();
    let archive = job.path().join(ARCHIVE);
    fs::copy(&archive, outside.path().join("x.tar")).unwrap();
    symlink(outside.path().join("x.tar"), job.path().join("link.tar")).unwrap();
    mkfifoat(CWD, job.path().join("fifo.tar"), Mode::RUSR | Mode::WUSR).unwrap();
    let whole = fs::read(&archive).unwrap();
    fs::write(job.path().join("short.tar"), &whole[..whole.len() / 2]).unwrap();
    fs::write(job.path().join("gzip.tar"), b"\x1f\x8b\x08\x00 and more").unwrap();
    fs::write(job.path().join("empty.tar"), b"").unwrap();
    let absolute = outside.path().join("x.tar");
    for (name, expected) in [
        ("link.tar", "link.tar leads out of the job's directory"),
        (absolute.to_str().unwrap(), "leads out of the job's directory"),
        ("../x.tar", "../x.tar leads out of the job's directory"),
        ("fifo.tar", "fifo.tar is a FIFO"),
        ("bin", "bin is a directory"),
        ("missing.tar", "missing.tar: No such file"),
        ("short.tar", "invalid archive short.tar"),
        ("gzip.tar", "invalid archive gzip.tar"),
        ("empty.tar", "invalid archive empty.tar"),
    ] {
        let error = publish_error(&job, name);
        assert!(error.contains(expected), "{error}");
    }
}
