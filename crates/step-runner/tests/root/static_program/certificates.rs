//! Trusted CA certificates: the host's, or else the bundle beside the program, or else the compiled-in bundle.

use std::fs;

use oci_hooks_testsupport::certificates::TestCertificates;

use crate::static_program::setup::{ProgramRoot, RootContent};

#[test]
fn certificates_are_the_hosts_or_those_beside_the_program() {
    let certificates = TestCertificates::shared();
    let authorities = fs::read_to_string(certificates.authorities()).unwrap();
    let root = ProgramRoot::new(RootContent::Nothing);
    let server = root.serve("127.0.0.9:443", certificates.tls());
    root.write("etc/hosts", "127.0.0.9 ghcr.io\n");
    root.write_step("ghcr.io");
    // Returns whether the registry got a request, and the error of the run. The registry gets none
    // if its certificate is not trusted.
    let run = |variables: &[(&str, &str)]| {
        let before = server.requests().len();
        let error = root.run(&[&[("HOME", "/tmp")], variables].concat(), "/step.yml").failure();
        (server.requests().len() > before, error)
    };
    let remove = |path: &str| fs::remove_file(root.host.path().join("root").join(path)).unwrap();

    // The compiled-in bundle does not contain this CA.
    let (was_asked, error) = run(&[]);
    assert!(!was_asked && error.contains("invalid peer certificate: UnknownIssuer"), "{error}");

    root.write("ca-certs.pem", &authorities);
    assert!(run(&[]).0);
    // If the host has a bundle, only it is used.
    root.write("etc/ssl/certs/ca-certificates.crt", &other_authority());
    assert!(!run(&[]).0);
    root.write("etc/ssl/certs/ca-certificates.crt", &authorities);
    remove("ca-certs.pem");
    assert!(run(&[]).0);
    remove("etc/ssl/certs/ca-certificates.crt");

    root.write("own.pem", &authorities);
    assert!(run(&[("SSL_CERT_FILE", "/own.pem")]).0);
    // There is no fallback for a missing file in `SSL_CERT_FILE`.
    root.write("ca-certs.pem", &authorities);
    let (was_asked, error) = run(&[("SSL_CERT_FILE", "/none.pem")]);
    assert!(!was_asked && error.contains("No CA certificates were loaded"), "{error}");
}

/// Returns the certificate of an unrelated CA.
fn other_authority() -> String {
    let dir = oci_hooks_testsupport::program::temporary_directory();
    let mut openssl = std::process::Command::new(oci_hooks_testsupport::program::find("openssl"));
    openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split(' '));
    openssl.args("-subj /CN=other -keyout key.pem -out authority.pem".split(' '));
    oci_hooks_testsupport::program::run(openssl.current_dir(dir.path())).success();
    fs::read_to_string(dir.path().join("authority.pem")).unwrap()
}
