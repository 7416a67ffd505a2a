//! What is on disk and in the run directory: a broken record is an error or as none.
//!
//! The first byte says which record the rest is.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use oci_hooks::container::{
    Ended, Engine, LogReader, MonitorProgram, Record, last_lines, read_json_if_there,
};
use oci_hooks::container_hook::engine::Job;
use oci_hooks::container_hook::{RunnerFiles, worker_log};
use oci_hooks::garm::record::{Records, controllers};
use oci_hooks::image::{Digest, Platform, PrunePolicy, Reference};
use oci_hooks::network::{Network, NetworkOptions};
use oci_hooks::runtime::Runtime;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[path = "parts/scratch.rs"]
mod scratch;

use scratch::Scratch;

const CONFIGURATION: &str = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers",
    "diff_ids":["LAYER","OTHER"]}}"#;

fuzz_target!(|input: &[u8]| {
    let Some((&kind, rest)) = input.split_first() else { return };
    let scratch = Scratch::new();
    match kind {
        b'i' => image(&scratch, rest),
        b'l' => layer(&scratch, rest),
        b'e' => lease(&scratch, rest),
        b'c' => container(&scratch, rest),
        b'o' => log(&scratch, rest),
        b'j' => same::<Job>(&scratch, rest),
        b'n' => network(&scratch, rest),
        b'g' => instance(&scratch, rest),
        b'w' => worker(&scratch, rest),
        _ => {}
    }
});

/// Reads a record as programs do; what was read is written and read again as the same.
fn same<T: DeserializeOwned + Serialize>(scratch: &Scratch, text: &[u8]) {
    let read = |text: &[u8]| {
        let path = scratch.write("run/record.json", text);
        read_json_if_there::<T>(&path).map(|record| serde_json::to_vec(&record.unwrap()).unwrap())
    };
    match read(text) {
        Err(error) => drop(error.to_string()),
        Ok(written) => assert_eq!(read(&written).unwrap(), written),
    }
}

fn reference() -> Reference {
    "example.com/image:1".parse().unwrap()
}

/// Returns where the record of an image is.
fn image_record() -> String {
    let key = format!("{} {}", reference(), Platform::host());
    format!("store/images/{}.json", Digest::of(key.as_bytes()).hex())
}

fn image(scratch: &Scratch, record: &[u8]) {
    let store = scratch.store();
    scratch.write(image_record(), record);
    let listed = store.images().unwrap();
    // Layers are asked about by the names that the record gives them.
    match store.hold(&reference(), &Platform::host()) {
        Err(error) => drop(error.to_string()),
        Ok(found) => assert!(found.is_none_or(|image| image.layers.is_empty())),
    }
    assert!(listed.len() <= 1);
    store.prune(&PrunePolicy::default()).unwrap();
    scratch.check();
}

fn layer(scratch: &Scratch, record: &[u8]) {
    let store = scratch.store();
    let (one, other) = (Digest::of(b"1"), Digest::of(b"2"));
    let configuration =
        CONFIGURATION.replace("LAYER", one.as_str()).replace("OTHER", other.as_str());
    let image = serde_json::json!({
        "reference": reference().to_string(), "platform": Platform::host(), "digest": one,
        "id": Digest::of(configuration.as_bytes()), "configuration": configuration,
    });
    scratch.write(image_record(), image.to_string().as_bytes());
    for digest in [&one, &other] {
        let dir = format!("store/layers/sha256-{}", digest.hex());
        scratch.write(format!("{dir}/layer.json"), record);
        scratch.write(format!("{dir}/tree/file"), b"");
    }
    let found = store.find(&reference(), &Platform::host()).unwrap();
    assert_eq!(found.is_some(), store.has_layer(&one).unwrap());
    let [summary] = &store.images().unwrap()[..] else { panic!("one image") };
    assert!(found.is_some() || summary.size_bytes == 0);
    drop((store.usage().unwrap(), store.settle()));
    assert_eq!(store.has_layer(&one).unwrap(), found.is_some());
}

