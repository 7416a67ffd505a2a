//! Host names are resolved by file and by DNS: the C library's modules for that are linked in.

use oci_hooks_testsupport::certificates::TestCertificates;

use crate::static_program::setup::{ProgramRoot, RootContent};

/// Error of a connection to a server with another name.
const CONNECTED: &str = "invalid peer certificate";

#[test]
fn hosts_are_resolved_by_file_and_dns() {
    let root = ProgramRoot::new(RootContent::Nothing);
    root.answer_names();
    root.write("etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n");
    root.write("etc/hosts", "127.0.0.1 localhost\n127.0.0.9 file.example\n");
    // These modules do not exist.
    root.write("etc/nsswitch.conf", "hosts: mymachines mdns4_minimal [NOTFOUND=return] resolve\n");
    let _server = root.serve("0.0.0.0:443", TestCertificates::shared().tls());
    for (host, expected) in [
        ("file.example", CONNECTED),
        ("dns.example", CONNECTED),
        ("none.example", "Name or service not known"),
    ] {
        root.write_step(host);
        let error = root.run(&[("HOME", "/tmp")], "/step.yml").failure();
        assert!(error.contains(expected), "{host}: {error}");
    }
}

#[test]
fn names_are_resolved_without_configuration() {
    let root = ProgramRoot::new(RootContent::Nothing);
    root.answer_names();
    let _server = root.serve("0.0.0.0:443", TestCertificates::shared().tls());
    root.write_step("dns.example");
    let error = root.run(&[("HOME", "/tmp")], "/step.yml").failure();
    assert!(error.contains(CONNECTED), "{error}");
}
