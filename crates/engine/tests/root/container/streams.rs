//! Standard streams of containers and of processes in them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

use oci_hooks_engine::bundle::{ContainerUser, ExecOptions};

use crate::container::setup::{spec, with_each_engine};

/// crun gives the streams of a process to its user.
#[test]
fn hosts_null_device_keeps_its_owner() {
    with_each_engine(|engine, image| {
        let mut spec = spec(image, "sleep 1000");
        spec.options.user = Some("4242:4242".to_owned());
        let record = engine.prepare(spec).unwrap().start().unwrap();
        let user = ContainerUser { uid: 4343, gid: 4343, groups: Vec::new(), home: "/".to_owned() };
        let args = ["sh", "-c", "! read line"].map(str::to_owned).into();
        let options = ExecOptions { args, user: Some(user), ..ExecOptions::default() };
        let mut exec = engine.exec(&record, &options).unwrap();
        let ended = exec.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let null = fs::metadata("/dev/null").unwrap();
        assert!(![4242, 4343].contains(&null.uid()), "it belongs to {}", null.uid());
        engine.remove(&record).unwrap();
    });
}
