//! Host names are resolved by file and by DNS: the C library's modules for that are linked in.

use crate::static_program::setup::{ProgramRoot, RootContent};

#[test]
fn hosts_are_resolved_by_file_and_dns() {
    let root = ProgramRoot::new(RootContent::Nothing);
    root.answer_names();
    root.write("etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n");
    root.write("etc/hosts", "127.0.0.1 localhost\n127.0.0.9 file.example\n");
    // These modules do not exist.
    root.write("etc/nsswitch.conf", "hosts: mymachines mdns4_minimal [NOTFOUND=return] resolve\n");
    let _servers = root.serve("0.0.0.0:80", None);
    for host in ["file.example", "dns.example", "127.0.0.3"] {
        root.write_step(&format!("http://{host}/r.git"));
        let printed = root.run(&[("HOME", "/tmp")], "/step.yml").success();
        assert!(printed.contains("step-runner 0."), "{host}: {printed}");
    }
    root.write_step("http://none.example/r.git");
    let error = root.run(&[("HOME", "/tmp")], "/step.yml").failure();
    assert!(error.contains("Name or service not known"), "{error}");
}

#[test]
fn names_are_resolved_without_configuration() {
    let root = ProgramRoot::new(RootContent::Nothing);
    root.answer_names();
    let _server = root.serve("0.0.0.0:80", None);
    root.write_step("http://dns.example/r.git");
    assert!(root.run(&[("HOME", "/tmp")], "/step.yml").success().contains("step-runner 0."));
}
