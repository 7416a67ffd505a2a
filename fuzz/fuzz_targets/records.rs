//! Records on disk and in the run directory: a broken record is an error or ignored.
//!
//! The first byte selects the kind of record.

#![no_main]

use std::path::Path;

use container_hook::JobRecord;
use garm_provider_runc::record::{ControllerRecords, recorded_controllers};
use libfuzzer_sys::fuzz_target;
use oci_hooks_engine::container::{
    ContainerRecord, Engine, LogReader, MonitorProgram, RecordedEnd, last_lines, read_json_if_there,
};
use oci_hooks_engine::network::{Network, NetworkOptions};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{Digest, ImageReference, Platform, PrunePolicy};
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
        b'j' => check_round_trip::<JobRecord>(&scratch, rest),
        b'n' => network(&scratch, rest),
        b'g' => instance(&scratch, rest),
        _ => {}
    }
});

/// Reads a record as programs do, writes it, and reads the same record again.
fn check_round_trip<T: DeserializeOwned + Serialize>(scratch: &Scratch, text: &[u8]) {
    let read = |text: &[u8]| {
        let path = scratch.write("run/record.json", text);
        read_json_if_there::<T>(&path).map(|record| serde_json::to_vec(&record.unwrap()).unwrap())
    };
    match read(text) {
        Err(error) => drop(error.to_string()),
        Ok(written) => assert_eq!(read(&written).unwrap(), written),
    }
}

fn reference() -> ImageReference {
    "example.com/image:1".parse().unwrap()
}

/// Returns the path of an image's record.
fn image_record() -> String {
    let key = format!("{} {}", reference(), Platform::host());
    format!("store/images/{}.json", Digest::of(key.as_bytes()).hex())
}

fn image(scratch: &Scratch, record: &[u8]) {
    let store = scratch.store();
    scratch.write(image_record(), record);
    let listed = store.images().unwrap();
    // Layers are looked up by the names in the record.
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
    drop((store.usage().unwrap(), store.sync_file_system()));
    assert_eq!(store.has_layer(&one).unwrap(), found.is_some());
}

fn lease(scratch: &Scratch, record: &[u8]) {
    let store = scratch.store();
    scratch.write("run/leases/pause process/one.json", record);
    scratch.write("run/leases/.reserved-0", record);
    if let Err(error) = store.prune(&PrunePolicy::default()) {
        drop(error.to_string());
    }
}

fn container(scratch: &Scratch, record: &[u8]) {
    check_round_trip::<ContainerRecord>(scratch, record);
    check_round_trip::<RecordedEnd>(scratch, record);
    let engine = Engine {
        store: scratch.store(),
        runtime: OciRuntime::new("/nonexistent".into(), scratch.path("run/runtime")),
        run: scratch.path("run"),
        disk: scratch.path("store"),
        monitor: MonitorProgram { path: "/nonexistent".into(), arguments: Vec::new() },
        privilege: Privilege::Root.limit_to_own(),
    };
    for name in ["record.json", "end.json", "pid"] {
        scratch.write(Path::new("run/containers/id").join(name), record);
    }
    let containers = engine.containers().unwrap();
    assert_eq!(containers.len(), usize::from(engine.directory("id").read().is_ok()));
    for container in &containers {
        assert!(engine.find(&container.id).is_ok());
        let running =
            container.process.filter(oci_hooks_host::identity::ProcessIdentity::is_running);
        let _ = (running, container.role.name());
    }
    drop((engine.directory("id").end(), engine.find("i")));
}

/// Reads a log in both ways, whose results must agree.
fn log(scratch: &Scratch, log: &[u8]) {
    let (older, newer) = log.split_at(log.iter().position(|&byte| byte == 0).unwrap_or(0));
    let path = scratch.write("run/log", newer);
    if !older.is_empty() {
        scratch.write("run/log.1", older);
    }
    let lines = last_lines(&path, usize::MAX).unwrap();
    let followed = LogReader::open(&path).unwrap().lines().unwrap();
    // A line without a newline is not followed yet.
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
    for name in ["instance.json", "outcome.json", "supervisor.json"] {
        scratch.write(Path::new("run/garm/controller/instances/name").join(name), record);
    }
    let records = ControllerRecords::of(&run, "controller");
    let files = records.files("name").unwrap();
    // An unreadable record does not hide the instance.
    assert_eq!(records.names().unwrap(), ["name".to_owned()].into());
    match files.record() {
        Err(error) => drop(error.to_string()),
        Ok(record) => assert!(record.is_some()),
    }
    assert_eq!(recorded_controllers(&run).unwrap().len(), 1);
    drop((files.outcome(), files.supervisor()));
}