fn lease(scratch: &Scratch, record: &[u8]) {
    let store = scratch.store();
    scratch.write("run/leases/holder/one.json", record);
    scratch.write("run/leases/.reserved-0", record);
    if let Err(error) = store.prune(&PrunePolicy::default()) {
        drop(error.to_string());
    }
}

fn container(scratch: &Scratch, record: &[u8]) {
    same::<Record>(scratch, record);
    same::<Ended>(scratch, record);
    let engine = Engine {
        store: scratch.store(),
        runtime: Runtime::new("/nonexistent".into(), scratch.path("run/runtime")),
        run: scratch.path("run"),
        disk: scratch.path("store"),
        monitor: MonitorProgram { path: "/nonexistent".into(), arguments: Vec::new() },
    };
    for name in ["record.json", "end.json", "pid"] {
        scratch.write(Path::new("run/containers/id").join(name), record);
    }
    let containers = engine.containers().unwrap();
    assert_eq!(containers.len(), usize::from(engine.directory("id").read().is_ok()));
    for container in &containers {
        assert!(engine.find(&container.id).is_ok());
        let running = container.process.filter(oci_hooks::sys::identity::Identity::is_running);
        let _ = (running, container.role.name());
    }
    drop((engine.directory("id").end(), engine.find("i")));
}

/// Reads a log in the two ways that there are, which say the same.
fn log(scratch: &Scratch, log: &[u8]) {
    let (older, newer) = log.split_at(log.iter().position(|&byte| byte == 0).unwrap_or(0));
    let path = scratch.write("run/log", newer);
    if !older.is_empty() {
        scratch.write("run/log.1", older);
    }
    let lines = last_lines(&path, usize::MAX).unwrap();
    let followed = LogReader::open(&path).unwrap().lines().unwrap();
    // What has no newline yet is not followed yet.
    assert!(lines.starts_with(&followed) && lines.len() - followed.len() <= 1);
    assert_eq!(last_lines(&path, 1).unwrap().as_slice(), &lines[lines.len().saturating_sub(1)..]);
}

fn network(scratch: &Scratch, record: &[u8]) {
    let options = NetworkOptions::new(scratch.path("run"));
    scratch.write("run/network/id/record.json", record);
    match Network::open(&options, "id") {
        Err(error) => drop(error.to_string()),
        Ok(network) => {
            drop((network.host_address(), network.private_ids(), network.user_namespace()));
        }
    }
}

fn instance(scratch: &Scratch, record: &[u8]) {
    let run = scratch.path("run");
    for name in ["claim.json", "outcome.json", "supervisor.json"] {
        scratch.write(Path::new("run/garm/controller/instances/name").join(name), record);
    }
    let records = Records::of(&run, "controller");
    let files = records.files("name").unwrap();
    match files.record() {
        // It says which one, and hides no other.
        Err(error) => {
            let claims = records.read_all().unwrap();
            assert!(claims.known.is_empty() && claims.unreadable.len() == 1, "{error}");
        }
        Ok(record) => {
            assert!(record.is_some() && records.read_all().unwrap().known.len() == 1);
            assert_eq!(controllers(&run).unwrap()[0].controller(), record.unwrap().controller);
        }
    }
    drop((files.outcome(), files.supervisor()));
}

/// Reads the log of a runner's worker, which jobs can make it write to.
fn worker(scratch: &Scratch, log: &[u8]) {
    scratch.write("run/_diag/Worker_1.log", log);
    std::fs::create_dir(scratch.path("run/_work")).unwrap();
    let files = RunnerFiles::of_root(&scratch.path("run/_work")).unwrap();
    for count in 0..3 {
        let names = worker_log::service_names(&files, &scratch.path("run/_diag"), count);
        assert!(names.unwrap().is_none_or(|names| names.len() == count));
    }
}
